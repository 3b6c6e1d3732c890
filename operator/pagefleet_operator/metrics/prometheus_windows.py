"""Reads latency histograms from Prometheus and keeps what came between two scrapes of each target, as slices.

Silent, empty, senseless or late: there are no slices then, and `silence` says why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pagefleet_contract.engine_metrics import Engine
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.metrics.cumulative import Past, Pod
from pagefleet_operator.metrics.prometheus_client import Prometheus
from pagefleet_operator.metrics.series import Target, Wanted, scrapes, unseen

MOST_BYTES = 16 << 20
ASK_SECONDS = 5.0
LATE_SECONDS = 90.0  # scrapes may be a minute apart
FIRST_SECONDS, LEAST_SECONDS = 300.0, 30.0  # how far back the first question and the others look
Key = tuple[str, str, str]


@dataclass
class _Kept:
    """`newest` scrape of each target, by revision."""

    past: Past = field(default_factory=Past)
    newest: dict[str, dict[Target, float]] = field(default_factory=dict)
    asked: float | None = None
    silence: str = "it has not been asked"

    def trim(self, now: float) -> None:
        """A target is known as long as its scrapes could be read again: none may count twice."""
        for known in self.newest.values():
            for target in [target for target, last in known.items() if now - last > FIRST_SECONDS]:
                del known[target]
        self.newest = {revision: known for revision, known in self.newest.items() if known}
        self.past.trim(now, [_name(target) for known in self.newest.values() for target in known])


class PrometheusWindows:
    """Slices by service and histogram ("": the engines' own metrics), asked for at most every `interval` seconds."""

    def __init__(self, prometheus: Prometheus, interval: float = ASK_SECONDS) -> None:
        self._prometheus, self._interval = prometheus, interval
        self._kept: dict[Key, _Kept] = {}

    async def read(self, pods: Sequence[Pod], revisions: Sequence[str], wanted: Wanted) -> tuple[Slice, ...] | None:
        """None where one of `revisions` is silent, or of a ready pod there is nothing fresh."""
        kept = self._kept.setdefault((wanted.namespace, wanted.service, wanted.own), _Kept())
        if kept.asked is None or time.monotonic() - kept.asked >= self._interval:
            reasons = await asyncio.gather(*(self._ask(kept, revision, pods, wanted) for revision in revisions))
            kept.silence = next((reason for reason in reasons if reason), "" if revisions else "there is no revision")
            kept.asked = time.monotonic()
            kept.trim(time.time())
        return None if kept.silence else tuple(kept.past.slices)

    def silence(self, wanted: Wanted) -> str:
        """Why the last `read` gave None, "" when it did not."""
        kept = self._kept.get((wanted.namespace, wanted.service, wanted.own))
        return f"Prometheus: {kept.silence}" if kept is not None and kept.silence else ""

    def forget(self, namespace: str, service: str) -> None:
        for key in [key for key in self._kept if key[:2] == (namespace, service)]:
            del self._kept[key]

    async def _ask(self, kept: _Kept, revision: str, pods: Sequence[Pod], wanted: Wanted) -> str:
        """Add what is new of a revision; why it is not known, or ""."""
        ours = [pod for pod in pods if pod.revision == revision]
        metrics = (ours[0].engine if ours else Engine()).metrics
        if metrics is None:
            return f"the engine of pod {ours[0].name} tells no metrics"
        now, newest = time.time(), kept.newest.setdefault(revision, {})
        try:
            query = wanted.query(revision, metrics, _look(newest, now))
        except ValueError as error:
            return str(error)
        document, silence = await self._prometheus.ask(query, MOST_BYTES)
        found, reason = ({}, silence) if silence else scrapes(document, wanted, metrics, newest)
        if reason:
            return f"{reason} (revision {revision})"
        for target, readings in found.items():
            for reading in readings:
                kept.past.add(Pod(_name(target), "", revision), reading)
                newest[target] = reading.time
        named = [pod.name for pod in ours] if not wanted.own else [revision] if ours else []
        return unseen(_all_of(newest, revision) if wanted.own else newest, named, now, LATE_SECONDS)


def _look(newest: Mapping[Target, float], now: float) -> float:
    """How many seconds back the samples are that are not known yet, or whose age is in question."""
    alive = [last for last in newest.values() if now - last <= LATE_SECONDS]
    return min(FIRST_SECONDS, max(LEAST_SECONDS, now - min(alive) + ASK_SECONDS)) if alive else FIRST_SECONDS


def _all_of(newest: Mapping[Target, float], revision: str) -> dict[Target, float]:
    """Of another's histogram it is not known which pod a series is of: the newest one counts for the revision."""
    return {("", "", revision): max(newest.values())} if newest else {}


def _name(target: Target) -> str:
    return "/".join(target)
