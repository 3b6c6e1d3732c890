"""Turns a storm of alerts into few writes.

Alerts that arrive for a service while a write is under way wait together for the next write. An alert that is stored
already is not stored again. A request is answered only after the write that holds its alerts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from pagefleet_operator.domain.status.status import AlertRecord
from pagefleet_operator.kube.store import ServiceKey

Identity = tuple[str, float, bool]
KNOWN_SECONDS = 5.0  # how long a stored alert counts as stored without reading the status again
PAUSE_SECONDS = 0.2  # between two writes for one service
MAX_SERVICES = 10_000


class Coalescer:
    """`keep` stores alerts in one service's status and returns how many it stored; it raises when they are not stored."""

    def __init__(self, keep: Callable[[str, str, list[AlertRecord]], Awaitable[int]]) -> None:
        self._keep = keep
        self._locks: dict[ServiceKey, asyncio.Lock] = {}
        self._waiting: dict[ServiceKey, dict[Identity, AlertRecord]] = {}
        self._known: dict[ServiceKey, dict[Identity, float]] = {}
        self._written: dict[ServiceKey, float] = {}

    async def add(self, namespace: str, service: str, alerts: Iterable[AlertRecord]) -> None:
        """Return when all of `alerts` are stored. Raises the exception of the write that failed."""
        key, now = (namespace, service), time.monotonic()
        known = self._known.get(key, {})
        fresh = {identity(a): a for a in alerts if now - known.get(identity(a), -KNOWN_SECONDS) >= KNOWN_SECONDS}
        if not fresh:
            return
        self._waiting.setdefault(key, {}).update(fresh)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if not any(one in self._waiting.get(key, {}) for one in fresh):
                if all(one in self._known.get(key, {}) for one in fresh):
                    return  # another request has stored them meanwhile
                self._waiting.setdefault(key, {}).update(fresh)  # another request's write failed: this one tries again
            await self._write(key)

    async def _write(self, key: ServiceKey) -> None:
        pause = PAUSE_SECONDS - (time.monotonic() - self._written.get(key, -PAUSE_SECONDS))
        if pause > 0:
            await asyncio.sleep(pause)
        taken = self._waiting.pop(key, {})
        await self._keep(*key, list(taken.values()))
        now = time.monotonic()
        if len(self._known) >= MAX_SERVICES:
            self._known.clear()
        stored = {one: at for one, at in self._known.get(key, {}).items() if now - at < KNOWN_SECONDS}
        self._known[key] = {**stored, **dict.fromkeys(taken, now)}
        self._written[key] = now


def identity(alert: AlertRecord) -> Identity:
    return alert.fingerprint, alert.starts_at, alert.resolved
