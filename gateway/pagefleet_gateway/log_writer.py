"""Writes lines of a log in a thread, so that a reader who stalls stalls nothing else.

Lines wait in a queue of at most MAX_BYTES. What does not fit is dropped and counted: a gateway without a log is better than
one that answers nobody. A line is written whole or not at all.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable

MAX_BYTES = 16 * 1024 * 1024
BATCH_BYTES = 64 * 1024


class LogWriter:
    """A writer to one file descriptor."""

    def __init__(self, descriptor: int, on_drop: Callable[[], object] = lambda: None) -> None:
        """`on_drop` is called for each line that is dropped, by the thread that wrote it."""
        self.on_drop = on_drop
        self._descriptor = descriptor
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"log to descriptor {descriptor}", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Queue a line that ends in a newline. Never waits for the reader."""
        with self._changed:
            fits = self._bytes + len(line) <= MAX_BYTES and not self._ended
            if fits:
                self._lines.append(line)
                self._bytes += len(line)
                self._changed.notify()
        if not fits:
            self.on_drop()

    def close(self, seconds: float) -> None:
        """Write what is queued, for at most so long, and end. Later lines are dropped."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(seconds)

    @property
    def alive(self) -> bool:
        """Whether the thread still writes, or waits for lines."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while batch := self._next():
            rest = memoryview(batch)
            while rest:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except OSError:
                    break  # the reader is gone; further lines find that out again
            with self._changed:
                self._bytes -= len(batch)

    def _next(self) -> bytes:
        """Wait for lines and return some of them; b"" at the end."""
        with self._changed:
            while not self._lines and not self._ended:
                self._changed.wait()
            batch, size = [], 0
            while self._lines and size < BATCH_BYTES:
                line = self._lines.popleft()
                batch.append(line)
                size += len(line)
            return b"".join(batch)


class WriterHandler(logging.Handler):
    """Sends the records of `logging` through a LogWriter."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.write(self.format(record).encode("utf-8", "backslashreplace") + b"\n")
        except Exception:
            self.handleError(record)


class JSONLines(logging.Formatter):
    """Formats log records as JSON lines, like those of the access log."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return json.dumps(document)
