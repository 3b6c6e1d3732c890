"""Reads the load of engine pods from their metrics pages, and of those whose model is still fetched how far that is. A reading is
complete and plausible, or there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from pagefleet_contract.addresses import authority
from pagefleet_contract.engine_metrics import METRICS_PATH, OURS, Engine, EngineMetrics, selector
from pagefleet_contract.model_fetch import BYTES, BYTES_PER_SECOND, FETCHED_BYTES
from pagefleet_operator.domain.scaling.load import STALE_SECONDS
from pagefleet_operator.domain.status.engine_load import GAUGES, RATES, EngineLoad
from pagefleet_operator.domain.status.observation import FetchReading
from pagefleet_operator.metrics import metrics_page
from pagefleet_operator.metrics.accounts import Account, fetch_charged, unlimited
from pagefleet_operator.metrics.fetching import FetchError, Question

TIMEOUT_SECONDS = 2.0
FRESH_SECONDS = 1.0  # a pod is asked at most this often
MAX_PODS = 10_000  # readings that are remembered
# By the names of EngineMetrics. A page must have each of these that its engine is known to report; other gauges of a load
# may be absent.
REQUESTS, PAGES = ("waiting", "running"), ("kvUsage", "kvPages", "kvPagesFree", "kvPagesCached")
SLEEPING = "sleeping"
READ = tuple(dict.fromkeys((*GAUGES.values(), *PAGES, *RATES.values(), SLEEPING)))
# How many pages an engine is taken to have that reports only the share in use: hundredths of a percent.
NOMINAL_PAGES = 10_000
OUR_ENGINE = Engine()


@dataclass(frozen=True)
class EngineReading:
    """One metrics page. `counters` are since the engine's start, by the names of RATES; `sleeping` is None where the
    engine does not report whether it sleeps."""

    load: EngineLoad
    sleeping: bool | None = None
    counters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Unread:
    """No reading, and the cause in words. `last` is the reading before, None when there is none of the last STALE_SECONDS; `age` is
    in seconds."""

    cause: str
    last: EngineReading | None = None
    age: float = 0.0


def parse(text: str, metrics: EngineMetrics = OURS) -> EngineReading | None:
    """The reading of a metrics page; None when a number is missing that should be there, negative, not finite or above `metrics_page.LARGEST`."""
    named = ((name, getattr(metrics, name)) for name in READ)
    selectors = {name: selector(words) for name, words in named if words}
    if not set(REQUESTS) <= set(selectors):
        return None
    try:
        samples = metrics_page.samples(text, (entry.name for entry in selectors.values()))
        read = {name: metrics_page.number(samples, entry) for name, entry in selectors.items()}
    except ValueError:
        return None
    known = {name: value for name, value in read.items() if value is not None}
    if any(name in selectors and name not in known for name in (*REQUESTS, *PAGES)):
        return None
    total, free = _pages(known)
    return EngineReading(
        EngineLoad(
            **{field: int(known[name]) for field, name in GAUGES.items() if name in known},
            kv_pages_total=total,
            kv_pages_free=free,
        ),
        sleeping=known[SLEEPING] > 0 if SLEEPING in known else None,
        counters={field: known[name] for field, name in RATES.items() if name in known},
    )


def _pages(known: Mapping[str, float]) -> tuple[int | None, int | None]:
    """All KV pages and the free ones; None and None when the engine reports neither a count nor a share.

    On a metrics page `kvPagesFree` counts blank pages only; the free pages of a load are blank and cached ones, and no more than there are:
    an engine may count its cached pages among the blank ones.
    """
    total = int(known.get("kvPages", NOMINAL_PAGES))
    if "kvPagesFree" in known and "kvPages" in known:
        return total, min(total, int(known["kvPagesFree"] + known.get("kvPagesCached", 0.0)))
    if "kvUsage" in known:
        return total, round(total * (1 - min(1.0, known["kvUsage"])))
    return None, None


def parse_fetch(text: str) -> FetchReading | None:
    """The reading of a page of a pod whose model is fetched; None when a size is missing or a number cannot be true."""
    try:
        page = metrics_page.samples(text, (BYTES, FETCHED_BYTES, BYTES_PER_SECOND))
        size, fetched, speed = (
            metrics_page.number(page, selector(name)) for name in (BYTES, FETCHED_BYTES, BYTES_PER_SECOND)
        )
    except ValueError:
        return None
    if size is None or fetched is None or size <= 0 or fetched > size:
        return None
    return FetchReading(int(size), int(fetched), speed)


def rated(latest: EngineReading, before: EngineReading, seconds: float) -> EngineReading:
    """The reading with the rates of its counters since the reading before. A counter that fell has begun again at 0."""
    if seconds <= 0:
        return latest
    rates: dict[str, Any] = {
        name: (value - before.counters[name] if value >= before.counters[name] else value) / seconds
        for name, value in latest.counters.items()
        if name in before.counters
    }
    return replace(latest, load=replace(latest.load, **rates))


class EngineReadings:
    """Keeps the last answer of each pod for a second, so that many decisions ask once, and its last reading for STALE_SECONDS: in a large
    fleet some pod always misses an answer, and without any reading of it no replica could be removed."""

    def __init__(self, session: aiohttp.ClientSession, clock: Callable[[], float] = time.monotonic) -> None:
        self._session, self._clock = session, clock
        self._answers: dict[str, tuple[float, EngineReading | Unread]] = {}
        self._readings: dict[str, tuple[float, EngineReading]] = {}

    async def read(
        self, address: str, engine: Engine = OUR_ENGINE, account: Account | None = None
    ) -> EngineReading | Unread:
        """Unread when the pod does not answer in time or not with plausible numbers, its engine reports none, or its service
        has used up its `account`."""
        if engine.metrics is None:
            return Unread("its engine reports no metrics")
        now = self._clock()
        last = self._answers.get(address)
        if last is None or now - last[0] > FRESH_SECONDS:
            fetched = await self._fetch(
                f"http://{authority(address, engine.port)}", engine.metrics, account or unlimited()
            )
            last = (now, self._with_past(address, fetched, now))
            if len(self._answers) > MAX_PODS:
                self._answers.clear()
                self._readings.clear()
            self._answers[address] = last
        return last[1]

    def _with_past(self, address: str, fetched: EngineReading | Unread, now: float) -> EngineReading | Unread:
        """The answer with what the last reading adds to it: the rates of its counters, or that reading itself."""
        before = self._readings.get(address)
        if isinstance(fetched, Unread):
            if before is None or now - before[0] > STALE_SECONDS:
                self._readings.pop(address, None)
                return fetched
            return replace(fetched, last=before[1], age=now - before[0])
        reading = fetched if before is None else rated(fetched, before[1], now - before[0])
        self._readings[address] = now, reading
        return reading

    async def fetching(self, address: str, port: int, account: Account) -> FetchReading | None:
        """How far a pod is whose model is being fetched, at the port of its engine; None when it does not say."""
        url = f"http://{authority(address, port)}{METRICS_PATH}"
        try:
            page = await fetch_charged(self._session, Question(url, TIMEOUT_SECONDS, metrics_page.MAX_BYTES), account)
        except FetchError:
            return None
        with account.spending():
            return parse_fetch(page.decode(errors="replace"))

    async def _fetch(self, server: str, metrics: EngineMetrics, account: Account) -> EngineReading | Unread:
        url = f"{server}{metrics.path}"
        try:
            page = await fetch_charged(self._session, Question(url, TIMEOUT_SECONDS, metrics_page.MAX_BYTES), account)
        except FetchError as error:
            return Unread(f"{url} {error}")
        with account.spending():
            reading = parse(page.decode(errors="replace"), metrics)
        return reading or Unread(f"{url} lacks a number that the engine should report")
