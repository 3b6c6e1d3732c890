"""Adds up the load of a service from the gateways' slices: arrivals in steps of ten seconds, time to first token, tokens.

Each slice is added once, when it has been read. So a reading costs the slices that are new, not an hour of them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram, Ranks
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.sample import ServiceLoad

STEP, STEPS = 10.0, 360
SLICE_SECONDS = 2.0
IN_STEP = round(STEP / SLICE_SECONDS)  # slices
CLOSED_AFTER = 4.0  # a slice of two seconds is closed two seconds after its end
RECENT_SECONDS, MIN_SAMPLES = 60.0, 20
STARTED_STEP, STARTED_SECONDS = 30.0, 1860.0  # of the requests that were sent to each revision
AHEAD = 30  # slices by which gateways' clocks may differ
RETAINED = STEPS * IN_STEP + 2 * AHEAD


class LoadSums:
    """The load of a service. Times are by the gateways' clock."""

    def __init__(self) -> None:
        self._arrived = [0] * (RETAINED + 1)  # the arrivals up to each end of a slice of two seconds, oldest first
        self._newest = 0  # the last end, in slices
        self._counting: dict[str, float] = {}  # gateways that count arrivals, and when they did so last
        self._started: dict[str, dict[int, int]] = {}
        self._recent = _Recent()

    def add(self, slices: Collection[Slice], now: float) -> None:
        """Add new slices, in any order.

        For a gateway of an older version, which counts no arrivals, the requests that ended count instead.
        """
        self._move_to(now)
        new: dict[int, int] = {}  # by the end of a slice
        self._counting |= {piece.instance: now for piece in slices if piece.arrivals is not None}
        for piece in slices:
            if piece.adjusted:  # counts nothing else
                continue
            count = piece.arrivals if piece.instance in self._counting else piece.requests
            place = self._newest - math.ceil((piece.start + piece.seconds) / SLICE_SECONDS)
            if count and 0 <= place < RETAINED:
                new[RETAINED - place] = new.get(RETAINED - place, 0) + count
            if piece.revision and piece.arrived and abs(piece.start - now) <= STARTED_SECONDS:
                started = self._started.setdefault(piece.revision, {})
                step = math.floor(piece.start / STARTED_STEP)
                started[step] = started.get(step, 0) + piece.arrived
            if abs(piece.start - now) <= 2 * RECENT_SECONDS:
                self._recent.add(piece)
        more = 0
        for end in range(min(new, default=RETAINED + 1), RETAINED + 1):
            more += new.get(end, 0)
            self._arrived[end] += more

    def load(self, held: int, now: float, whole: bool) -> ServiceLoad:
        """The load of a service.

        `whole` says that every gateway has answered; without it the load is older than any limit. The time to first token
        includes requests that have waited for longer than most already.
        """
        self._move_to(now)
        self._counting = {name: last for name, last in self._counting.items() if last > now - STEP * STEPS}
        end = _closed(now) * SLICE_SECONDS
        self._forget_started(now)
        self._recent.forget(end - RECENT_SECONDS)
        last = max(STEPS * IN_STEP, RETAINED - self._newest + _closed(now))
        ends = self._arrived[last - STEPS * IN_STEP : last + 1 : IN_STEP]
        rates = [arrived / STEP for arrived in map(operator.sub, ends[1:], ends)]
        return ServiceLoad(
            age=now - end if whole else math.inf,
            held=held,
            arrivals=tuple(rates),
            step=STEP,
            ttft=self._recent.ttft(),
            tokens=self._recent.tokens / RECENT_SECONDS if self._recent.reports else None,
            started={revision: dict(steps) for revision, steps in self._started.items()},
        )

    def _forget_started(self, now: float) -> None:
        oldest = math.floor((now - STARTED_SECONDS) / STARTED_STEP)
        for revision in list(self._started):
            left = {step: count for step, count in self._started[revision].items() if step >= oldest}
            self._started[revision] = left
            if not left:
                del self._started[revision]

    def _move_to(self, now: float) -> None:
        """Make room for the slices that gateways may have closed. After a clock was set back, what arrived so far counts as just before."""
        if _closed(now) + 2 * AHEAD < self._newest:
            self._newest = _closed(now) + AHEAD
            self._started, self._recent = {}, _Recent()
        newest = max(self._newest, _closed(now) + AHEAD)
        more = min(RETAINED, newest - self._newest)
        self._arrived = [*self._arrived[more:], *[self._arrived[-1]] * more]
        self._newest = newest


class _Recent:
    """The sums of the slices of the last RECENT_SECONDS."""

    def __init__(self) -> None:
        self.tokens, self.reports = 0, 0  # slices that report tokens
        self._slices: dict[float, list[Slice]] = {}  # by their start
        self._latency, self._ages = dict[int, int](), dict[int, int]()
        # Requests in flight in the newest slice of each gateway and group, and the slice's start.
        self._in_flight: dict[tuple[str, str, str], tuple[float, Histogram]] = {}

    def add(self, piece: Slice) -> None:
        self._slices.setdefault(piece.start, []).append(piece)
        self._count(piece, 1, sketch.add_onto)
        group = _group(piece)
        if piece.start >= self._in_flight.get(group, (-math.inf,))[0]:
            self._in_flight[group] = piece.start, piece.in_flight.get("ttft", {})

    def forget(self, before: float) -> None:
        """Forget the slices that began before a time."""
        for start in [start for start in self._slices if start < before]:
            for piece in self._slices.pop(start):
                self._count(piece, -1, sketch.take_off)
                group = _group(piece)
                if self._in_flight.get(group, (math.inf,))[0] <= start:
                    del self._in_flight[group]

    def ttft(self) -> float | None:
        """The 95th percentile of the time to first token; None for too few requests."""
        ages = sketch.merged([self._ages, *(waiting for _, waiting in self._in_flight.values() if waiting)])
        known = Ranks(self._latency)
        if ages:
            known = Ranks(sketch.with_lasting(self._latency, ages, known.quantile(0.95) or 0.0))
        return known.quantile(0.95) if known.total >= MIN_SAMPLES else None

    def _count(self, piece: Slice, sign: int, change: Callable[[dict[int, int], Histogram], None]) -> None:
        self.tokens += sign * (piece.tokens or 0)
        self.reports += sign * (piece.tokens is not None)
        if latency := piece.latency.get("ttft"):
            change(self._latency, latency)
        if ages := piece.unmeasured.get("ttft"):
            change(self._ages, ages)


def _group(piece: Slice) -> tuple[str, str, str]:
    return piece.instance, piece.revision, piece.stratum


def _closed(now: float) -> int:
    """The end of the newest closed slice, in slices."""
    return math.floor((now - CLOSED_AFTER) / SLICE_SECONDS) + 1
