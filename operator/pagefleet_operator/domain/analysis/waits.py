"""Counts requests that are older than a bound before they are measured: those in flight, and those that never will be.

A gateway reports at each slice's end how old the requests in flight are, and in each slice how old those were that ended
without a measurement (their client left, or they failed). A request is a hit of a bound in the slice in which its age
passes the bound, and never again: what is older than the bound at the end, plus what ended older than it, minus what
was older at the beginning. A client that leaves after A seconds is thereby a lower bound on its latency (it is censored
on the right; Kaplan & Meier, "Nonparametric Estimation from Incomplete Observations", JASA 1958): above A nothing is
known of it, and it counts for neither side. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram
from pagefleet_operator.domain.analysis.adjusted.waiting import SILENT_SECONDS
from pagefleet_operator.domain.status.observation import Slice

Above = Callable[[Histogram, float], float]


@dataclass(frozen=True)
class Waits:
    """One side of a block: requests in flight at its beginning and at its end, and those that ended unmeasured, by age."""

    begin: Histogram = field(default_factory=dict)
    end: Histogram = field(default_factory=dict)
    unmeasured: Histogram = field(default_factory=dict)


NO_WAITS = Waits()


def decided(measured: Histogram, waits: Waits, bound: float, above: Above = sketch.above) -> tuple[float, float]:
    """Return how many requests the block decides about (slower than `bound` or not), and how many of them are slower."""
    slow = above(measured, bound)
    quick = sketch.total(measured) - slow
    if waits is not NO_WAITS:
        slow += above(waits.unmeasured, bound) + above(waits.end, bound) - above(waits.begin, bound)
    hits = max(0.0, slow)
    return quick + hits, hits


class InFlight:
    """The requests in flight of one revision in one stratum, as each gateway reported them last.

    A gateway with requests in flight reports them in every slice. One that has reported nothing for SILENT_SECONDS while
    others have is gone, and its requests with it.
    """

    def __init__(self) -> None:
        self._by_instance: dict[str, tuple[float, Histogram]] = {}  # the slice's start, and the ages
        self._newest = -math.inf

    def update(self, piece: Slice, signal: str) -> None:
        """Take over a slice's end. A gateway sends no slice for a group in which nothing is in flight any more and
        nothing has ended, so a missing slice changes nothing."""
        self._newest = max(self._newest, piece.start)
        ages = piece.in_flight.get(signal, {})
        if ages:
            self._by_instance[piece.instance] = (piece.start, ages)
        else:
            self._by_instance.pop(piece.instance, None)

    def total(self) -> Histogram:
        """Return the ages at the newest slice's end."""
        present = [ages for start, ages in self._by_instance.values() if start >= self._newest - SILENT_SECONDS]
        return present[0] if len(present) == 1 else sketch.merged(present)

    def copied(self) -> InFlight:
        result = InFlight()
        result._by_instance, result._newest = dict(self._by_instance), self._newest
        return result
