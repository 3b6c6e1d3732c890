"""The thresholds that the stable revision's load-adjusted times set for the canary.

A threshold is a quantile of the stable's own times, or a multiple of their 95 % quantile. A request above it is a hit. The
quantiles are estimated in each load stratum, from above: the rank lies two standard errors higher, so that few requests set
a generous threshold. In a stratum in which the stable has been measured too rarely, the gateway's expectation is an
extrapolation. There the lower quantiles of the nearest smaller stratum count, with a wider margin, and the multiples, with
a share of hits that is assumed to be large.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram, Ranks
from pagefleet_contract.strata import FREE_STRATA, QUEUED_STRATA
from pagefleet_operator.domain.analysis.adjusted.waiting import Decided, Side

QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)
# Multiples of the 95 % quantile, and the share of hits that is assumed where the stable has not been measured.
MULTIPLES = {1.5: 0.10, 2.2: 0.05, 4.0: 0.015, 10.0: 0.005}
FAR = 4.0  # multiples from here on also count a revision's first requests
INHERITED = (0.5, 0.75)  # quantiles that count in strata without enough requests of the stable
EXTRAPOLATION = 0.15  # on top of maxIncrease there
RETAINED_SECONDS = 1200.0
RETAINED_REQUESTS = 200  # are not forgotten, however old they are
MIN_REQUESTS = 50
MIN_ABOVE = 10  # requests above its quantile that a stratum needs
STANDARD_ERRORS, DISPERSION = 2.0, 2.0  # of a quantile's rank; requests that come together are slow together


@dataclass(frozen=True)
class Threshold:
    """One test. Buckets are those of the sketch; a request in a higher bucket is a hit.

    `stable` and `canary` are by load stratum, and the canary's have `maxIncrease` in them. `pooled` is the canary's over all
    strata. `share` is the share of hits of a canary that is no worse than accepted. In other strata the bucket `elsewhere`
    and the share `elsewhere_share` count; None: nothing does.
    """

    stable: Mapping[str, int]
    canary: Mapping[str, int]
    pooled: int
    share: float
    elsewhere: int | None = None
    elsewhere_share: float = 0.0
    far: bool = False

    def decided(self, canary: Side) -> tuple[Decided, Decided]:
        """Return how many of the canary's requests lie certainly above or below, and how many above: first in the strata that
        are known, then in the others."""
        known = canary.decided(self.canary)
        others = canary.strata - self.canary.keys()
        if self.elsewhere is None or not others:
            return known, (0, 0)
        return known, canary.decided(dict.fromkeys(others, self.elsewhere))


class Reference:
    """The stable's times of the last RETAINED_SECONDS in which it had requests, and at least its last RETAINED_REQUESTS, by load
    stratum. Times are slice starts in seconds."""

    def __init__(self) -> None:
        self._slices: deque[tuple[float, Mapping[str, Histogram]]] = deque()
        self.strata: dict[str, dict[int, int]] = {}
        self._requests = 0

    def add(self, start: float, strata: Mapping[str, Histogram]) -> None:
        """Learn a slice, and forget those that are too old.

        A stable without requests, next to a canary with a weight of 100, is known by its last ones.
        """
        if not strata:
            return
        self._slices.append((start, strata))
        for name, histogram in strata.items():
            sketch.add_onto(self.strata.setdefault(name, {}), histogram)
        self._requests += _count(strata)
        while self._slices[0][0] <= start - RETAINED_SECONDS:
            left = self._requests - _count(self._slices[0][1])
            if left < RETAINED_REQUESTS:
                break
            self._requests = left
            self._drop(self._slices.popleft()[1])

    def thresholds(self, increase: float) -> tuple[Threshold, ...]:
        """Return the thresholds in force, the quantiles first; none before MIN_REQUESTS requests."""
        sums = sketch.merged(list(self.strata.values()))
        pooled = Ranks(sums)
        if pooled.total < MIN_REQUESTS:
            return ()
        margin, strata = _buckets(increase), {name: Ranks(own) for name, own in self.strata.items()}
        known = {name: bucket for name, own in strata.items() if (bucket := _upper(own, QUANTILES[0])) is not None}
        fine = [_at_quantile(quantile, strata, pooled, margin) for quantile in QUANTILES]
        edge = _bucket(pooled, 0.95)
        return (*fine, *(_at_multiple(multiple, sums, edge, known) for multiple in MULTIPLES))

    def copied(self) -> Reference:
        result = Reference()
        result._slices, result._requests = self._slices.copy(), self._requests
        result.strata = {name: dict(own) for name, own in self.strata.items()}
        return result

    def _drop(self, strata: Mapping[str, Histogram]) -> None:
        for name, histogram in strata.items():
            total = self.strata[name]
            sketch.take_off(total, histogram)
            if not total:
                del self.strata[name]


def _count(strata: Mapping[str, Histogram]) -> int:
    return sum(map(sketch.total, strata.values()))


def _at_quantile(quantile: float, strata: Mapping[str, Ranks], pooled: Ranks, margin: int) -> Threshold:
    stable = {name: bucket for name, own in strata.items() if (bucket := _upper(own, quantile)) is not None}
    canary, whole = {name: bucket + margin for name, bucket in stable.items()}, _bucket(pooled, quantile) + margin
    if quantile in INHERITED:
        canary = _inherited(canary, whole)
    return Threshold(stable, canary, whole, 1 - quantile)


def _inherited(known: Mapping[str, int], pooled: int) -> dict[str, int]:
    """All strata: one without a bucket has that of the nearest smaller stratum of its kind, or that of all, and a margin."""
    result, wider = dict(known), _buckets(EXTRAPOLATION)
    for kind in (FREE_STRATA, QUEUED_STRATA):
        nearest = pooled
        for name in kind:
            nearest = known.get(name, nearest)
            result.setdefault(name, nearest + wider)
    return result


def _buckets(increase: float) -> int:
    """How many buckets further an increase of a time is."""
    return round(math.log1p(increase) / math.log(sketch.GROWTH))


def _at_multiple(multiple: float, pooled: Histogram, edge: int, known: Mapping[str, int]) -> Threshold:
    bucket = edge + _buckets(multiple - 1)
    share = (sketch.beyond(pooled, bucket) + 2) / (sketch.total(pooled) + 2)
    everywhere = dict.fromkeys(known, bucket)
    elsewhere = max(share, MULTIPLES[multiple])
    return Threshold(everywhere, everywhere, bucket, share, bucket, elsewhere, multiple >= FAR)


def _upper(histogram: Ranks, quantile: float) -> int | None:
    """The bucket of a quantile, estimated from above; None with too few requests."""
    count = histogram.total
    rank = math.ceil(count * quantile + STANDARD_ERRORS * math.sqrt(DISPERSION * count * quantile * (1 - quantile)))
    return None if count * (1 - quantile) < MIN_ABOVE else histogram.bucket_at(rank)


def _bucket(histogram: Ranks, quantile: float) -> int:
    """The bucket of a quantile; 0 when the histogram is empty."""
    return histogram.bucket_at(math.ceil(quantile * histogram.total)) or 0
