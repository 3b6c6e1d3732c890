"""Who else computes the steps of rank 0: nobody, or the processes of workers.py (which alone need msgspec)."""

from __future__ import annotations

from typing import Protocol

import torch

from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.runner.device.model.shard import Shard
from pagefleet_engine.runner.device.steps.step import Step


class Company(Protocol):
    """The other ranks, as rank 0 speaks to them."""

    def device(self, rank: int) -> torch.device: ...

    def join(self) -> Shard:
        """Start the workers and meet them; rank 0's part."""

    def tell(self, step: Step) -> None: ...

    def sleep(self, level: int) -> None: ...

    def wake(self) -> None: ...

    def blame(self, error: RuntimeError) -> None:
        """Raises WorkerDied when `error` came of a rank's end."""

    def close(self) -> None: ...


class Alone:
    """One rank has the whole model."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def device(self, rank: int) -> torch.device:
        return self._device

    def join(self) -> Shard:
        return Shard()

    def tell(self, step: Step) -> None:
        """There is nobody to be told."""

    def sleep(self, level: int) -> None:
        """Nobody else sleeps."""

    def wake(self) -> None:
        """Nobody else wakes."""

    def blame(self, error: RuntimeError) -> None:
        """There is nobody to blame."""

    def close(self) -> None:
        """Nothing is open."""


def company(config: EngineConfig, device: torch.device) -> Company:
    """Raises ModelError when there are fewer GPUs than ranks."""
    if config.tensor_parallel_size == 1:
        return Alone(device)
    from pagefleet_engine.runner.device.ranks.workers import Workers

    return Workers(config, device)
