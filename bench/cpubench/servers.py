"""Runs one system as a process group of its own, watches what it takes, and always ends it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil

from cpubench.measures import Process
from cpubench.systems import System

READY_SECONDS = 600.0
IDLE_SECONDS = 5.0
STOP_SECONDS = 10.0


class Running:
    """A started system and everything it has started. `rss` is the most resident memory measured, in bytes.

    Pages that two processes of the tree share are counted twice.
    """

    def __init__(self, system: System, process: subprocess.Popen[Any], port: int) -> None:
        self.system, self.process, self.port = system, process, port
        self.rss, self.ready_s, self.idle_cpu = 0, 0.0, 0.0
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._watched, daemon=True)
        self._watch.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def measured(self) -> Process:
        return Process(self.ready_s, self.idle_cpu, self.rss / 2**20)

    def tree(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_seconds(self) -> float:
        total = 0.0
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def rest(self) -> None:
        """Takes the idle CPU: what the ready system uses while nothing is asked of it."""
        before, start = self.cpu_seconds(), time.monotonic()
        time.sleep(IDLE_SECONDS)
        self.idle_cpu = 100 * (self.cpu_seconds() - before) / (time.monotonic() - start)

    def stop(self) -> None:
        """Ends the process group, then whatever of the tree left the group."""
        self._ended.set()
        self._watch.join()
        tree = self.tree()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(tree, STOP_SECONDS)

    def _watched(self) -> None:
        while not self._ended.wait(0.2):
            total = 0
            for process in self.tree():
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += process.memory_info().rss
            self.rss = max(self.rss, total)


@contextlib.contextmanager
def running(system: System, log: Path) -> Iterator[Running]:
    """The system, ready. Raises RuntimeError with the end of its log when it does not become so."""
    port = free_port()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        start = time.monotonic()
        process = subprocess.Popen(
            system.command(port),
            stdin=subprocess.DEVNULL if system.streams else subprocess.PIPE,
            stdout=output if system.streams else subprocess.PIPE,
            stderr=output,
            text=True,
            env={**os.environ, **system.environment},
            start_new_session=True,
        )
        served = Running(system, process, port)
        try:
            while not ready(served):
                if process.poll() is not None or time.monotonic() - start > READY_SECONDS:
                    raise RuntimeError(f"{system.name} did not become ready; its log ends:\n{tail(log)}")
                time.sleep(0.05)
            served.ready_s = time.monotonic() - start
            served.rest()
            yield served
        finally:
            served.stop()


def ready(served: Running) -> bool:
    if not served.system.streams:
        return line(served.process.stdout, READY_SECONDS) == "ready"
    try:
        with urllib.request.urlopen(served.url + served.system.ready_path, timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def line(stream: IO[str] | None, seconds: float) -> str:
    """The next line of a pipe, empty at its end. Raises TimeoutError when none begins in so many seconds."""
    if stream is None:
        return ""
    if not select.select([stream], [], [], seconds)[0]:
        raise TimeoutError(f"no output in {seconds:.0f} s")
    return stream.readline().strip()


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
