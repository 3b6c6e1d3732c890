"""Reads latency histograms from Prometheus and retains the counts that came between two scrapes of each target, as slices.

While Prometheus is silent, or its answer is empty, impossible or late, there are no slices; `silence` gives the reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pagefleet_contract.engine_metrics import Engine
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.metrics.accounts import taking_turns, unlimited
from pagefleet_operator.metrics.cumulative import Counts, Past, Pod
from pagefleet_operator.metrics.prometheus_client import Prometheus
from pagefleet_operator.metrics.series import Query, Target, scrapes, unscraped

MAX_BYTES = 16 << 20
ASK_SECONDS = 5.0
LATE_SECONDS = 90.0  # scrapes may be a minute apart
MAX_LOOK_SECONDS, MIN_LOOK_SECONDS = 300.0, 30.0  # how far back a query looks; the first one looks furthest
HistogramKey = tuple[str, str, str]  # namespace, service, histogram


@dataclass
class _Scraped:
    """The past of one histogram. `newest` has the time of each target's newest scrape, by revision."""

    past: Past = field(default_factory=Past)
    newest: dict[str, dict[Target, float]] = field(default_factory=dict)
    asked: float | None = None
    silence: str = "it has not been asked yet"

    def trim(self, now: float) -> None:
        """Drop old targets. A target stays as long as its scrapes could be read again, so that none counts twice."""
        for known in self.newest.values():
            for target in [target for target, last in known.items() if now - last > MAX_LOOK_SECONDS]:
                del known[target]
        self.newest = {revision: known for revision, known in self.newest.items() if known}
        self.past.trim(now, [_name(target) for known in self.newest.values() for target in known])


class PrometheusWindows:
    """Slices by service and histogram ("": the engines' own metrics), queried at most every `interval` seconds."""

    def __init__(self, prometheus: Prometheus, interval: float = ASK_SECONDS) -> None:
        self._prometheus, self._interval = prometheus, interval
        self._scraped: dict[HistogramKey, _Scraped] = {}

    async def read(self, pods: Sequence[Pod], revisions: Sequence[str], query: Query) -> tuple[Slice, ...] | None:
        """The slices; None while one of `revisions` has no samples, or too many of its ready pods have no fresh
        ones."""
        scraped = self._scraped.setdefault((query.namespace, query.service, query.own), _Scraped())
        if scraped.asked is None or time.monotonic() - scraped.asked >= self._interval:
            answers = await asyncio.gather(*(self._ask(scraped, revision, pods, query) for revision in revisions))
            reasons = [
                answer if isinstance(answer, str) else await _add(scraped, revision, pods, query, answer)
                for revision, answer in zip(revisions, answers, strict=True)
            ]
            scraped.silence = next(
                (reason for reason in reasons if reason), "" if revisions else "there is no revision"
            )
            scraped.asked = time.monotonic()
            scraped.trim(time.time())
        return None if scraped.silence else tuple(scraped.past.slices)

    def silence(self, query: Query) -> str:
        """The reason why the last `read` gave None, "" when it gave slices."""
        scraped = self._scraped.get((query.namespace, query.service, query.own))
        return f"Prometheus: {scraped.silence}" if scraped is not None and scraped.silence else ""

    def forget(self, namespace: str, service: str) -> None:
        for key in [key for key in self._scraped if key[:2] == (namespace, service)]:
            del self._scraped[key]

    async def _ask(
        self, scraped: _Scraped, revision: str, pods: Sequence[Pod], query: Query
    ) -> dict[Target, list[Counts]] | str:
        """Return the new scrapes of a revision, or the reason why there are none."""
        ours = [pod for pod in pods if pod.revision == revision]
        metrics = (ours[0].engine if ours else Engine()).metrics
        if metrics is None:
            return f"the engine of pod {ours[0].name} reports no metrics"
        newest = scraped.newest.setdefault(revision, {})
        try:
            text = query.text(revision, metrics, _look(newest, time.time()))
        except ValueError as error:
            return str(error)
        document, silence = await self._prometheus.ask(text, MAX_BYTES)
        targets, reason = ({}, silence) if silence else await scrapes(document, query, metrics, newest)
        return f"{reason} (revision {revision})" if reason else targets


async def _add(
    scraped: _Scraped,
    revision: str,
    pods: Sequence[Pod],
    query: Query,
    targets: Mapping[Target, Sequence[Counts]],
) -> str:
    """Add the new scrapes of a revision; return the reason why too many pods have no fresh ones, or ""."""
    newest = scraped.newest[revision]
    ordered = ((target, reading) for target, readings in targets.items() for reading in readings)
    async for target, reading in taking_turns(ordered, unlimited()):
        scraped.past.add(Pod(_name(target), "", revision), reading)
        newest[target] = reading.time
    ours = [pod.name for pod in pods if pod.revision == revision]
    named = ours if not query.own else [revision] if ours else []
    return unscraped(_all_of(newest, revision) if query.own else newest, named, time.time(), LATE_SECONDS)


def _look(newest: Mapping[Target, float], now: float) -> float:
    """The seconds to look back, so that the answer has all samples that are not known yet."""
    alive = [last for last in newest.values() if now - last <= LATE_SECONDS]
    return min(MAX_LOOK_SECONDS, max(MIN_LOOK_SECONDS, now - min(alive) + ASK_SECONDS)) if alive else MAX_LOOK_SECONDS


def _all_of(newest: Mapping[Target, float], revision: str) -> dict[Target, float]:
    """One time for the whole revision: the series of a named histogram do not show the pod that they belong to."""
    return {("", "", revision): max(newest.values())} if newest else {}


def _name(target: Target) -> str:
    return "/".join(target)
