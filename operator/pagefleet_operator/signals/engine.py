"""Reads queue depth and KV pages from an engine pod's /metrics. A reading is whole and sane, or there is none."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from pagefleet_operator.domain.build.names import PORT
from pagefleet_operator.signals.bounded import TooLongError, body

TIMEOUT_SECONDS = 2.0
FRESH_SECONDS = 1.0  # a pod is asked at most this often
MOST_BYTES = 4 << 20
GAUGES = {
    "pagefleet_num_requests_waiting": "waiting",
    "pagefleet_num_requests_running": "running",
    "pagefleet_kv_pages": "total",
    "pagefleet_kv_pages_free": "free",
    "pagefleet_kv_pages_cached": "cached",
}
# Not every engine has these: without them they are not known.
OPTIONAL = {"pagefleet_num_tokens_waiting": "waiting_tokens", "pagefleet_engine_sleeping": "sleeping"}
COUNTERS = {"pagefleet_num_preemptions": "preemptions", "pagefleet_generation_tokens": "tokens"}
READ = GAUGES | OPTIONAL | COUNTERS
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Signals:
    """`free_pages` counts blank and reusable ones. `age` in seconds."""

    waiting: int
    running: int
    free_pages: int
    total_pages: int
    age: float
    cached_pages: int = 0
    waiting_tokens: int | None = None
    sleeping: bool | None = None
    counters: Mapping[str, float] = field(default_factory=dict)  # by a name of COUNTERS, since the engine's start
    rates: Mapping[str, float] = field(default_factory=dict)  # the same per second, since the reading before


def parse(text: str) -> Signals | None:
    """Signals from a metrics page; None when one is missing, negative or not finite."""
    found: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            name = READ.get(family.name)
            if name is not None:
                for sample in family.samples:
                    if sample.name.endswith("_created"):
                        continue
                    found[name] = found.get(name, 0.0) + sample.value
    except ValueError:
        return None
    if not set(GAUGES.values()) <= set(found) or not all(math.isfinite(v) and v >= 0 for v in found.values()):
        return None
    return Signals(
        waiting=int(found["waiting"]),
        running=int(found["running"]),
        free_pages=int(found["free"] + found["cached"]),
        total_pages=int(found["total"]),
        age=0.0,
        cached_pages=int(found["cached"]),
        waiting_tokens=int(found["waiting_tokens"]) if "waiting_tokens" in found else None,
        sleeping=found["sleeping"] > 0 if "sleeping" in found else None,
        counters={name: found[name] for name in COUNTERS.values() if name in found},
    )


def rated(latest: Signals, before: Signals | None, seconds: float) -> Signals:
    """With the counters' rates since the reading before; a counter that went back begins anew."""
    if before is None or seconds <= 0:
        return latest
    rates = {
        name: (value - before.counters[name] if value >= before.counters[name] else value) / seconds
        for name, value in latest.counters.items()
        if name in before.counters
    }
    return replace(latest, rates=rates)


class EngineSignals:
    """Keeps the last reading of each pod for a second, so that many decisions ask once."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._last: dict[str, tuple[float, Signals | None]] = {}

    async def read(self, address: str) -> Signals | None:
        """None when the pod does not answer in time or not with sane numbers."""
        now = time.monotonic()
        kept = self._last.get(address)
        if kept is None or now - kept[0] > FRESH_SECONDS:
            fetched = await self._fetch(address)
            if fetched is not None and kept is not None and kept[1] is not None:
                fetched = rated(fetched, kept[1], now - kept[0])
            kept = (now, fetched)
            if len(self._last) > 10_000:
                self._last.clear()
            self._last[address] = kept
        return kept[1]

    async def _fetch(self, address: str) -> Signals | None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        try:
            async with self._session.get(f"http://{address}:{PORT}/metrics", timeout=timeout) as response:
                if response.status != 200:
                    return None
                return parse((await body(response, MOST_BYTES)).decode(errors="replace"))
        except (aiohttp.ClientError, TimeoutError, OSError, TooLongError) as error:
            log.debug("engine %s: %s", address, error)
            return None
