"""API keys: of a file, read again when it changes as mounted Secrets do, and of PAGEFLEET_API_KEYS."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

from aiohttp import web

from pagefleet_engine.api.base.errors import ApiError
from pagefleet_engine.api.base.logs import log

VARIABLE = "PAGEFLEET_API_KEYS"
OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})


class Keys:
    """The keys that are valid now. Without a file and without keys from the environment everybody may enter."""

    def __init__(self, file: Path | None, environment: str = "") -> None:
        """`environment`: keys separated by commas or spaces. Raises OSError when the file cannot be read."""
        self._file = file
        self._fixed = [_digest(key) for key in re.split(r"[,\s]+", environment) if key]
        self._state_read: tuple[int, int, int] | None = None
        self._of_file: list[bytes] = []
        if file is not None:
            self._state_read = _state(file)
            self._of_file = _keys(file)

    @property
    def needed(self) -> bool:
        return self._file is not None or bool(self._fixed)

    def check(self, request: web.Request) -> None:
        """Raises ApiError (401)."""
        if not self.needed or request.path in OPEN_PATHS:
            return
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        if "Authorization" not in request.headers:  # Anthropic's clients
            scheme, key = "bearer", request.headers.get("X-Api-Key", "")
        if scheme.lower() != "bearer" or not key:
            raise ApiError(401, "an API key is needed: send Authorization: Bearer KEY", code="missing_api_key")
        if not self.valid(key.strip()):
            raise ApiError(401, "the API key is not valid", code="invalid_api_key")

    def valid(self, key: str) -> bool:
        """Compares with every key, in constant time."""
        self._refresh()
        digest, valid = _digest(key), False
        for known in [*self._fixed, *self._of_file]:
            valid |= hmac.compare_digest(known, digest)
        return valid

    def _refresh(self) -> None:
        """Read the file again when it has changed; keys stay as they are while it cannot be read."""
        if self._file is None:
            return
        try:
            state = _state(self._file)
            if state != self._state_read:
                self._of_file, self._state_read = _keys(self._file), state
                log("info", f"read {len(self._of_file)} API keys")
        except (OSError, UnicodeDecodeError) as error:
            log("error", f"the API keys cannot be read: {error}")


def _state(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_mtime_ns, status.st_ino, status.st_size


def _keys(file: Path) -> list[bytes]:
    return [_digest(line.strip()) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _digest(key: str) -> bytes:
    """Hash a key to a fixed length, so that a comparison reveals nothing of it."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
