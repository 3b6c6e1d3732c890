"""The other ranks of a model: spawned processes that are told each step. The death of one ends the engine.

Rank 0 is the engine's own process. Nothing here waits for a worker: the ranks meet in their collectives.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time

import msgspec
import torch
from torch import distributed
from torch._C._distributed_c10d import Store, TCPStore

from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.model.errors import ModelError
from pagefleet_engine.runner.device.shard import FIELD, Shard
from pagefleet_engine.runner.device.step import Step
from pagefleet_engine.runner.device.wire import Compute, Joining, Order, Rest, Rouse, encode, frame

EXIT_CONFIGURATION = 78
EXIT_WORKER_DIED = 70
BLAME_SECONDS = 1.0
PATIENCE_SECONDS = 30.0  # for rank 0 to meet the same error as a worker, and to say so better


def device_of(kind: str, rank: int) -> torch.device:
    return torch.device("cuda", rank) if kind == "cuda" else torch.device(kind)


def meet(kind: str, rank: int, size: int, store: Store) -> None:
    """Join the ranks' group. They are on one machine: gloo is kept from asking for the machine's name."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if kind == "cuda":
        torch.cuda.set_device(rank)
    distributed.init_process_group("nccl" if kind == "cuda" else "gloo", store=store, rank=rank, world_size=size)


class WorkerDied(RuntimeError):
    """A rank's process has ended; the engine cannot go on without it."""


class Workers:
    """Raises ModelError when there are fewer GPUs than ranks."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        self._config, self._kind, self._size = config, device.type, config.tensor_parallel_size
        if self._kind == "cuda" and torch.cuda.device_count() < self._size:
            raise ModelError(FIELD, f"{self._size} GPUs are wanted, {torch.cuda.device_count()} are here")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []
        self._closing = False

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def device(self, rank: int) -> torch.device:
        return device_of(self._kind, rank)

    def join(self) -> Shard:
        """Start the workers and meet them; rank 0's part."""
        store = TCPStore("127.0.0.1", 0, self._size, is_master=True, wait_for_workers=False)
        for rank in range(1, self._size):
            self._start(Joining(self._config, self._kind, rank, self._size, store.port))
        meet(self._kind, 0, self._size, store)
        return Shard(0, self._size)

    def tell(self, step: Step) -> None:
        self._send(Compute(encode(step)))

    def sleep(self, level: int) -> None:
        self._send(Rest(level))

    def wake(self) -> None:
        self._send(Rouse())

    def blame(self, error: RuntimeError) -> None:
        """Raises WorkerDied when `error` came of a rank's end, which may show here before the process has ended."""
        patience = time.monotonic() + BLAME_SECONDS
        while self._processes and time.monotonic() < patience:
            for rank, process in enumerate(self._processes, 1):
                if (status := process.poll()) is not None:
                    raise WorkerDied(self._obituary(rank, status)) from error
            time.sleep(0.01)

    def close(self) -> None:
        """Workers end when their sockets do."""
        self._closing = True
        for connection in self._sockets:
            connection.close()
        for process in self._processes:
            process.wait()
        distributed.destroy_process_group()
        self._sockets, self._processes = [], []

    def _send(self, order: Order) -> None:
        body = frame(order)
        for connection in self._sockets:
            connection.sendall(body)

    def _start(self, joining: Joining) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "pagefleet_engine.runner.device.worker", str(theirs.fileno())]
        process = subprocess.Popen([*command, msgspec.json.encode(joining).decode()], pass_fds=[theirs.fileno()])
        theirs.close()
        self._sockets.append(ours)
        self._processes.append(process)
        threading.Thread(target=self._watch, args=(joining.rank, process), daemon=True).start()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """A collective waits for a dead rank for ever, in C: nothing but the process's end gets out of it."""
        status = process.wait()
        if status == EXIT_CONFIGURATION:
            time.sleep(PATIENCE_SECONDS)
        if self._closing:
            return
        sys.stderr.write(self._obituary(rank, status) + "\n")
        sys.stderr.flush()
        os._exit(EXIT_WORKER_DIED)

    def _obituary(self, rank: int, status: int) -> str:
        return f"rank {rank} of {self._size} ended with status {status}: the engine cannot go on"
