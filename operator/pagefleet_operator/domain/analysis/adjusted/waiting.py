"""One revision's load-adjusted requests in a slice, with those that wait, by load stratum."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram
from pagefleet_operator.domain.status.observation import Slice

SILENT_SECONDS = 30.0  # after which a gateway is taken for gone
Strata = Mapping[str, Histogram]
Decided = tuple[float, float]


class Tail:
    """How many requests of a histogram lie above a bucket, for many buckets."""

    def __init__(self, histogram: Histogram) -> None:
        self._buckets = sorted(histogram)
        self._below = [*accumulate(map(histogram.__getitem__, self._buckets), initial=0)]
        self.total = self._below[-1]

    def above_each(self, buckets: Sequence[int]) -> list[int]:
        """Return how many lie above each of the buckets."""
        known, below, total = self._buckets, self._below, self.total
        return [total - below[bisect_right(known, bucket)] for bucket in buckets]


@dataclass(frozen=True)
class Row:
    """A stratum's buckets of several thresholds in ascending order, and the places of these thresholds."""

    places: Sequence[int]
    buckets: Sequence[int]

    @classmethod
    def of(cls, buckets: Mapping[int, int]) -> Row:
        """Make a row of buckets by place."""
        places = sorted(buckets, key=buckets.__getitem__)
        return cls(places, [buckets[place] for place in places])

    def passed(self, bucket: int) -> Sequence[int]:
        """Return the places of the thresholds that a request in a bucket is beyond."""
        return self.places[: bisect_left(self.buckets, bucket)]


@dataclass(frozen=True)
class Side:
    """The requests that were measured in a slice, those that ended unmeasured, and those that wait at its begin and end."""

    relative: Strata
    unmeasured: Strata
    begin: Strata
    end: Strata

    @property
    def strata(self) -> set[str]:
        return {*self.relative, *self.unmeasured, *self.begin, *self.end}

    def _passed(self, name: str) -> Histogram:
        """The requests by the buckets that they have passed, less those that had passed them at the slice's begin."""
        passed = sketch.merged(
            [strata[name] for strata in (self.relative, self.unmeasured, self.end) if name in strata]
        )
        for bucket, count in self.begin.get(name, {}).items():
            passed[bucket] = passed.get(bucket, 0) - count
        return passed

    def decided(self, buckets: Mapping[str, int]) -> Decided:
        """Return how many requests lie certainly above or below the bucket of their stratum, and how many above."""
        requests, hits = self.decided_each(by_stratum([buckets]), 1)
        return requests[0], hits[0]

    def decided_each(self, rows: Mapping[str, Row], count: int) -> tuple[list[int], list[int]]:
        """Return both for each of `count` mappings that `by_stratum` has sorted into `rows`."""
        requests, hits = [0] * count, [0] * count
        waited = {*self.unmeasured, *self.begin, *self.end}
        for name, measured in self.relative.items():
            if name in waited or name not in rows:
                continue
            row, total = rows[name], 0
            for bucket, number in measured.items():
                total += number
                for place in row.passed(bucket):
                    hits[place] += number
            for place in row.places:
                requests[place] += total
        for name in waited:
            if name not in rows:
                continue
            row, known = rows[name], Tail(self.relative.get(name, {}))
            passed = Tail(self._passed(name)).above_each(row.buckets)
            for place, slow, own in zip(row.places, known.above_each(row.buckets), passed, strict=True):
                over = max(0, own)
                requests[place] += known.total - slow + over
                hits[place] += over
        return requests, hits


def by_stratum(each: Sequence[Mapping[str, int]]) -> dict[str, Row]:
    """Sort buckets by stratum: of each, those of the mappings that have one, by their place."""
    buckets: dict[str, dict[int, int]] = {}
    for place, own in enumerate(each):
        for name, bucket in own.items():
            buckets.setdefault(name, {})[place] = bucket
    return {name: Row.of(own) for name, own in buckets.items()}


class Waiting:
    """The requests without a first token, as each gateway reported them last; a silent gateway's are forgotten."""

    def __init__(self) -> None:
        self._by_instance: dict[str, tuple[float, Strata]] = {}
        self._total: Strata | None = {}  # of all instances; None: not added up yet

    def take(self, start: float, pieces: Collection[Slice]) -> Side:
        """Take over the slices of one start. Times must not go back."""
        begin = self.total()
        self._forget(start)
        relative, unmeasured = dict[str, Histogram](), dict[str, Histogram]()
        for piece in pieces:
            for name, counts in piece.load.items():
                if counts.relative:
                    _put(relative, name, counts.relative)
                if counts.unmeasured:
                    _put(unmeasured, name, counts.unmeasured)
            self.update(piece)
        return Side(relative, unmeasured, begin, self.total())

    def update(self, piece: Slice) -> None:
        """Take over the end of a slice. One without load-adjusted times only shows how much time has passed."""
        self._forget(piece.start)
        if piece.adjusted:
            waiting = {name: counts.waiting for name, counts in piece.load.items() if counts.waiting}
            self._by_instance[piece.instance] = (piece.start, waiting)
            self._total = None

    def total(self) -> Strata:
        """Return the ages as multiples of the expected time."""
        if self._total is None:
            self._total = _merged([strata for _, strata in self._by_instance.values()])
        return self._total

    def copied(self) -> Waiting:
        result = Waiting()
        result._by_instance, result._total = dict(self._by_instance), self._total
        return result

    def _forget(self, now: float) -> None:
        """Forget the gateways that have been silent for too long."""
        for name in [name for name, (newest, _) in self._by_instance.items() if newest < now - SILENT_SECONDS]:
            del self._by_instance[name]
            self._total = None


def _merged(parts: Sequence[Strata]) -> Strata:
    if len(parts) == 1:
        return parts[0]
    sums: dict[str, Histogram] = {}
    for part in parts:
        for name, own in part.items():
            _put(sums, name, own)
    return sums


def _put(sums: dict[str, Histogram], name: str, own: Histogram) -> None:
    """Add a stratum's histogram, and leave those that are added as they are."""
    sums[name] = sketch.merged([sums[name], own]) if name in sums else own
