"""Starts the processes of this machine's ranks, sends orders to their sockets and watches them. Callers decide what
the end of a process means.

Nothing here waits for a rank: the ranks synchronise in their collectives.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import msgspec
import torch
from torch import distributed
from torch._C._distributed_c10d import Store

from pagefleet_engine.runner.device.ranks.wire import Joining

EXIT_CONFIGURATION = 78
EXIT_WORKER_DIED = 70
SAME_ERROR_SECONDS = 30.0  # rank 0 raises the same error as a worker within this time, and reports it better


def device_of(kind: str, local: int) -> torch.device:
    return torch.device("cuda", local) if kind == "cuda" else torch.device(kind)


def meet(joining: Joining, store: Store) -> None:
    """Join the ranks' group. On one machine gloo must not resolve the machine's name."""
    if joining.engine.nodes == 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    cuda = joining.device == "cuda"
    if cuda:
        torch.cuda.set_device(joining.local)
    distributed.init_process_group("nccl" if cuda else "gloo", store=store, rank=joining.rank, world_size=joining.size)


class Processes:
    """Calls `ended` with a rank and its process's exit status, in a thread of its own; not after `close` has begun."""

    def __init__(self, ended: Callable[[int, int], None]) -> None:
        self._ended = ended
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._sockets: list[socket.socket] = []
        self._closing = False

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def start(self, joining: Joining) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "pagefleet_engine.runner.device.ranks.worker", str(theirs.fileno())]
        process = subprocess.Popen([*command, msgspec.json.encode(joining).decode()], pass_fds=[theirs.fileno()])
        theirs.close()
        self._sockets.append(ours)
        self._processes[joining.rank] = process
        threading.Thread(target=self._watch, args=(joining.rank, process), daemon=True).start()

    def send(self, body: bytes) -> None:
        for connection in self._sockets:
            connection.sendall(body)

    def dead(self) -> tuple[int, int] | None:
        """A rank whose process has ended, and its exit status."""
        for rank, process in self._processes.items():
            if (status := process.poll()) is not None:
                return rank, status
        return None

    def close(self, timeout: float | None = None) -> None:
        """Close the sockets, at which ranks end; kill those that still run after `timeout` seconds."""
        self._closing = True
        for connection in self._sockets:
            connection.close()
        for process in self._processes.values():
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._sockets, self._processes = [], {}

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Wait for the process. A collective waits for a dead rank for ever, in C, so only the end of the process shows it."""
        status = process.wait()
        if not self._closing:
            self._ended(rank, status)
