"""The other processes that compute the steps of rank 0: none, or those of workers.py (only these need msgspec)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.runner.device.model.shard import Shard
from pagefleet_engine.runner.device.steps.step import DeviceStep


class ProcessGroup(Protocol):
    """The other ranks, as rank 0 addresses them."""

    def device(self, rank: int) -> torch.device: ...

    def join(self) -> Shard:
        """Start the workers and join them in torch.distributed; return rank 0's part."""

    def send(self, step: DeviceStep) -> None: ...

    def sleep(self, level: int) -> None: ...

    def wake(self) -> None: ...

    def load_adapter(self, number: int, path: str) -> None: ...

    def keep_adapters(self, numbers: Iterable[int]) -> None: ...

    def raise_cause(self, error: RuntimeError) -> None:
        """Raises WorkerDied when the end of a rank caused `error`."""

    def close(self) -> None: ...


class SingleProcess:
    """One rank has the whole model."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def device(self, rank: int) -> torch.device:
        return self._device

    def join(self) -> Shard:
        return Shard()

    def send(self, step: DeviceStep) -> None:
        """Do nothing: there is no other rank."""

    def sleep(self, level: int) -> None:
        """Do nothing: there is no other rank."""

    def wake(self) -> None:
        """Do nothing: there is no other rank."""

    def load_adapter(self, number: int, path: str) -> None:
        """Do nothing: there is no other rank."""

    def keep_adapters(self, numbers: Iterable[int]) -> None:
        """Do nothing: there is no other rank."""

    def raise_cause(self, error: RuntimeError) -> None:
        """Do nothing: there is no other rank."""

    def close(self) -> None:
        """Nothing is open."""


def process_group(config: EngineConfig, device: torch.device) -> ProcessGroup:
    """Raises ModelError when there are fewer GPUs than ranks."""
    if config.tensor_parallel_size == 1:
        return SingleProcess(device)
    from pagefleet_engine.runner.device.ranks.workers import Workers

    return Workers(config, device)
