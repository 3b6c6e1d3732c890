"""The API keys in force: read at start, and again when their file changes. Decides nothing about a request.

A file that becomes invalid changes nothing: the keys before it stay in force, and the log and a metric report it.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from prometheus_client import Gauge

from pagefleet_gateway.limits.api_keys import APIKeys, KeyFileError, parse

log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0
MAX_BYTES = 4 * 1024 * 1024


class Keyring:
    """`keys` is None when no file was given: the gateway then demands none."""

    def __init__(self, file: Path | None, valid: Gauge) -> None:
        """Raises KeyFileError when the file cannot be used. `valid` is 1 while the file's content is in force."""
        self._file, self._valid = file, valid
        self._text, self._invalid = "", False
        self.keys: APIKeys | None = None
        if file is not None:
            self._text = _read(file)
            self.keys = _parsed(file, self._text)
            valid.set(1)

    async def follow(self) -> None:
        """Read the file once a second until cancelled. The kubelet swaps a mounted Secret whole, so it is never half a file."""
        while self._file is not None:
            await asyncio.sleep(PERIOD_SECONDS)
            await self.renew(self._file)
        await asyncio.Event().wait()

    async def renew(self, file: Path) -> None:
        """Read the file now. A new text is parsed beside the event loop: thousands of keys take seconds, and requests go on."""
        try:
            text = self._read(file)
            if text == self._text:
                return
            self._text = text
            self.keys = await asyncio.to_thread(_parsed, file, text)
        except KeyFileError as error:
            if not self._invalid:
                log.error("the API keys read before stay in force: %s", error)
            self._invalid = True
            self._valid.set(0)
        else:
            self._invalid = False
            self._valid.set(1)
            log.info("%d API keys are in force", len(self.keys))

    def _read(self, file: Path) -> str:
        try:
            return _read(file)
        except KeyFileError:
            self._text = ""  # the same text is news when it can be read again
            raise


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise KeyFileError(
            f"PAGEFLEET_GATEWAY_API_KEYS_FILE: the file {file} cannot be read: {error.strerror}"
        ) from error
    if len(data) > MAX_BYTES:
        raise KeyFileError(
            f"PAGEFLEET_GATEWAY_API_KEYS_FILE: the file {file} is larger than {MAX_BYTES // (1024 * 1024)} MiB"
        )
    return data.decode("utf-8", "replace")


def _parsed(file: Path, text: str) -> APIKeys:
    try:
        return parse(text)
    except KeyFileError as error:
        raise KeyFileError(f"PAGEFLEET_GATEWAY_API_KEYS_FILE: {file} {error}") from None
