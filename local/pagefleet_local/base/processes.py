"""Daemons that outlive the program that starts them: a pid file with the start time, a log file, a wait on a condition.

A pid alone may be another program's by now; a pid with its start time (field 22 of /proc/PID/stat) is the same process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pagefleet_local.base.paths import Layout

MARK = "PAGEFLEET_LAYOUT"  # in the environment of every process of ours: cleanup finds even those without a pid file


class StartFailed(RuntimeError):
    """A daemon ended or did not become ready; the message holds the end of its log."""


@dataclass(frozen=True)
class Daemon:
    layout: Layout
    name: str

    @property
    def log(self) -> Path:
        return self.layout.logs / f"{self.name}.log"

    @property
    def _pid_file(self) -> Path:
        return self.layout.pids / self.name

    def start(self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        """Start unless it already runs. The daemon has a session of its own and none of our descriptors."""
        if self.pid() is not None:
            return
        self.layout.logs.mkdir(parents=True, exist_ok=True)
        self.layout.pids.mkdir(parents=True, exist_ok=True)
        words = [str(part) for part in command]
        variables = {**os.environ, **(environment or {}), MARK: str(self.layout.state)}
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        pid = os.posix_spawnp(words[0], words, variables, file_actions=files, setsid=True)
        self._pid_file.write_text(f"{pid} {started(pid) or 0}")

    def pid(self) -> int | None:
        """The process id while it runs, else None."""
        try:
            pid, start = map(int, self._pid_file.read_text().split())
        except (OSError, ValueError):
            return None
        return pid if started(pid) == start else None

    def wait(self, ready: Callable[[], bool], timeout: float) -> None:
        """Wait until `ready`. Raises StartFailed when the process ends first or after `timeout` seconds."""
        end = time.monotonic() + timeout
        while not ready():
            if self.pid() is None:
                raise StartFailed(f"{self.name} ended at its start; the end of {self.log}:\n{self.tail()}")
            if time.monotonic() > end:
                raise StartFailed(
                    f"{self.name} is not ready after {timeout:.0f} s; the end of {self.log}:\n{self.tail()}"
                )
            time.sleep(0.1)

    def stop(self, grace: float = 10.0) -> None:
        """SIGTERM, then SIGKILL after `grace` seconds."""
        pid = self.pid()
        if pid is not None:
            end_process(pid, grace)
        self._pid_file.unlink(missing_ok=True)

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""


def started(pid: int) -> int | None:
    """The start time of a living process in clock ticks since boot, None for a dead one or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def end_process(pid: int, grace: float) -> None:
    """End one process and wait until it is gone."""
    start = started(pid)
    for number, limit in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        end = time.monotonic() + limit
        while start is not None and started(pid) == start:
            _reap(pid)
            if time.monotonic() > end:
                break
            time.sleep(0.05)
        else:
            return


def marked(layout: Layout) -> list[int]:
    """Every living process that carries this layout's mark in its environment, but this one."""
    mark = f"{MARK}={layout.state}".encode()
    processes = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0") and started(int(entry.name)) is not None:
                processes.append(int(entry.name))
    return processes


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
