"""Adds one source's slices up in the order of time, into the sums that the guard's signals need.

A memo holds the sums of earlier decisions (`accumulate`), so that a decision costs the slices that are new, not an
hour of them. With the memo or without it, and whatever was asked before, the result is the same.
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_left
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram
from pagefleet_operator.domain.analysis.adjusted.memory import SETTLED_SECONDS
from pagefleet_operator.domain.analysis.failures import Bound, FailureCounts, SlowCounts, period_of
from pagefleet_operator.domain.analysis.paired import Block, PairedTest
from pagefleet_operator.domain.analysis.sources import begins_with
from pagefleet_operator.domain.analysis.waits import NO_WAITS, InFlight, Waits
from pagefleet_operator.domain.base.edged import Pair, common, of_sketch
from pagefleet_operator.domain.status.observation import START, Slice

MIN_BLOCK_SECONDS, MAX_BLOCK_SECONDS, BLOCK_REQUESTS = 4.0, 30.0, 5


@dataclass(frozen=True)
class SignalTest:
    """The test of one latency signal; `ceiling` as in `PairedTest`."""

    signal: str
    quantile: float
    increase: float
    ceiling: float


@dataclass(frozen=True)
class Scope:
    """The slices that count: of these revisions, from `begin` on, without the canary's first `warm_up` requests."""

    stable: str
    canary: str
    begin: float
    warm_up: int
    tests: tuple[SignalTest, ...]
    bounds: tuple[Bound, ...] = ()


@dataclass
class Side:
    """One revision's part of the block that is open."""

    latency: dict[int, int] = field(default_factory=dict)
    buckets: dict[tuple[float, float], int] = field(default_factory=dict)  # of measurements with edges of their own
    edges: tuple[float, ...] | None = None
    fine: dict[int, int] = field(default_factory=dict)  # the part of `latency` that is in no bucket of those
    count: int = 0  # requests that came
    unmeasured: dict[int, int] = field(default_factory=dict)  # by age

    def add(self, signal: str, piece: Slice) -> None:
        """Count a slice's measurements of one signal."""
        histogram, edged = piece.latency.get(signal, {}), piece.edged.get(signal)
        self.count += sketch.total(histogram) if piece.started is None else piece.started
        sketch.add_onto(self.latency, histogram)
        sketch.add_onto(self.unmeasured, piece.unmeasured.get(signal, {}))
        if edged is None:
            sketch.add_onto(self.fine, histogram)
            return
        self.edges = common(self.edges, edged.bounds)
        for ends, count in edged.buckets().items():
            self.buckets[ends] = self.buckets.get(ends, 0) + count

    def all_buckets(self) -> dict[tuple[float, float], int]:
        """All counts by the ends of their buckets, the sketch's and the measurement's own."""
        return {**of_sketch(self.fine), **self.buckets}

    def copied(self) -> Side:
        own = dict(self.latency), dict(self.buckets), self.edges, dict(self.fine), self.count, dict(self.unmeasured)
        return Side(*own)


