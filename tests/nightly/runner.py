"""Runs one job's command with its output in a log, and ends it when the night is stopped or the job hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from nightly.machine import ROOT

TICK_SECONDS = 1.0
# First what a terminal sends: programs then take down what they have started. Seconds until the next.
ENDINGS = ((signal.SIGINT, 90.0), (signal.SIGTERM, 20.0), (signal.SIGKILL, 20.0))


@dataclass
class Stop:
    """Whether the night was told to end."""

    asked: bool = False


class Stopped(Exception):
    """The night was told to end while a job ran; that job has no result."""


@contextmanager
def stopping() -> Iterator[Stop]:
    """Ctrl-C and SIGTERM ask the night to end."""
    stop = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """The variables of a job: tests/ is on the path, and its output reaches the log at once."""
    path = ":".join(filter(None, (str(ROOT / "tests"), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **more}


def as_root(command: Sequence[str], variables: Mapping[str, str], *, is_root: bool) -> list[str]:
    """The command under sudo where this user is not root. sudo drops variables; env sets them again."""
    return list(command) if is_root else ["sudo", "-E", "env", *(f"{k}={v}" for k, v in variables.items()), *command]


def run(
    command: Sequence[str],
    variables: Mapping[str, str],
    log: Path,
    limit_seconds: float,
    tick: Callable[[float], None],
    stop: Stop,
) -> tuple[str, float]:
    """Return "" or how the command failed, and its seconds. `tick` gets the seconds so far. Raises Stopped."""
    began = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        while (elapsed := time.monotonic() - began) < limit_seconds and not stop.asked:
            try:
                status = process.wait(TICK_SECONDS)
            except subprocess.TimeoutExpired:
                tick(elapsed)
                continue
            return (f"exit status {status}" if status else ""), time.monotonic() - began
        end(process)
    if stop.asked:
        raise Stopped
    return f"it did not end within {limit_seconds / 60:.0f} minutes", time.monotonic() - began


def end(process: subprocess.Popen[Any]) -> None:
    """End the command and everything that is still in its process group."""
    for number, seconds in ENDINGS:
        if not _send(process.pid, number):
            return
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            process.poll()
            if not _send(process.pid, 0):
                return
            time.sleep(0.1)


def _send(group: int, number: int) -> bool:
    """Send a signal (0: none) to a process group; False where there is no such group any more."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # the group is sudo's
        subprocess.run(["sudo", "-n", "kill", f"-{number:d}", "--", f"-{group}"], capture_output=True, check=False)
    return True
