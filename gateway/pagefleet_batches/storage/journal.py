"""The answers of one batch: a file to which each line's answer is appended, once.

A row is one line of JSON. What a killed process has written in part, the end of the file without a newline, is cut off when the
file is opened again; that line's request is then sent again. So no line is answered twice in it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from pagefleet_batches.jobs.batch import NO_COUNTS, NO_USAGE, Counts, Usage


class Row(msgspec.Struct, frozen=True):
    """The answer of one line. `record` is its row in the output file, or in the error file where `ok` is false."""

    line: int
    ok: bool
    record: msgspec.Raw
    tokens: tuple[int, int, int, int] = (0, 0, 0, 0)  # input, cached, output, reasoning


@dataclass
class Totals:
    """What a journal holds."""

    answered: set[int]  # numbers of lines
    counts: Counts = NO_COUNTS
    usage: Usage = NO_USAGE

    def add(self, row: Row) -> None:
        self.answered.add(row.line)
        self.counts = Counts(self.counts.completed + row.ok, self.counts.failed + (not row.ok))
        self.usage += Usage(*row.tokens)


class Journal:
    """An open journal. All but `sync` is used from one thread at a time."""

    def __init__(self, file: Path) -> None:
        """Open the file, or make it. Cuts off an end that was written in part."""
        self._file = file
        self.totals = Totals(set())
        whole = 0
        for row, end in _rows(file):
            self.totals.add(row)
            whole = end
        self._stream: BinaryIO = file.open("ab")
        self._stream.truncate(whole)
        self._dirty = False
        self._closing = threading.Lock()  # `sync` runs in a thread of its own

    def append(self, row: Row) -> bool:
        """Write an answer; a second one of a line is dropped. Returns whether it was written. Raises OSError for a full disk."""
        if row.line in self.totals.answered:
            return False
        self._stream.write(msgspec.json.encode(row) + b"\n")
        self._stream.flush()
        self._dirty = True
        self.totals.add(row)
        return True

    def sync(self) -> None:
        """Have the disk keep what was written, for the case that the node loses its power."""
        with self._closing:
            if self._dirty and not self._stream.closed:
                self._dirty = False
                os.fdatasync(self._stream.fileno())

    def records(self, ok: bool) -> Iterator[bytes]:
        """Yield the rows of the output file, or of the error file."""
        for row, _ in _rows(self._file):
            if row.ok == ok:
                yield bytes(row.record) + b"\n"

    def close(self) -> None:
        with self._closing:
            self._stream.close()


def _rows(file: Path) -> Iterator[tuple[Row, int]]:
    """Yield each whole row with the offset of its end. A row of a line that came before is left out."""
    if not file.exists():
        return
    seen: set[int] = set()
    with file.open("rb") as stream:
        end = 0
        for text in stream:
            try:
                row = msgspec.json.decode(text, type=Row) if text.endswith(b"\n") else None
            except msgspec.DecodeError:
                row = None
            if row is None:
                return
            end += len(text)
            if row.line not in seen:
                seen.add(row.line)
                yield row, end