class StratumSums:
    """One signal in one stratum: all measurements of both revisions, and the test on closed blocks.

    A block is closed after MIN_BLOCK_SECONDS with BLOCK_REQUESTS requests of each revision, or after MAX_BLOCK_SECONDS.
    Its end depends on how many requests came, never on how slow they were.
    """

    def __init__(self, test: SignalTest) -> None:
        self._signal = test.signal
        self.test = PairedTest(test.quantile, test.increase, test.ceiling)
        self.stable: dict[int, int] = {}
        self.canary: dict[int, int] = {}
        self.unmeasured: tuple[dict[int, int], dict[int, int]] = ({}, {})  # requests that ended so, by age
        self.has_canary = False  # whether the canary has slices at all
        self.edged = False  # whether some slice has buckets of its own
        self._sides = (Side(), Side())
        self._in_flight = (InFlight(), InFlight())
        self._at_begin: list[Histogram] = [{}, {}]  # in flight when the open block began to count, by age
        self._begin: float | None = None
        self._newest = -math.inf  # the start of the newest slice that counts

    def add(self, piece: Slice, of_canary: bool) -> None:
        """Close the open block if it is complete, then count a slice in the next. Slices of one time are in one block."""
        is_later, self._newest = piece.start > self._newest, piece.start
        if self._begin is not None and is_later and self._block_ends(piece.start - self._begin):
            stable, canary = self._sides
            waits = self._waits(0, stable), self._waits(1, canary)
            self.test.add(Block(stable.latency, canary.latency, _pair(stable, canary), waits))
            self._sides, self._begin = (Side(), Side()), None
        if self._begin is None:
            self._begin = piece.start
            self._at_begin = [in_flight.total() for in_flight in self._in_flight]
        self._sides[of_canary].add(self._signal, piece)
        self._in_flight[of_canary].update(piece, self._signal)
        self.has_canary |= of_canary
        self.edged |= self._signal in piece.edged
        sketch.add_onto(self.canary if of_canary else self.stable, piece.latency.get(self._signal, {}))
        sketch.add_onto(self.unmeasured[of_canary], piece.unmeasured.get(self._signal, {}))

    def skip(self, piece: Slice, of_canary: bool) -> None:
        """Note the requests in flight at the end of a slice that does not count. How old they are is no news later."""
        self._in_flight[of_canary].update(piece, self._signal)
        self._at_begin[of_canary] = self._in_flight[of_canary].total()

    def ages(self, of_canary: bool) -> dict[int, int]:
        """The ages of the requests without a measurement: in flight now, or ended without one."""
        return sketch.merged([self.unmeasured[of_canary], self._in_flight[of_canary].total()])

    def copied(self) -> StratumSums:
        result = copy.copy(self)
        result.test = self.test.copied()
        result.stable, result.canary = dict(self.stable), dict(self.canary)
        result.unmeasured = dict(self.unmeasured[0]), dict(self.unmeasured[1])
        result._sides = (self._sides[0].copied(), self._sides[1].copied())
        result._in_flight = (self._in_flight[0].copied(), self._in_flight[1].copied())
        result._at_begin = list(self._at_begin)
        return result

    def _waits(self, place: int, side: Side) -> Waits:
        begin, end = self._at_begin[place], self._in_flight[place].total()
        return Waits(begin, end, side.unmeasured) if begin or end or side.unmeasured else NO_WAITS

    def _block_ends(self, seconds: float) -> bool:
        enough = min(side.count for side in self._sides) >= BLOCK_REQUESTS
        return seconds >= MAX_BLOCK_SECONDS or (seconds >= MIN_BLOCK_SECONDS - 1e-6 and enough)


