"""The other ranks of a model, seen from rank 0: processes of this machine, and other machines with processes of theirs.

Rank 0 is the engine's own process. The end of any rank ends the engine. Nothing here waits for a worker: the ranks
synchronise in their collectives.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable

import torch
from torch import distributed
from torch._C._distributed_c10d import TCPStore

from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.device.model.shard import FIELD, Shard
from pagefleet_engine.runner.device.ranks.nodes import Nodes
from pagefleet_engine.runner.device.ranks.processes import (
    EXIT_CONFIGURATION,
    EXIT_WORKER_DIED,
    SAME_ERROR_SECONDS,
    Processes,
    device_of,
    meet,
)
from pagefleet_engine.runner.device.ranks.wire import (
    Compute,
    Joining,
    KeepAdapters,
    LoadAdapter,
    Order,
    Sleep,
    Wake,
    encode,
    frame,
)
from pagefleet_engine.runner.device.steps.step import DeviceStep

CAUSE_SECONDS = 1.0


class WorkerDied(RuntimeError):
    """A rank's process has ended; the engine cannot go on without it."""


class Workers:
    """Raises ModelError when there are fewer GPUs than ranks of this machine."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        self._config, self._kind, self._size = config, device.type, config.tensor_parallel_size
        self._here = self._size // config.nodes
        if self._kind == "cuda" and torch.cuda.device_count() < self._here:
            raise ModelError(FIELD, f"{self._here} GPUs are needed, {torch.cuda.device_count()} are here")
        self._processes = Processes(self._ended)
        self._nodes = Nodes(config.nodes, config.master_port, _die) if config.nodes > 1 else None

    @property
    def pids(self) -> list[int]:
        return self._processes.pids

    def device(self, rank: int) -> torch.device:
        return device_of(self._kind, rank)

    def join(self) -> Shard:
        """Start this machine's workers, wait for the other machines, and join all of them; return rank 0's part."""
        store = TCPStore("127.0.0.1", 0, self._size, is_master=True, wait_for_workers=False)
        first = Joining(self._config, self._kind, 0, self._size, store.port)
        if self._nodes is not None:
            self._nodes.gather(first)
        for rank in range(1, self._here):
            self._processes.start(Joining(self._config, self._kind, rank, self._size, store.port, rank))
        meet(first, store)
        return Shard(0, self._size)

    def send(self, step: DeviceStep) -> None:
        self._send(Compute(encode(step)))

    def sleep(self, level: int) -> None:
        self._send(Sleep(level))

    def wake(self) -> None:
        self._send(Wake())

    def load_adapter(self, number: int, path: str) -> None:
        self._send(LoadAdapter(number, path))

    def keep_adapters(self, numbers: Iterable[int]) -> None:
        self._send(KeepAdapters(tuple(numbers)))

    def raise_cause(self, error: RuntimeError) -> None:
        """Raises WorkerDied when the end of a rank caused `error`. The error may arrive before that process has ended."""
        limit = time.monotonic() + CAUSE_SECONDS
        while (self._processes.pids or self._nodes is not None) and time.monotonic() < limit:
            if (dead := self._processes.dead()) is not None:
                raise WorkerDied(self._crash_report(*dead)) from error
            if self._nodes is not None and self._nodes.lost:
                raise WorkerDied(self._nodes.lost) from error
            time.sleep(0.01)

    def close(self) -> None:
        """Workers end when their sockets are closed."""
        if self._nodes is not None:
            self._nodes.close()
        self._processes.close()
        distributed.destroy_process_group()

    def _send(self, order: Order) -> None:
        body = frame(order)
        self._processes.send(body)
        if self._nodes is not None:
            self._nodes.send(body)

    def _ended(self, rank: int, status: int) -> None:
        if status == EXIT_CONFIGURATION:
            time.sleep(SAME_ERROR_SECONDS)
        _die(self._crash_report(rank, status))

    def _crash_report(self, rank: int, status: int) -> str:
        return f"rank {rank} of {self._size} ended with status {status}: the engine cannot go on"


def _die(report: str) -> None:
    sys.stderr.write(report + "\n")
    sys.stderr.flush()
    os._exit(EXIT_WORKER_DIED)
