"""One revision's load-adjusted requests in a slice, with those that wait, by load stratum."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram
from pagefleet_operator.domain.status.observation import Slice

SILENT_SECONDS = 30.0  # after which a gateway is taken for gone
Strata = Mapping[str, Histogram]
Decided = tuple[float, float]


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

    def beyond(self, histogram: Histogram) -> dict[int, int]:
        """Return how many requests are beyond each threshold, by place; a place that none is beyond is left out."""
        found: dict[int, int] = {}
        for bucket, number in histogram.items():
            for place in self.places[: bisect_left(self.buckets, bucket)]:
                found[place] = found.get(place, 0) + number
        return found


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

    def decided(self, buckets: Mapping[str, int]) -> Decided:
        """Return how many requests lie certainly above or below the bucket of their stratum, and how many above."""
        requests, hits = self.decided_each(by_stratum([buckets]), 1)
        return requests[0], hits[0]

    def decided_each(self, rows: Mapping[str, Row], count: int) -> tuple[list[int], list[int]]:
        """Return both for each of `count` mappings that `by_stratum` has sorted into `rows`."""
        requests, hits, waited = [0] * count, [0] * count, {*self.unmeasured, *self.begin, *self.end}
        for name in waited.union(self.relative):
            if (row := rows.get(name)) is None:
                continue
            measured = self.relative.get(name, {})
            total = sum(measured.values())
            for place in row.places:
                requests[place] += total
            slow = row.beyond(measured)
            for place, number in slow.items():
                hits[place] += number
            if name not in waited:
                continue
            more = row.beyond(self.unmeasured.get(name, {}))
            sketch.add_onto(more, row.beyond(self.end.get(name, {})))
            sketch.take_off(more, row.beyond(self.begin.get(name, {})))  # they were hits in an earlier slice
            for place, number in more.items():
                added = max(number, -slow.get(place, 0))
                requests[place] += added
                hits[place] += added
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
