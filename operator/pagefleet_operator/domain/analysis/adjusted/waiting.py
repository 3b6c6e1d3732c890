"""One revision's load-adjusted requests in a slice, with those that wait, by load stratum."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram
from pagefleet_operator.domain.status.observation import LoadCounts, Slice

SILENT_SECONDS = 30.0  # after which a gateway is taken for gone
Strata = Mapping[str, Histogram]
Decided = tuple[float, float]
Row = tuple[list[int], list[int]]


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


NO_TAIL = Tail({})


@dataclass(frozen=True)
class Side:
    """The requests that were measured in a slice, those that ended unmeasured, and those that wait at its begin and end."""

    relative: Strata
    unmeasured: Strata
    begin: Strata
    end: Strata

    @property
    def strata(self) -> KeysView[str]:
        return self._tails.keys()

    @cached_property
    def _tails(self) -> dict[str, tuple[Tail, Tail]]:
        """By stratum: the requests that were measured, and those whose age has passed a bucket in the slice."""
        tails = {}
        for name, histogram in self.relative.items():
            measured = Tail(histogram)
            tails[name] = measured, measured
        for name in {*self.unmeasured, *self.begin, *self.end}:
            tails[name] = tails.get(name, (NO_TAIL,))[0], Tail(self._passed(name))
        return tails

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
        return self.decided_each(by_stratum([buckets]), 1)[0]

    def decided_each(self, rows: Mapping[str, Row], count: int) -> list[Decided]:
        """Return that for each of `count` mappings that `by_stratum` has sorted into `rows`."""
        requests, hits = [0] * count, [0] * count
        for name, (measured, passed) in self._tails.items():
            if name not in rows:
                continue
            places, buckets = rows[name]
            above = passed.above_each(buckets)
            slow = above if passed is measured else measured.above_each(buckets)  # the same where nobody waits
            for place, known, own in zip(places, slow, above, strict=True):
                over = own if own > 0 else 0
                requests[place] += measured.total - known + over
                hits[place] += over
        return list(zip(requests, hits, strict=True))


def by_stratum(each: Sequence[Mapping[str, int]]) -> dict[str, Row]:
    """Sort buckets by stratum: the places of the mappings that have one of it, and these buckets."""
    rows: dict[str, Row] = {}
    for place, buckets in enumerate(each):
        for name, bucket in buckets.items():
            places, known = rows.setdefault(name, ([], []))
            places.append(place)
            known.append(bucket)
    return rows


class Waiting:
    """The requests without a first token, as each gateway reported them last; a silent gateway's are forgotten."""

    def __init__(self) -> None:
        self._by_instance: dict[str, tuple[float, Strata]] = {}
        self._total: Strata | None = {}  # of all instances; None: not added up yet

    def take(self, start: float, pieces: Collection[Slice]) -> Side:
        """Take over the slices of one start. Times must not go back."""
        begin = self.total()
        self._forget(start)
        for piece in pieces:
            self.update(piece)
        loads = [piece.load for piece in pieces]
        return Side(_sum(loads, "relative"), _sum(loads, "unmeasured"), begin, self.total())

    def update(self, piece: Slice) -> None:
        """Take over the end of a slice. One without load-adjusted times only shows how much time has passed."""
        self._forget(piece.start)
        if piece.adjusted:
            self._by_instance[piece.instance] = (piece.start, _of(piece.load, "waiting"))
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


def _of(load: Mapping[str, LoadCounts], field: str) -> Strata:
    return {name: own for name, counts in load.items() if (own := getattr(counts, field))}


def _sum(loads: Iterable[Mapping[str, LoadCounts]], field: str) -> Strata:
    return _merged([_of(load, field) for load in loads])


def _merged(parts: Sequence[Strata]) -> Strata:
    if len(parts) == 1:
        return parts[0]
    sums: dict[str, Histogram] = {}
    for part in parts:
        for name, own in part.items():
            sums[name] = sketch.merged([sums[name], own]) if name in sums else own
    return sums