class Accumulator:
    """The sums of one source: `strata` by stratum and test, `periods` by number, `slow` by bound.

    Slices must come in the order of time. Those of one time may come in any order.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.strata: dict[str, dict[SignalTest, StratumSums]] = {}
        self.periods: dict[int, FailureCounts] = {}
        self.slow = {bound: SlowCounts(bound) for bound in scope.bounds}
        self._canary_requests = 0

    def add(self, piece: Slice) -> None:
        """Count a slice of the scope, of the canary's those after its warm-up.

        Load-adjusted times are in slices without a stratum, which would otherwise be a stratum without requests.
        """
        scope = self._scope
        if piece.adjusted or piece.revision not in (scope.stable, scope.canary) or not piece.possible:
            return
        of_canary = piece.revision == scope.canary
        if piece.start < scope.begin or (of_canary and self._warming_up(piece)):
            self._skip(piece, of_canary)
        else:
            self._count(piece, of_canary)

    def _warming_up(self, piece: Slice) -> bool:
        """Whether fewer requests than those of the warm-up came before. One that never ends has come, too."""
        before = self._canary_requests
        self._canary_requests += piece.arrived + piece.fell_back
        return before < self._scope.warm_up

    def _skip(self, piece: Slice, of_canary: bool) -> None:
        for sums in self._sums(piece.stratum):
            sums.skip(piece, of_canary)
        for slow in self.slow.values():
            slow.skip(piece, of_canary)

    def _sums(self, stratum: str) -> Iterable[StratumSums]:
        tests = self.strata.get(stratum)
        if tests is None:
            tests = self.strata[stratum] = {test: StratumSums(test) for test in self._scope.tests}
        return tests.values()

    def _count(self, piece: Slice, of_canary: bool) -> None:
        for sums in self._sums(piece.stratum):
            sums.add(piece, of_canary)
        for slow in self.slow.values():
            slow.add(piece, of_canary)
        period = period_of(self.periods, piece)
        period.add(piece.requests, piece.errors, piece.start, of_canary)
        if of_canary:
            period.canary_arrived += piece.arrived
            period.canary_retried += piece.retried
            period.canary_client_errors += piece.client_errors
            period.canary_timeouts += piece.timeouts
            period.canary_fell_back += piece.fell_back
        else:
            period.stable_arrived += piece.arrived
            period.stable_client_errors += piece.client_errors
            period.stable_timeouts += piece.timeouts
            period.stable_fell_back += piece.fell_back

    def strata_of(self, test: SignalTest) -> dict[str, StratumSums]:
        """A signal's sums by stratum, in order, where the canary has been measured."""
        strata = {stratum: tests[test] for stratum, tests in sorted(self.strata.items())}
        return {stratum: sums for stratum, sums in strata.items() if sums.has_canary}

    def copied(self) -> Accumulator:
        result = copy.copy(self)
        result.strata = {
            stratum: {test: sums.copied() for test, sums in tests.items()} for stratum, tests in self.strata.items()
        }
        result.periods = {number: copy.copy(period) for number, period in self.periods.items()}
        result.slow = {bound: slow.copied() for bound, slow in self.slow.items()}
        return result


@dataclass(frozen=True)
class StoredSums:
    """`latest` has all of `slices` in it, and `settled` the first `count` of them. The last call has added `added`."""

    scope: Scope
    slices: Sequence[Slice]
    latest: Accumulator
    settled: Accumulator
    count: int
    added: int


def accumulate(memo: MutableMapping[str, object], source: str, scope: Scope, ordered: Sequence[Slice]) -> Accumulator:
    """Add up slices in the order of time. The sums of old slices come from the memo while these are still the same.

    The order of new slices may still change: then these are added up again, onto the sums of the settled ones.
    """
    stored = memo.pop(source, None)  # not in the memo while it changes: a failure halfway must not leave it there
    if not isinstance(stored, StoredSums) or stored.scope != scope:
        stored = StoredSums(scope, (), Accumulator(scope), Accumulator(scope), 0, 0)
    known, settled, done = len(stored.slices), stored.settled, stored.count
    same = begins_with(memo, ordered, stored.slices)
    if not same and ordered[:done] != stored.slices[:done]:
        settled, done = Accumulator(scope), 0
    border = bisect_left(ordered, ordered[-1].start - SETTLED_SECONDS, key=START) if ordered else 0
    border = max(done, border)
    for piece in ordered[done:border]:
        settled.add(piece)
    if same and known >= border:
        latest, first = stored.latest, known
    else:
        latest, first = settled.copied(), border
    for piece in ordered[first:]:
        latest.add(piece)
    added = border - done + len(ordered) - first
    memo[source] = StoredSums(scope, ordered, latest, settled, border, added)
    return latest


def _pair(stable: Side, canary: Side) -> Pair | None:
    """The block in the measurement's own buckets; None when all of it is in the sketch's."""
    if stable.edges is None and canary.edges is None:
        return None
    return Pair(stable.all_buckets(), canary.all_buckets(), canary.edges)
