"""The list/watch loop: keeps a copy of the API server's objects of one kind up to date. Never writes to the API server.

It lists in chunks and watches from the list's resourceVersion, with bookmarks. A watch that fails starts again where it
stopped, after a growing pause. A resourceVersion that is too old (410) leads to a new list. A connection that is silently dead
ends after GUARD_SECONDS. While the API server is away the last copy stays in force.

A request is a call of the Kubernetes client library (kubernetes.aio, `..._without_preload_content`), passed in by the caller, so
that this module imports no client.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger(__name__)

WATCH_SECONDS = 30  # the server ends a watch after this; the next one continues from there
GUARD_SECONDS = 35.0  # without a byte for this long the connection is dead
SHORT_SECONDS = 1.0  # a watch that ends sooner, without an event, has failed: it must not be repeated in a hot loop
CHUNK = 500  # objects in one answer of a list
# Seconds. A pod that became ready while the API server was away is served only after the next watch: no long pauses.
FIRST_PAUSE, GONE_PAUSE, LAST_PAUSE = 0.2, 0.5, 2.0
ABSENT_PAUSE = 5.0  # seconds until a kind that need not be served is asked for again

Raw = Mapping[str, object]


class Lines(Protocol):
    async def readline(self) -> bytes: ...


class Response(Protocol):
    """What is used of aiohttp's response."""

    @property
    def status(self) -> int: ...
    @property
    def content(self) -> Lines: ...
    async def text(self) -> str: ...


Request = Callable[..., Awaitable[AbstractAsyncContextManager[Response]]]


class ReflectorError(RuntimeError):
    """The API server answered with an error, or not with JSON."""


class AbsentError(ReflectorError):
    """The API server does not serve this kind."""


class ForbiddenError(ReflectorError):
    """The API server does not let this account read the kind."""


class GoneError(ReflectorError):
    """The resourceVersion is too old: the objects must be listed again."""


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Feed:
    """One kind of object: how it is requested and where it goes.

    `request` takes the client library's arguments of a list. `replace` gets a whole list, `upsert` and `remove` one object
    each. `required`: whether the kind must be served. Readiness waits for the first list, and of a kind that is not required
    for the answer that it is not served: that is no failure, and the kind may come at any time. `may_be_forbidden`: a kind that this
    account may not read is as one that is not served, with a warning. `on_absent` is called when a kind is not served or not
    readable and need not be. `on_list` and `on_restart` are for counting.
    """

    kind: str
    request: Request
    replace: Callable[[list[Raw]], None]
    upsert: Callable[[Raw], None]
    remove: Callable[[Raw], None]
    required: bool = True
    may_be_forbidden: bool = False
    on_absent: Callable[[], None] = _nothing
    on_list: Callable[[], None] = _nothing
    on_restart: Callable[[], None] = _nothing


class Reflector:
    """Follows one feed. `errors` are the exceptions by which the client reports a failed connection, beside OSError."""

    def __init__(self, feed: Feed, errors: type[Exception] = OSError) -> None:
        self.synced = False  # True once a list has been applied, or is known to be missing
        self._feed = feed
        self._errors = (ReflectorError, OSError, TimeoutError, ValueError, errors)
        self._version = ""
        self._pause = FIRST_PAUSE  # grows with each failure, until the server sends something again
        self._absent = False  # the server does not serve the kind

    async def run(self) -> None:
        """Follow the feed until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                self._pause = FIRST_PAUSE
                continue
            except GoneError as error:
                log.info("%s: listing again: %s", self._feed.kind, error)
                self._version = ""
                self._pause = min(self._pause, GONE_PAUSE)  # the server answers
            except self._errors as error:
                if self._does_without(error):
                    self._note_absence(error)
                    await asyncio.sleep(ABSENT_PAUSE * random.uniform(0.5, 1.0))  # noqa: S311 - spreads requests
                    continue
                self._feed.on_restart()
                log.warning("%s: watch interrupted: %s", self._feed.kind, error or type(error).__name__)
            await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads reconnects
            self._pause = min(self._pause * 2, LAST_PAUSE)

    def _does_without(self, error: Exception) -> bool:
        """Whether an answer means that there is nothing to follow now, and that this is no failure."""
        absent = isinstance(error, AbsentError) and not self._feed.required
        return absent or (isinstance(error, ForbiddenError) and self._feed.may_be_forbidden)

    def _note_absence(self, error: Exception) -> None:
        if not self._absent:
            level = logging.WARNING if isinstance(error, ForbiddenError) else logging.INFO
            what = "does not let this account list" if isinstance(error, ForbiddenError) else "does not serve"
            log.log(
                level, "%s: the API server %s this kind; it is asked again every few seconds", self._feed.kind, what
            )
        self._absent, self._version, self._pause = True, "", FIRST_PAUSE
        self._feed.on_absent()
        self.synced = True

    async def _list(self) -> None:
        items: list[Raw] = []
        token: str | None = None
        while True:
            async with asyncio.timeout(GUARD_SECONDS):
                async with await self._feed.request(limit=CHUNK, _continue=token) as response:
                    document = await _checked(response)
            chunk, metadata = document.get("items"), document.get("metadata")
            if not isinstance(chunk, list) or not isinstance(metadata, dict) or "resourceVersion" not in metadata:
                raise ReflectorError(f"not a list: {str(document)[:200]}")
            items.extend(chunk)
            token = metadata.get("continue")
            if not token:
                break
        self._feed.replace(items)
        self._version = str(metadata["resourceVersion"])
        self.synced, self._absent = True, False
        self._feed.on_list()
        log.info("%s: %d listed at resourceVersion %s", self._feed.kind, len(items), self._version)

    async def _watch(self) -> None:
        async with asyncio.timeout(GUARD_SECONDS):
            opened = await self._feed.request(
                watch=True,
                resource_version=self._version,
                allow_watch_bookmarks=True,
                timeout_seconds=WATCH_SECONDS,
            )
        began, events = time.monotonic(), 0
        async with opened as response:
            if response.status != 200:
                await _checked(response)
            while True:
                async with asyncio.timeout(GUARD_SECONDS):
                    line = await response.content.readline()
                if not line:
                    break
                self._apply(json.loads(line))
                self._pause = FIRST_PAUSE
                events += 1
        if not events and time.monotonic() - began < SHORT_SECONDS:
            raise ReflectorError("the watch ended at once, without an event")

    def _apply(self, event: object) -> None:
        raw = event.get("object") if isinstance(event, Mapping) else None
        if not isinstance(event, Mapping) or not isinstance(raw, Mapping):
            raise ReflectorError(f"an event without an object: {str(event)[:200]}")
        match event.get("type"):
            case "ADDED" | "MODIFIED":
                self._feed.upsert(raw)
            case "DELETED":
                self._feed.remove(raw)
            case "BOOKMARK":
                pass
            case "ERROR":
                code = raw.get("code")
                _raise(code if isinstance(code, int) else 0, str(raw.get("message")))
            case kind:
                raise ReflectorError(f"an event of unknown type {kind!r}")
        metadata = raw.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, Mapping) else None
        if isinstance(version, str) and version:
            self._version = version


async def _checked(response: Response) -> dict[str, object]:
    text = await response.text()
    if response.status != 200:
        _raise(response.status, text[:300])
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ReflectorError(f"not an object: {text[:200]}")
    return document


def _raise(code: int, message: str) -> None:
    if code == 410:
        raise GoneError(message)
    if code == 404:
        raise AbsentError(f"{code}: {message}")
    if code == 403:
        raise ForbiddenError(f"{code}: {message}")
    raise ReflectorError(f"{code}: {message}")
