"""Adds the gateways' load-adjusted slices up in the order of time: the evidence against the canary, and its times so far.

A request counts as a hit of a threshold in the slice in which its age passes the threshold, and not again when it is
measured (`waits`). Slices before the canary's traffic only teach the thresholds and the calibration.

What befalls both revisions at one time convicts nobody: where more of the stable's requests are hits now than a threshold
expects, that share is the canary's null hypothesis too (`surges`).
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram
from pagefleet_operator.domain.analysis.adjusted.alike import Alikeness
from pagefleet_operator.domain.analysis.adjusted.alternatives import (
    COUNT,
    ODDS,
    SEVERE,
    SHARES,
    THRESHOLDS,
    ratios,
    stakes,
)
from pagefleet_operator.domain.analysis.adjusted.excursions import NEAR, Excursions, Run
from pagefleet_operator.domain.analysis.adjusted.onsets import OnsetMixture, OnsetPrior
from pagefleet_operator.domain.analysis.adjusted.reference import (
    QUANTILES,
    RETAINED_SECONDS,
    Reference,
    Threshold,
)
from pagefleet_operator.domain.analysis.adjusted.severe import QUICK, severe
from pagefleet_operator.domain.analysis.adjusted.surges import surged
from pagefleet_operator.domain.analysis.adjusted.suspects import Suspects
from pagefleet_operator.domain.analysis.adjusted.traffic import PodTraffic
from pagefleet_operator.domain.analysis.adjusted.waiting import Decided, Row, Side, Waiting, by_stratum
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.status.observation import Slice

RENEWED_SECONDS = 30.0  # thresholds are estimated again so often
RECENT_SECONDS = 10.0  # the stable's hits of so long excuse the canary's
MULTIPLE = len(QUANTILES)  # the place of the first multiple among the thresholds
ALIKE = QUANTILES.index(0.75)  # the threshold by whose hits pods are alike: hits are neither rare nor usual
NOTHING = (0.0,) * len(ODDS)
PRIOR = OnsetPrior(horizon=1800.0)  # in slices of two seconds: an hour


@dataclass(frozen=True)
class AdjustedScope:
    """The revisions, the time from which the canary's requests count, its first requests that do not, maxIncrease, and whether the
    times are those of whole answers."""

    stable: str
    canary: str
    begin: float
    warm_up: int
    increase: float
    whole: bool = False


@dataclass(frozen=True)
class Earlier:
    """What is stored of a judgement up to the slice that started at `until`: the evidence, the canary's times, and the suspects."""

    until: float
    evidence: OnsetMixture
    canary: Mapping[str, Histogram]
    suspects: Suspects


