"""Reads queue depth and KV pages from an engine pod's /metrics. A reading is whole and sane, or there is none."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import aiohttp

from pagefleet_operator.domain.runtimes.metrics import NOMINAL_PAGES, OURS, Engine, EngineMetrics, selector
from pagefleet_operator.metrics import metrics_page
from pagefleet_operator.metrics.bounded_body import TooLongError, body

TIMEOUT_SECONDS = 2.0
FRESH_SECONDS = 1.0  # a pod is asked at most this often
MOST_BYTES = 4 << 20
# What must be there when the engine is said to tell it, and what may be missing from its page.
GAUGES = ("waiting", "running", "kvUsage", "kvPages", "kvPagesFree", "kvPagesCached")
OPTIONAL = ("waitingTokens",)
COUNTERS = ("preemptions", "tokens")
OUR_ENGINE = Engine()
SLEEPING = "pagefleet_engine_sleeping"  # our engine alone says it
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Signals:
    """`free_pages` counts blank and reusable ones; None: the engine does not tell its pages. `age` in seconds."""

    waiting: int
    running: int
    free_pages: int | None
    total_pages: int | None
    age: float
    cached_pages: int | None = 0
    waiting_tokens: int | None = None
    sleeping: bool | None = None
    counters: Mapping[str, float] = field(default_factory=dict)  # by a name of COUNTERS, since the engine's start
    rates: Mapping[str, float] = field(default_factory=dict)  # the same per second, since the reading before


def parse(text: str, metrics: EngineMetrics = OURS) -> Signals | None:
    """Signals from a metrics page; None when one that it should have is missing, negative or not finite."""
    named = ((name, getattr(metrics, name)) for name in (*GAUGES, *OPTIONAL, *COUNTERS))
    wanted = {name: selector(words) for name, words in named if words}
    if not {"waiting", "running"} <= set(wanted):
        return None
    try:
        found = metrics_page.samples(text, (*(entry.name for entry in wanted.values()), SLEEPING))
        asleep = metrics_page.number(found, selector(SLEEPING))
        read = {name: metrics_page.number(found, entry) for name, entry in wanted.items()}
    except ValueError:
        return None
    known = {name: value for name, value in read.items() if value is not None}
    if any(name in wanted and name not in known for name in GAUGES):
        return None
    total, free = _pages(known)
    return Signals(
        waiting=int(known["waiting"]),
        running=int(known["running"]),
        free_pages=free,
        total_pages=total,
        age=0.0,
        cached_pages=int(known["kvPagesCached"]) if "kvPagesCached" in known else None,
        waiting_tokens=int(known["waitingTokens"]) if "waitingTokens" in known else None,
        sleeping=asleep > 0 if asleep is not None else None,
        counters={name: known[name] for name in COUNTERS if name in known},
    )


def _pages(known: Mapping[str, float]) -> tuple[int | None, int | None]:
    """All KV pages, and those that are free or reusable; None, None when the engine tells neither a count nor a share."""
    total = int(known.get("kvPages", NOMINAL_PAGES))
    if "kvPagesFree" in known and "kvPages" in known:
        return total, int(known["kvPagesFree"] + known.get("kvPagesCached", 0.0))
    if "kvUsage" in known:
        return total, round(total * (1 - min(1.0, known["kvUsage"])))
    return None, None


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

    async def read(self, address: str, engine: Engine = OUR_ENGINE) -> Signals | None:
        """None when the pod does not answer in time or not with sane numbers, or its engine has none."""
        if engine.metrics is None:
            return None
        now = time.monotonic()
        kept = self._last.get(address)
        if kept is None or now - kept[0] > FRESH_SECONDS:
            fetched = await self._fetch(address, engine.port, engine.metrics)
            if fetched is not None and kept is not None and kept[1] is not None:
                fetched = rated(fetched, kept[1], now - kept[0])
            kept = (now, fetched)
            if len(self._last) > 10_000:
                self._last.clear()
            self._last[address] = kept
        return kept[1]

    async def _fetch(self, address: str, port: int, metrics: EngineMetrics) -> Signals | None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        try:
            async with self._session.get(f"http://{address}:{port}{metrics.path}", timeout=timeout) as response:
                if response.status != 200:
                    return None
                return parse((await body(response, MOST_BYTES)).decode(errors="replace"), metrics)
        except (aiohttp.ClientError, TimeoutError, OSError, TooLongError) as error:
            log.debug("engine %s: %s", address, error)
            return None
