"""Turns a storm of alerts into few writes.

Alerts that arrive for a service while a write is under way wait together for the next write. An alert that is stored
already is not stored again. A request is answered only after the write that holds its alerts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pagefleet_operator.domain.status.status import AlertRecord
from pagefleet_operator.kube.store import ServiceKey

Identity = tuple[str, float, bool]
KNOWN_SECONDS = 5.0  # how long a stored alert counts as stored without reading the status again
PAUSE_SECONDS = 0.2  # between two writes for one service
MAX_SERVICES = 10_000


@dataclass(frozen=True)
class _Known:
    """An alert that was handled at `time` (monotonic). `matched` is False when the service takes no such alert."""

    time: float
    matched: bool


class Coalescer:
    """`keep` stores alerts in one service's status and returns the identities of those that concern the service; it raises
    when they are not stored."""

    def __init__(self, keep: Callable[[str, str, list[AlertRecord]], Awaitable[Collection[Identity]]]) -> None:
        self._keep = keep
        self._locks: dict[ServiceKey, asyncio.Lock] = {}
        self._waiting: dict[ServiceKey, dict[Identity, AlertRecord]] = {}
        self._known: dict[ServiceKey, dict[Identity, _Known]] = {}
        self._written: dict[ServiceKey, float] = {}

    async def add(self, namespace: str, service: str, alerts: Sequence[AlertRecord]) -> int:
        """Return when all of `alerts` are handled: how many of them concern the service and are stored. Raises the exception
        of the write that failed."""
        key, now = (namespace, service), time.monotonic()
        known = dict(self._known.get(key, {}))
        fresh = {
            name: alert
            for alert in alerts
            if (name := identity(alert)) not in known or now - known[name].time >= KNOWN_SECONDS
        }
        if fresh:
            known |= await self._handled(key, fresh)
        return sum(known[identity(alert)].matched for alert in alerts)

    async def _handled(self, key: ServiceKey, fresh: Mapping[Identity, AlertRecord]) -> dict[Identity, _Known]:
        """Write alerts together with those that wait, unless another request's write has stored them meanwhile."""
        asked = time.monotonic()
        self._waiting.setdefault(key, {}).update(fresh)
        async with self._locks.setdefault(key, asyncio.Lock()):
            known = self._known.get(key, {})
            handled = {name: known[name] for name in fresh if name in known and known[name].time >= asked}
            left = {name: alert for name, alert in fresh.items() if name not in handled}
            if left:  # they still wait, or the write of another request that took them has failed
                self._waiting.setdefault(key, {}).update(left)
                handled |= await self._write(key)
            return handled

    async def _write(self, key: ServiceKey) -> dict[Identity, _Known]:
        pause = PAUSE_SECONDS - (time.monotonic() - self._written.get(key, -PAUSE_SECONDS))
        if pause > 0:
            await asyncio.sleep(pause)
        taken = self._waiting.pop(key, {})
        matched = await self._keep(*key, list(taken.values()))
        now = time.monotonic()
        if len(self._known) >= MAX_SERVICES:
            self._known.clear()
        recent = {name: one for name, one in self._known.get(key, {}).items() if now - one.time < KNOWN_SECONDS}
        handled = {name: _Known(now, name in matched) for name in taken}
        self._known[key] = {**recent, **handled}
        self._written[key] = now
        return handled


def identity(alert: AlertRecord) -> Identity:
    return alert.fingerprint, alert.starts_at, alert.resolved
