"""Slices of one source added up in the order of time: what the guard's signals ask of a canary and its stable.

A fold is carried on with what is new (`folds`), so that a decision costs what has come since the last one, not an hour.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram
from pagefleet_operator.domain.analysis.paired import Block, Paired
from pagefleet_operator.domain.base.edged import Pair, common, of_sketch
from pagefleet_operator.domain.status.observation import Slice

BLOCK_SECONDS, LONGEST_BLOCK, BLOCK_REQUESTS = 4.0, 60.0, 10
PERIOD = 10.0  # seconds in which the stable's failures excuse the canary's


@dataclass(frozen=True)
class Test:
    """What one latency signal is tested for; `ceiling` as in `Paired`."""

    signal: str
    quantile: float
    increase: float
    ceiling: float


@dataclass(frozen=True)
class Scope:
    """Which slices count: of these revisions, from `begin` on, without the canary's first `warm_up` requests."""

    stable: str
    canary: str
    begin: float
    warm_up: int
    tests: tuple[Test, ...]


@dataclass
class Side:
    """One revision's part of the block that is open."""

    latency: dict[int, int] = field(default_factory=dict)
    buckets: dict[tuple[float, float], int] = field(default_factory=dict)  # of measurements with edges of their own
    edges: tuple[float, ...] | None = None
    fine: dict[int, int] = field(default_factory=dict)  # the part of `latency` that is in no bucket of those
    count: int = 0

    def add(self, signal: str, piece: Slice) -> None:
        histogram, edged = piece.latency.get(signal, {}), piece.edged.get(signal)
        self.count += sketch.total(histogram)
        _onto(self.latency, histogram)
        if edged is None:
            _onto(self.fine, histogram)
            return
        self.edges = common(self.edges, edged.bounds)
        for ends, count in edged.buckets().items():
            self.buckets[ends] = self.buckets.get(ends, 0) + count

    def all_buckets(self) -> dict[tuple[float, float], int]:
        return {**of_sketch(self.fine), **self.buckets}

    def copied(self) -> Side:
        return Side(dict(self.latency), dict(self.buckets), self.edges, dict(self.fine), self.count)


class Compared:
    """One signal in one stratum: all that either revision had, and the test on closed blocks.

    A block is closed after four seconds with ten requests of each revision, or a minute: when it ends depends on how
    many requests came, never on how slow they were.
    """

    def __init__(self, wanted: Test) -> None:
        self._signal = wanted.signal
        self.test = Paired(wanted.quantile, wanted.increase, wanted.ceiling)
        self.stable: dict[int, int] = {}
        self.canary: dict[int, int] = {}
        self.met = False  # whether the canary has slices at all
        self.edged = False  # whether some slice has buckets of its own
        self._sides = (Side(), Side())
        self._begin: float | None = None

    def add(self, piece: Slice, ours: bool) -> None:
        if self._begin is not None and self._full(piece.start):
            stable, canary = self._sides
            self.test.add(Block(stable.latency, canary.latency, _pair(stable, canary)))
            self._sides, self._begin = (Side(), Side()), None
        self._begin = piece.start if self._begin is None else self._begin
        self._sides[ours].add(self._signal, piece)
        self.met |= ours
        self.edged |= self._signal in piece.edged
        _onto(self.canary if ours else self.stable, piece.latency.get(self._signal, {}))

    def copied(self) -> Compared:
        result = copy.copy(self)
        result.test = self.test.copied()
        result.stable, result.canary = dict(self.stable), dict(self.canary)
        result._sides = (self._sides[0].copied(), self._sides[1].copied())
        return result

    def _full(self, start: float) -> bool:
        begin = self._begin or 0.0
        enough = min(side.count for side in self._sides) >= BLOCK_REQUESTS
        return start >= begin + LONGEST_BLOCK or (start >= begin + BLOCK_SECONDS - 1e-6 and enough)


@dataclass
class Failures:
    """Requests and failures of both revisions in one period, and when the canary's failures began."""

    stable: int = 0
    stable_failed: int = 0
    canary: int = 0
    canary_failed: int = 0
    starts: tuple[float, ...] = ()


class Fold:
    """`strata` by stratum and test, `periods` by number; complete after `flush`. Slices come in the order of time."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.strata: dict[str, dict[Test, Compared]] = {}
        self.periods: dict[int, Failures] = {}
        self._warm = 0
        self._pending: list[Slice] = []  # of one moment: the stable's come first, in whatever order they arrived

    def add(self, piece: Slice) -> None:
        scope = self._scope
        if piece.start < scope.begin or piece.revision not in (scope.stable, scope.canary) or not piece.possible:
            return
        if self._pending and piece.start != self._pending[0].start:
            self.flush()
        self._pending.append(piece)

    def flush(self) -> None:
        pending, self._pending = self._pending, []
        for piece in pending:
            if piece.revision == self._scope.stable:
                self._take(piece, ours=False)
        for piece in pending:
            if piece.revision == self._scope.canary:
                warm, self._warm = self._warm, self._warm + piece.requests
                if warm >= self._scope.warm_up:
                    self._take(piece, ours=True)

    def _take(self, piece: Slice, *, ours: bool) -> None:
        tests = self.strata.get(piece.stratum)
        if tests is None:
            tests = self.strata[piece.stratum] = {wanted: Compared(wanted) for wanted in self._scope.tests}
        for compared in tests.values():
            compared.add(piece, ours)
        period = self.periods.setdefault(math.floor(piece.start / PERIOD), Failures())
        if ours:
            period.canary += piece.requests
            period.canary_failed += piece.errors
            if piece.errors:
                period.starts = (*period.starts, piece.start)
        else:
            period.stable += piece.requests
            period.stable_failed += piece.errors

    def compared(self, wanted: Test) -> dict[str, Compared]:
        """By stratum, in order, where the canary has been measured."""
        found = {stratum: tests[wanted] for stratum, tests in sorted(self.strata.items())}
        return {stratum: one for stratum, one in found.items() if one.met}

    def copied(self) -> Fold:
        result = copy.copy(self)
        result.strata = {
            stratum: {wanted: one.copied() for wanted, one in tests.items()} for stratum, tests in self.strata.items()
        }
        result.periods = {number: copy.copy(one) for number, one in self.periods.items()}
        result._pending = list(self._pending)
        return result


def _pair(stable: Side, canary: Side) -> Pair | None:
    """None when all of it is in the sketch's own buckets."""
    if stable.edges is None and canary.edges is None:
        return None
    return Pair(stable.all_buckets(), canary.all_buckets(), canary.edges)


def _onto(total: dict[int, int], histogram: Histogram) -> None:
    for bucket, count in histogram.items():
        total[bucket] = total.get(bucket, 0) + count
