"""The rules of others, each with the best settings it can have: they know the stable revision's ten minutes before.

A judge gets a trace's events in the order in which they became known (`events`) and answers when it would roll back. Each
class names its source. None of the code is theirs.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from bench.rolloutbench.traces import BASELINE, Trace

CHECK_SECONDS = 60.0  # between two looks of Flagger, Argo Rollouts and Kayenta: the interval of their documentation
QUANTILE = 0.95


@dataclass(frozen=True)
class Event:
    """A time to first token (`seconds`), or a request that failed or whose client left before it (None)."""

    at: float
    revision: str
    seconds: float | None


def events(trace: Trace) -> list[Event]:
    """Return what becomes known of a trace, in the order of time."""
    known = []
    for request in trace.requests:
        if request.ttft is not None:
            known.append(Event(request.at + request.ttft, request.revision, request.ttft))
        elif request.end is not None:
            known.append(Event(request.end, request.revision, None))
    return sorted(known, key=lambda one: one.at)


class Judge(Protocol):
    """`look` gets the events since the last look and returns whether to roll back. `seconds` lie between two looks."""

    seconds: float

    def look(self, new: list[Event]) -> bool: ...


def decide(judge: Judge, known: list[Event], until: float) -> float | None:
    """Return when a judge rolls back; None: never."""
    place, now = 0, 0.0
    while now < until:
        now += judge.seconds
        first = place
        while place < len(known) and known[place].at <= now:
            place += 1
        if judge.look(known[first:place]):
            return now
    return None


def stable_p95(trace: Trace) -> float:
    """Return the stable revision's p95 before the rollout."""
    past = [one.ttft for one in trace.requests if one.at < 0 and one.ttft is not None]
    return float(np.quantile(past, QUANTILE)) if past else math.inf


@dataclass
class Threshold:
    """Flagger's canary analysis and an Argo Rollouts AnalysisRun: at each look the canary's p95 and its share of failures
    since the last look are compared with constants; `failures` bad looks in all roll back. Sources: Flagger, "Canary
    analysis" (`threshold` 5, `interval` 1m); Argo Rollouts, "Analysis" (`failureLimit`; one more failure aborts).

    The constant is the best that can be known: 1.15 times the stable's own p95 of the ten minutes before. With
    `silence` a look without a measured request is bad: Flagger halts and counts a failed check when a query has no values.
    """

    limit: float
    max_error_rate: float
    failures: int
    silence: bool = False
    seconds: float = CHECK_SECONDS
    bad: int = 0

    def look(self, new: list[Event]) -> bool:
        own = [event for event in new if event.revision == "canary"]
        measured = [event.seconds for event in own if event.seconds is not None]
        failed = len(own) - len(measured)
        slow = bool(measured) and float(np.quantile(measured, QUANTILE)) > self.limit
        silent = self.silence and not measured
        self.bad += slow or silent or failed > self.max_error_rate * len(own)
        return self.bad >= self.failures


@dataclass
class Kayenta:
    """Kayenta's judge: a Mann-Whitney U test of the canary's series against a fresh baseline's of equal size, one value (the
    p95) for every 10 s, 98 % confidence. The canary is "High" when the interval of the Hodges-Lehmann shift lies above
    25 % of the baseline's median. Source: Kayenta's NetflixACAJudge ("Automated Canary Analysis at Netflix with
    Kayenta", 2018); Mann and Whitney 1947; Hodges and Lehmann 1963.
    """

    against: str
    max_error_rate: float
    seconds: float = CHECK_SECONDS
    step: float = 10.0
    z: float = 2.326  # two-sided 98 %
    tolerance: float = 0.25
    series: tuple[dict[int, list[float]], dict[int, list[float]]] = field(default_factory=lambda: ({}, {}))
    failed: list[int] = field(default_factory=lambda: [0, 0])
    count: list[int] = field(default_factory=lambda: [0, 0])

    def look(self, new: list[Event]) -> bool:
        for event in new:
            if event.revision in ("canary", self.against):
                side = int(event.revision == "canary")
                self.count[side] += 1
                if event.seconds is None:
                    self.failed[side] += 1
                else:
                    self.series[side].setdefault(int(event.at // self.step), []).append(event.seconds)
        baseline, canary = (
            np.array([np.quantile(values, QUANTILE) for _, values in sorted(own.items())]) for own in self.series
        )
        rates = [failed / max(count, 1) for failed, count in zip(self.failed, self.count, strict=True)]
        if self.count[1] >= 50 and rates[1] > max(self.max_error_rate, 2 * rates[0]):
            return True
        if min(baseline.size, canary.size) < 5:
            return False
        shifts = np.sort(np.subtract.outer(canary, baseline).ravel())
        spread = math.sqrt(baseline.size * canary.size * (baseline.size + canary.size + 1) / 12)
        low = int(max(0, math.floor(shifts.size / 2 - self.z * spread)))
        return bool(shifts[low] > self.tolerance * float(np.median(baseline)))


@dataclass
class SequentialQuantiles:
    """An anytime-valid comparison of whole distributions: roll back when, at some time, the lower confidence band of the
    stable's distribution at x lies above the canary's upper band at 1.15 x. Sources: Lindon, Sanden and Shirikian,
    "Rapid Regression Detection in Software Deployments through Sequential Testing" (KDD 2022); the band is Howard and
    Ramdas, "Sequential estimation of quantiles with applications to A/B testing" (Bernoulli 2022), Corollary 2.

    Both assume independent requests. Requests that fail or never start count as infinitely slow.
    """

    alpha: float = 0.01
    increase: float = 0.15
    seconds: float = 2.0
    stable: list[float] = field(default_factory=list)
    canary: list[float] = field(default_factory=list)

    def look(self, new: list[Event]) -> bool:
        for event in new:
            if event.at >= 0:
                own = self.canary if event.revision == "canary" else self.stable
                insort(own, math.inf if event.seconds is None else event.seconds)
        if min(len(self.stable), len(self.canary)) < 2 or not new:
            return False
        canary, stable = np.array(self.canary), np.array(self.stable)
        at = canary[np.isfinite(canary)]
        points = np.concatenate([at / (1 + self.increase) * (1 - 1e-9), stable[np.isfinite(stable)]])
        below = np.searchsorted(stable, points, "right") / stable.size
        slower = np.searchsorted(canary, points * (1 + self.increase), "right") / canary.size
        margin = self._band(stable.size) + self._band(canary.size)
        return bool(points.size) and float(np.max(below - slower)) > margin

    def _band(self, count: int) -> float:
        return 0.85 * math.sqrt((math.log(math.log(math.e * count)) + 0.8 * math.log(1612 / (self.alpha / 2))) / count)


def judges(trace: Trace) -> Iterator[tuple[str, Judge]]:
    """Yield the judges of a trace. Kayenta's has a baseline group of its own, so it judges traces that have one."""
    limit = (1 + trace.max_increase) * stable_p95(trace)
    if any(request.revision == BASELINE for request in trace.requests):
        yield "Kayenta (Mann-Whitney, fresh baseline)", Kayenta(BASELINE, trace.max_error_rate)
        return
    yield "Flagger (threshold 5)", Threshold(limit, trace.max_error_rate, 5, silence=True)
    yield "Argo Rollouts (failureLimit 0)", Threshold(limit, trace.max_error_rate, 1)
    yield "Argo Rollouts (failureLimit 3)", Threshold(limit, trace.max_error_rate, 4)
    yield "sequential quantiles (Netflix)", SequentialQuantiles(increase=trace.max_increase)
