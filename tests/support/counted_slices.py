"""Slices of two seconds of one signal for tests that add them up, by values computed by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis.accumulate import SignalTest, StratumSums
from pagefleet_operator.domain.base.edged import Edged
from pagefleet_operator.domain.status.observation import Slice

TEST = SignalTest("ttft", 0.75, 0.15, 1000.0)
QUICK, SLOW = 1, 500  # buckets; the second is above any bound here
Counts = Mapping[int, int]


def piece(start: float, revision: str, measured: Counts, stratum: str = "short", **other: Counts | int) -> Slice:
    """A slice of two seconds. `flying` and `unmeasured` are by age; the other fields are counts."""
    named = {"in_flight": {"ttft": other.pop("flying", {})}, "unmeasured": {"ttft": other.pop("unmeasured", {})}}
    requests = sum(measured.values())
    return replace(Slice("g", start, 2.0, revision, stratum, requests, 0, {"ttft": measured}), **named, **other)


def edged(start: float, revision: str, bounds: tuple[float, ...], counts: Counts) -> Slice:
    """A slice of a measurement with edges of its own."""
    measured = Edged((*bounds, math.inf), counts)
    latency = {sketch.bucket_of(measured.bounds[place]): count for place, count in counts.items()}
    return replace(piece(start, revision, latency), edged={"ttft": measured})


def state(sums: StratumSums) -> str:
    """All that decides."""
    test = sums.test
    inner = (sums.stable, sums.canary, sums.unmeasured, sums.edged, sums.has_canary, sums._sides, sums._at_begin)
    flying = sums.ages(of_canary=False), sums.ages(of_canary=True), sums._begin
    return repr((inner, flying, test.threshold, test.blocks, test.total, test.logs))
