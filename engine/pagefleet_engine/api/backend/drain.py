"""The drain: open requests are finished, requests that still arrive at first are served, and then the server ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from pagefleet_engine.api.base.logs import log

# A pod stays in endpoints and gateways' lists for a moment after it was asked to end.
STILL_ACCEPTING_SECONDS = 2.0


class Drain:
    """`over` is set when the last request has ended, at the latest `timeout` seconds after `begin`."""

    def __init__(self, timeout: float, open_requests: Callable[[], int]) -> None:
        self._timeout, self._open = timeout, open_requests
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self.since: float | None = None
        self.over = asyncio.Event()

    @property
    def refuses(self) -> bool:
        return self.since is not None and time.monotonic() - self.since > STILL_ACCEPTING_SECONDS

    def count(self, change: int) -> None:
        """Count requests that began, or with -1 ended."""
        self._active += change
        if self._active:
            self._idle.clear()
        else:
            self._idle.set()

    def begin(self) -> None:
        if self.since is None:
            self.since = time.monotonic()
            log("info", f"draining: {self._open()} requests are open")
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await asyncio.sleep(min(STILL_ACCEPTING_SECONDS, self._timeout))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), max(0.0, self._timeout - STILL_ACCEPTING_SECONDS))
        log("warning" if self._active else "info", f"drained: {self._active} requests are left")
        self.over.set()
