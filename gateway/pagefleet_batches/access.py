"""Who may use this server: those whom the gateway lets in. Reads the gateway's file of keys, and asks the gateway whether it demands any.

Where the gateway demands keys and this server has not read them, nobody gets in: files would be everybody's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from prometheus_client import Gauge

from pagefleet_batches.jobs.errors import ApiError
from pagefleet_gateway.limits.api_keys import APIKey, KeyFileError
from pagefleet_gateway.limits.keyring import Keyring
from pagefleet_gateway.picking.routing import Refusal, client_key

log = logging.getLogger(__name__)

PERIOD_SECONDS, UNREADY_SECONDS = 30.0, 1.0  # between two questions: while this server works, and while it does not
# What the gateway answers to a request without a model: its picker demands no key; it demands one; it demands the client's name.
OPEN, NO_KEY, NO_CLIENT = 400, 401, 403


class Access:
    """`probe` asks the gateway with a key and returns its status. `reason`: why this server cannot work now, "" when it can."""

    def __init__(
        self, keys_file: Path | None, own_key_file: Path | None, probe: Callable[[str], Awaitable[int]], valid: Gauge
    ) -> None:
        """Raises KeyFileError for a file of keys that cannot be used. A file that is not there is read when it comes."""
        self._keys_file, self._own_key_file, self._probe, self._valid = keys_file, own_key_file, probe, valid
        self._keyring: Keyring | None = None
        self._told = False  # whether the gateway has ever told
        self.own_key = ""
        self.reason = "the gateway was not asked yet whether it demands API keys"
        self.read()

    def read(self) -> None:
        """Read the files that are there. Raises KeyFileError for keys that cannot be used."""
        if self._keyring is None and self._keys_file is not None and self._keys_file.exists():
            self._keyring = Keyring(self._keys_file, self._valid)
        if self._own_key_file is not None and self._own_key_file.exists():
            key = next(iter(self._own_key_file.read_bytes().split()), b"").decode("utf-8", "replace")
            if not (key.isascii() and key.isprintable()):
                raise KeyFileError(
                    f"PAGEFLEET_BATCHES_KEY_FILE: {self._own_key_file} must have a key of printable ASCII characters"
                )
            self.own_key = key

    async def follow(self) -> None:
        """Read the files and ask the gateway again and again, until cancelled."""
        following: asyncio.Task[None] | None = None
        try:
            while True:
                try:
                    self.read()
                except KeyFileError as error:
                    log.error("%s", error)
                if following is None and self._keyring is not None:
                    following = asyncio.create_task(self._keyring.follow())
                await self.check()
                await asyncio.sleep(UNREADY_SECONDS if self.reason else PERIOD_SECONDS)
        finally:
            if following is not None:
                following.cancel()

    async def check(self) -> None:
        """Ask the gateway once."""
        known = self._keyring is not None
        status = await self._probe(self.own_key if known else "")
        if status not in (OPEN, NO_KEY, NO_CLIENT):
            if not self._told:
                self._set(f"the gateway does not answer (status {status})" if status else "the gateway does not answer")
            return  # what it told before is still true, as far as anybody knows
        self._told = True
        if status == NO_KEY and not known:
            self._set("the gateway demands API keys, and PAGEFLEET_GATEWAY_API_KEYS_FILE names no file that is there")
        elif status == NO_KEY:
            self._set(
                "the gateway does not know this server's key (PAGEFLEET_BATCHES_KEY_FILE): its file of keys must have it, with"
                " actsForClients: true"
            )
        elif known and status == OPEN:
            self._set("this server's key does not act for clients: its entry in the gateway's file of keys needs actsForClients: true"
                      if self.own_key else "this server has a file of API keys, and the gateway demands none")  # fmt: skip
        elif status == NO_CLIENT and not known:
            self._set("the gateway refuses requests without a key")
        else:
            self._set("")

    @property
    def line_key(self) -> str:
        """Return the key that lines carry, "" where the gateway demands none."""
        return self.own_key if self._keyring is not None else ""

    def scope(self, client: str) -> str:
        """Return the services that a client's key may ask, as one text; "" for all, and where nobody needs a key."""
        key = None if self._keyring is None or self._keyring.keys is None else self._keyring.keys.named(client)
        return "" if key is None else ",".join(sorted({*key.namespaces, *map("/".join, key.services)}))

    def _set(self, reason: str) -> None:
        if reason != self.reason:
            log.info("%s", reason or "the gateway lets this server send lines")
        self.reason = reason

    def client(self, headers: Mapping[str, str]) -> APIKey | None:
        """Return the client's key; None where nobody needs one. Header names are lower case. Raises ApiError."""
        if self.reason:
            raise ApiError(503, "batches_unavailable", f"the batches server cannot work: {self.reason}", retry_after=5)
        key = client_key(None if self._keyring is None else self._keyring.keys, headers)
        if isinstance(key, Refusal):
            raise ApiError(key.status, key.code, key.message, key.param)
        return key
