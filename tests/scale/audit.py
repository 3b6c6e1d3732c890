"""Counts the operator's writes in the API server's audit log. Each line is read once.

With a thousand services the log grows by hundreds of megabytes, and the API server renames it every hundred and deletes the oldest. To read
all of it again at each look would take a core, and what was deleted would be missed in the count.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path

WRITES = ("create", "update", "patch", "delete")


class Writes:
    """The writes of a user so far, without those to objects of `ignored` services ("s1" ignores "s1" and "s1-...")."""

    def __init__(self, logs: Path, user: str, ignored: Collection[str] = ()) -> None:
        self._logs, self._user, self._ignored = logs, user, frozenset(ignored)
        self._read: dict[int, int] = {}  # bytes of each file that were read, by its inode: a renamed file keeps it
        self._total = 0

    def total(self) -> int:
        """Read what is new, and return all writes so far."""
        for path in sorted(self._logs.glob("audit*.log")):
            try:
                file = path.open("rb")
            except FileNotFoundError:  # deleted or renamed a moment ago; a renamed one is read at the next look
                continue
            with file:
                inode = os.fstat(file.fileno()).st_ino
                file.seek(self._read.get(inode, 0))
                while (line := file.readline()).endswith(b"\n"):
                    self._read[inode] = file.tell()
                    self._total += self._counts(line)
        return self._total

    def _counts(self, line: bytes) -> bool:
        if self._user.encode() not in line:
            return False
        event = json.loads(line)
        service = str((event.get("objectRef") or {}).get("name", "")).partition("-")[0]
        return event["user"]["username"] == self._user and event["verb"] in WRITES and service not in self._ignored