class Accumulated:
    """The sums up to the newest slice. `add` wants all slices of one start together, in the order of time."""

    def __init__(self, scope: AdjustedScope, earlier: Earlier | None = None) -> None:
        """`earlier` is what an operator before this one has found."""
        self.scope = scope
        self.evidence = OnsetMixture.of(COUNT) if earlier is None else earlier.evidence
        self.until = max(
            scope.begin - 1, -math.inf if earlier is None else earlier.until
        )  # the newest slice that counts
        self.reference, self.excursions = Reference(), Excursions()
        self._traffic, self._alikeness = PodTraffic(), Alikeness()
        self.suspects = Suspects() if earlier is None else earlier.suspects.copied()
        # The canary's load-adjusted times by load stratum, and both revisions' in seconds.
        self.canary = {} if earlier is None else {name: dict(own) for name, own in earlier.canary.items()}
        self.seconds: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.hits = [(0.0, 0.0)] * THRESHOLDS  # of the canary: requests and hits, by threshold
        self.thresholds: tuple[Threshold, ...] = ()
        self._scales: Sequence[float] = ()
        self._rows: tuple[Mapping[str, Row], Mapping[str, Row]] = ({}, {})  # buckets of the thresholds, by stratum
        self._bets = Row((), ())  # that a request of a stable pod hits
        self._renewed = -math.inf
        self._arrived = 0 if earlier is None else scope.warm_up
        self._warm = earlier is not None
        self._waiting = (Waiting(), Waiting())
        # The stable's requests, and then its hits, of the last RECENT_SECONDS, by threshold, by slice and in total: as old as the
        # thresholds.
        self._recent: deque[tuple[float, list[int]]] = deque()
        self._totals: list[int] = []

    def add(self, start: float, pieces: Iterable[Slice], pods: int = 1) -> None:
        """Judge a slice's requests by what is known before it, then learn from the stable's. The canary has so many `pods`."""
        pieces, scope, came = list(pieces), self.scope, 0
        adjusted: tuple[list[Slice], list[Slice]] = ([], [])
        for piece in pieces:
            of_canary = piece.revision == scope.canary
            if piece.adjusted and (of_canary or piece.revision == scope.stable):
                adjusted[of_canary].append(piece)
            elif of_canary:
                came += piece.arrived
        stable, canary = (own.take(start, by) for own, by in zip(self._waiting, adjusted, strict=True))
        if start >= self._renewed + RENEWED_SECONDS:
            self.thresholds, self._renewed = self.reference.thresholds(scope.increase), start
            self.excursions.forget(start - RETAINED_SECONDS)
            self._traffic.forget()
            self._scales = self.excursions.scales()
            self._rows = (
                by_stratum([threshold.stable for threshold in self.thresholds]),
                by_stratum([threshold.canary for threshold in self.thresholds]),
            )
            pooled = {place: threshold.pooled for place, threshold in enumerate(self.thresholds)}
            multiples = [own for place, own in pooled.items() if place >= MULTIPLE]
            # The bet on all multiples together is hit with the lowest of them.
            self._bets = Row.of(pooled | ({THRESHOLDS: min(multiples)} if multiples else {}))
            self._recent.clear()
            self._totals = [0] * (2 * THRESHOLDS)
        if self.thresholds:
            self._judge(start, stable, canary, pieces, pods)
        if start > self.until:
            if self._arrived >= scope.warm_up:
                self._add_times(canary, pieces)
            self._arrived += came
            self.until = start
        self.reference.add(start, stable.relative)

    def _add_times(self, canary: Side, pieces: Sequence[Slice]) -> None:
        for name, own in canary.relative.items():
            sketch.add_onto(self.canary.setdefault(name, {}), own)
        for piece in pieces:
            for counts in piece.load.values():
                sketch.add_onto(self.seconds[piece.revision == self.scope.canary], counts.ttft)

    def _judge(self, start: float, stable: Side, canary: Side, pieces: Sequence[Slice], pods: int) -> None:
        requests, hits = stable.decided_each(self._rows[0], THRESHOLDS)
        self._recent.append((start, [*requests, *hits]))
        self._totals = [total + more for total, more in zip(self._totals, self._recent[-1][1], strict=True)]
        while self._recent[0][0] <= start - RECENT_SECONDS:
            self._totals = [total - less for total, less in zip(self._totals, self._recent.popleft()[1], strict=True)]
        shares = [self._share(place, threshold.share) for place, threshold in enumerate(self.thresholds)]
        own = [piece for piece in pieces if piece.pods and piece.revision == self.scope.stable]
        watched = _Watched(shares)
        self._traffic.add(start, own)
        for piece in own:
            self._watch(piece, watched)
        if start > self.until:
            found = self._canary_ratios(canary, shares)
            effect = self._alikeness.design_effect(pods)
            scaled = [
                ratio / (scale * effect if place in NEAR else scale)
                for place, (ratio, scale) in enumerate(zip(found, self._scales, strict=True))
            ]
            self.evidence = self.evidence.after(scaled, SHARES, PRIOR)
            self.suspects.add(canary, self.evidence.log)

    def _share(self, place: int, expected: float) -> float:
        """The share of hits under the null: the expected one, or more where the stable's requests of the last seconds show it."""
        return surged(expected, self._totals[place], self._totals[THRESHOLDS + place])

    def _canary_ratios(self, canary: Side, shares: Sequence[float]) -> list[float]:
        """The logarithms of the likelihood ratios of all alternatives by the canary's requests of a slice.

        Before the canary is warm only the far thresholds count. Requests that still wait then count from then on.
        """
        warm, begun = self._arrived >= self.scope.warm_up, not self._warm
        self._warm = warm
        decided = anew = self._decided(canary)
        if warm and begun:
            anew = self._decided(replace(canary, begin={}))
        found: list[float] = []
        for place, threshold in enumerate(self.thresholds):
            if warm or threshold.far:
                found += self._ratios(place, (decided if threshold.far else anew)[place], shares[place])
            else:
                found += NOTHING
        far = next(place for place, threshold in enumerate(self.thresholds) if threshold.far)
        bet = self._severe_ratio(anew, shares, MULTIPLE if warm else far)
        if warm and begun:  # their bet before begins anew
            bet -= self._severe_ratio(self._decided(Side({}, {}, {}, canary.begin)), shares, far)
        return [*found, bet]

    def _decided(self, canary: Side) -> list[tuple[Decided, Decided]]:
        """How many of the canary's requests each threshold decides about."""
        if canary.strata <= self.thresholds[MULTIPLE].canary.keys():  # there are no other strata
            return [(known, (0, 0)) for known in zip(*canary.decided_each(self._rows[1], THRESHOLDS), strict=True)]
        return [threshold.decided(canary) for threshold in self.thresholds]

    def _ratios(self, place: int, decided: tuple[Decided, Decided], share: float) -> Sequence[float]:
        """Those of each of ODDS at a threshold."""
        threshold = self.thresholds[place]
        (requests, hits), (more, slower) = decided
        self.hits[place] = (self.hits[place][0] + requests, self.hits[place][1] + hits)
        found = ratios(share, hits, requests - hits)
        if not more:
            return found
        others = ratios(self._share(place, threshold.elsewhere_share), slower, more - slower)
        return [one + two for one, two in zip(found, others, strict=True)]

    def _severe_ratio(self, each: Sequence[tuple[Decided, Decided]], shares: Sequence[float], first: int) -> float:
        """That of the bet on all thresholds together, from the place `first` on."""
        decided = each[first:]
        bet = severe(shares[first:]).ratio([known for known, _ in decided])
        if any(requests for _, (requests, _) in decided):
            elsewhere = [
                self._share(place, self.thresholds[place].elsewhere_share) for place in range(first, THRESHOLDS)
            ]
            bet += severe(elsewhere).ratio([others for _, others in decided])
        return bet

    def _watch(self, piece: Slice, watched: _Watched) -> None:
        """Calibrate by the slices of single stable pods."""
        start = piece.start
        for pod, own in piece.pods.items():
            requests, hits = sum(own.values()), self._bets.beyond(own)
            self._alikeness.add(start, pod, requests, hits.get(ALIKE, 0))
            under_way = self.excursions.under_way(start, pod)
            # Without a hit no ratio is above 0: no excursion begins.
            if hits or under_way:
                weight = self._traffic.weight(pod)
                self.excursions.fall(pod, watched.misses, requests, weight, hits)
                if hits:
                    self.excursions.add(start, pod, watched.runs(requests, hits), weight)

    def copied(self) -> Accumulated:
        result = copy.copy(self)
        result.reference, result.excursions = self.reference.copied(), self.excursions.copied()
        result._traffic, result._alikeness = self._traffic.copied(), self._alikeness.copied()
        result.suspects = self.suspects.copied()
        result.canary = {name: dict(own) for name, own in self.canary.items()}
        result.seconds, result.hits = (dict(self.seconds[0]), dict(self.seconds[1])), list(self.hits)
        result._waiting = (self._waiting[0].copied(), self._waiting[1].copied())
        result._recent = self._recent.copy()
        return result

    def likeliest(self) -> int:
        """Return the place of the threshold with the most evidence."""
        logs = self.evidence.logs
        if logs[SEVERE] == max(logs):
            return MULTIPLE
        return max(range(THRESHOLDS), key=lambda place: max(logs[place * len(ODDS) : (place + 1) * len(ODDS)]))

    def suspected(self) -> Side:
        """Return the canary's requests since the evidence began to grow, with those that wait."""
        return Side(self.suspects.measured, self.suspects.unmeasured, {}, self._waiting[1].total())

    def waiting(self) -> Histogram:
        """Return the canary's requests without a first token, by their age as a multiple of the expected time."""
        return sketch.merged(list(self._waiting[1].total().values()))


class _Watched:
    """The logarithms of the likelihood ratios by the requests of a stable pod, all of which are measured."""

    def __init__(self, shares: Sequence[float]) -> None:
        self._shares = shares
        # Of one request that is no hit, by alternative.
        self.misses = [*chain.from_iterable([stakes(share)[1] for share in shares]), QUICK]

    def runs(self, requests: int, hits: Mapping[int, int]) -> list[Run]:
        """Return those of the bets that have hits, for so many requests."""
        runs: list[Run] = []
        for place, above in hits.items():
            if place < THRESHOLDS:
                runs.append((place * len(ODDS), ratios(self._shares[place], above, requests - above)))
            else:
                decided = [(requests, hits.get(multiple, 0)) for multiple in range(MULTIPLE, THRESHOLDS)]
                runs.append((SEVERE, (severe(self._shares[MULTIPLE:]).ratio(decided),)))
        return runs
