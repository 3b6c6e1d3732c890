"""Reads what Envoy's filters report of an answer while it passes: its first token, and an error event. Decides nothing.

Envoy writes one line for each into a named pipe: `<request id> <microseconds> <address>`, the time since the request's
last byte and the pod that answered, or `<request id> error <address>`. A line that finds the pipe full is lost. For a first
token the request's access-log line is then the first to have its time.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

PIPE_BYTES = 1024 * 1024  # 10,000 lines; Linux' largest for a process without privileges
READ_BYTES = 64 * 1024
MAX_LINE_BYTES = 256


@dataclass(frozen=True)
class FirstToken:
    """The first token of an answer. `seconds`: since the request's last byte came, time in the gateway's queue included."""

    request_id: str
    seconds: float
    upstream: str  # ip:port of the pod that sent it


@dataclass(frozen=True)
class StreamError:
    """An event after the first token of an answer that is an error: the engine gave the answer up within a 200."""

    request_id: str
    upstream: str


def parse(line: bytes) -> FirstToken | StreamError | None:
    """Read one line; None when it is none (a piece of a longer one)."""
    try:
        request_id, word, upstream = line.decode("ascii").split(" ")
        if word == "error":
            return StreamError(request_id, upstream)
        return FirstToken(request_id, int(word) / 1e6, upstream)
    except ValueError:
        return None


class FirstTokens:
    """The reader of the pipe: create it before Envoy starts, and close it after Envoy has ended."""

    def __init__(self, pipe: Path, on_report: Callable[[FirstToken | StreamError], object]) -> None:
        self._on_report = on_report
        self._rest = b""
        os.mkfifo(pipe, 0o600)
        # For writing too: a pipe without a writer would end the reading.
        self._descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # the limit may be lower: then the pipe keeps its 64 KiB
            fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._read)

    def close(self) -> None:
        """Read no more. Safe to call twice."""
        if self._descriptor < 0:
            return
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-MAX_LINE_BYTES:]
        for line in lines:
            report = parse(line)
            if report is None:
                log.warning("dropped a line of Envoy's first tokens that is none: %r", line[:80])
            else:
                self._on_report(report)
