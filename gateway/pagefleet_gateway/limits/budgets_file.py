"""The file in which a gateway keeps the counters of budgets.py, so that they outlive its process. Decides nothing.

It holds the counters of every process that this gateway knows, as JSON. A gateway adds what the file has before it replaces it. So
several gateways may share one file, and an older file takes nothing back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path

import msgspec

from pagefleet_gateway.limits.budgets import Budgets

log = logging.getLogger(__name__)

PERIOD_SECONDS = 2.0
MAX_BYTES = 64 * 1024 * 1024


class BudgetsFile:
    """`file` None: nothing is kept. A file that cannot be read or written is logged once, and the gateway serves on."""

    def __init__(self, file: Path | None, budgets: Budgets) -> None:
        self._file, self._budgets = file, budgets
        self._written, self._failing = b"", False
        self._writing = threading.Lock()  # the last write waits for one that is under way, so that it is the last
        self._read()

    async def follow(self) -> None:
        """Write the counters every two seconds, when they have changed, until cancelled."""
        while self._file is not None:
            await asyncio.sleep(PERIOD_SECONDS)
            if (text := self._text()) != self._written:
                # Beside the event loop: a volume of a network may be slow.
                self._report(await asyncio.to_thread(self._exchange, self._file, text), text)
        await asyncio.Event().wait()

    def save(self) -> None:
        """Write the counters now, when the gateway ends."""
        if self._file is not None:
            text = self._text()
            self._report(self._exchange(self._file, text), text)

    def _text(self) -> bytes:
        # With thousands of keys a slower encoder stops the picks for a quarter of a second, each time.
        return msgspec.json.encode(self._budgets.all())

    def _exchange(self, file: Path, text: bytes) -> object:
        with self._writing:
            return _exchange(file, text)

    def _read(self) -> None:
        if self._file is not None:
            try:
                self._budgets.hear(_parsed(self._file) if self._file.exists() else {})
            except (OSError, ValueError) as error:
                self._report(error, b"")

    def _report(self, result: object, text: bytes) -> None:
        if isinstance(result, Exception):
            if not self._failing:
                log.error(
                    "PAGEFLEET_GATEWAY_BUDGETS_FILE: the tokens of the month are not kept in %s: %s", self._file, result
                )
            self._failing = True
            return
        self._written, self._failing = text, False
        self._budgets.hear(result)


def _exchange(file: Path, text: bytes) -> object:
    """Write `text` together with what another gateway may have written, and return that; an error where it failed."""
    try:
        known = _parsed(file) if file.exists() else {}
    except ValueError:
        known = {}  # it is replaced
    except OSError as error:
        return error
    merged = Budgets()
    merged.hear(known)
    merged.hear(msgspec.json.decode(text))
    # Each process writes a file of its own and renames it: no reader sees half a file.
    new = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        new.write_bytes(msgspec.json.encode(merged.all()))
        new.replace(file)
    except OSError as error:
        return error
    return known


def _parsed(file: Path) -> object:
    """Read the file. Raises OSError, and ValueError for one that is no JSON or too large."""
    with file.open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES // (1024 * 1024)} MiB")
    try:
        return msgspec.json.decode(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
