"""Runs the commands of a part, hands its lines on as they come, and ends it with all that it has started."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from nightly.runner import end, environment
from suite.parts import Part

STOPPED = "stopped"
# What pytest prints of an assertion and in its summary, and mypy of a type.
CAUSE = re.compile(r"E   |FAILED |ERROR |.*: error: ")
CAUSE_LINES, CAUSE_CHARACTERS = 30, 300


@dataclass(frozen=True)
class Outcome:
    """`how` says how the part failed, and is empty where it passed. `causes` are the last lines that say what failed."""

    how: str
    seconds: float
    causes: tuple[str, ...] = ()


class Runner:
    """Runs parts, each in a thread of its caller's. `show` gets the name of the part and a line; any thread calls it."""

    def __init__(self, show: Callable[[str, str], None]) -> None:
        self._show, self._lock = show, threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, part: Part, options: Sequence[str]) -> Outcome:
        """Run every command of a part, also after one that failed."""
        began, failed = time.monotonic(), list[str]()
        causes = deque[str](maxlen=CAUSE_LINES)
        for number, command in enumerate(part.commands(options), 1):
            process = self._started(part, command)
            if process is None:
                return Outcome(STOPPED, time.monotonic() - began)
            if process.stdout is None:
                raise RuntimeError("the command has no pipe")
            with process.stdout:
                for line in process.stdout:
                    self._show(part.name, line.rstrip("\n"))
                    if CAUSE.match(line):
                        causes.append(line.rstrip("\n")[:CAUSE_CHARACTERS])
            if status := process.wait():
                failed.append(f"run {number}: exit status {status}")
            with self._lock:
                self._running.discard(process)
        how = STOPPED if self._stopped else "; ".join(failed)
        return Outcome(how, time.monotonic() - began, tuple(causes) if failed else ())

    def stop(self) -> None:
        """End everything that runs, and start nothing more."""
        with self._lock:
            self._stopped, running = True, list(self._running)
        with ThreadPoolExecutor(max(1, len(running))) as pool:
            list(pool.map(end, running))

    def _started(self, part: Part, command: Sequence[str]) -> subprocess.Popen[str] | None:
        caller = {} if part.root else _caller()
        with self._lock:
            if self._stopped:
                return None
            process = subprocess.Popen(
                command, env={**os.environ, **environment({})}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True, **caller,
            )  # fmt: skip
            self._running.add(process)
        return process


def _caller() -> dict[str, int]:
    """Return the user who called sudo: files that tests write without root stay that user's."""
    if os.geteuid() != 0 or "SUDO_UID" not in os.environ:
        return {}
    return {"user": int(os.environ["SUDO_UID"]), "group": int(os.environ["SUDO_GID"])}
