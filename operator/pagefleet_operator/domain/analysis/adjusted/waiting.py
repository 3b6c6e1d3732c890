"""One revision's load-adjusted requests in a slice, with those that wait, by load stratum."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram
from pagefleet_operator.domain.status.observation import LoadCounts, Slice

SILENT_SECONDS = 30.0  # after which a gateway is taken for gone
Strata = Mapping[str, Histogram]


class Tail:
    """How many requests of a histogram lie above a bucket, for many buckets."""

    def __init__(self, histogram: Histogram) -> None:
        self._buckets = sorted(histogram)
        above = [*accumulate(map(histogram.__getitem__, reversed(self._buckets)), initial=0)]
        above.reverse()
        self._above, self.total = above, above[0]

    def above(self, bucket: int) -> int:
        return self._above[bisect_right(self._buckets, bucket)]

    def above_each(self, buckets: Sequence[int]) -> tuple[int, ...]:
        """Return how many lie above each of the buckets."""
        known, above = self._buckets, self._above
        return tuple([above[bisect_right(known, bucket)] for bucket in buckets])


NO_TAIL = Tail({})


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

    @cached_property
    def _tails(self) -> dict[str, tuple[Tail, Tail]]:
        """By stratum: the requests that were measured, and those whose age has passed a bucket in the slice."""
        tails = {name: Tail(histogram) for name, histogram in self.relative.items()}
        waited = {*self.unmeasured, *self.begin, *self.end}
        return {
            name: (tails.get(name, NO_TAIL), Tail(self._passed(name)) if name in waited else tails[name])
            for name in self.strata
        }

    def _passed(self, name: str) -> Histogram:
        """The requests by the buckets that they have passed, less those that had passed them at the slice's begin."""
        passed = sketch.merged(
            [strata[name] for strata in (self.relative, self.unmeasured, self.end) if name in strata]
        )
        for bucket, count in self.begin.get(name, {}).items():
            passed[bucket] = passed.get(bucket, 0) - count
        return passed

    def decided(self, buckets: Mapping[str, int]) -> tuple[float, float]:
        """Return how many requests lie certainly above or below the bucket of their stratum, and how many above."""
        requests = hits = 0
        for name, (measured, passed) in self._tails.items():
            bucket = buckets.get(name)
            if bucket is None:
                continue
            above = passed.above(bucket)
            if passed is measured:  # nobody waits
                requests += measured.total
            else:
                above = max(0, above)
                requests += measured.total - measured.above(bucket) + above
            hits += above
        return requests, hits


class Waiting:
    """The requests without a first token, as each gateway reported them last; a silent gateway's are forgotten."""

    def __init__(self) -> None:
        self._by_instance: dict[str, tuple[float, Strata]] = {}
        self._total: Strata | None = {}  # of all instances; None: not added up yet

    def take(self, start: float, pieces: Iterable[Slice]) -> Side:
        """Take over the slices of one start. Times must not go back."""
        begin, loads = self.total(), list[Mapping[str, LoadCounts]]()
        self._forget(start)
        for piece in pieces:
            loads.append(piece.load)
            self.update(piece)
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


def _sum(loads: list[Mapping[str, LoadCounts]], field: str) -> Strata:
    return _merged([_of(load, field) for load in loads])


def _merged(parts: list[Strata]) -> Strata:
    if len(parts) <= 1:
        return parts[0] if parts else {}
    names = {name for part in parts for name in part}
    return {name: sketch.merged([part[name] for part in parts if name in part]) for name in names}
