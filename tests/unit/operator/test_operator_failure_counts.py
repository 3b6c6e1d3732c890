"""Protects the counts of a canary's failures: in which period a slice lies, and how requests that are slower than a bound become failures."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import pytest

from pagefleet_contract.sketch import bucket_of
from pagefleet_operator.domain.analysis.failures import Bound, FailureCounts, SlowCounts, period_of
from pagefleet_operator.domain.base.edged import Edged
from pagefleet_operator.domain.status.observation import Slice

QUICK, SLOW = bucket_of(0.1), bucket_of(9.0)


def piece(start: float = 0.0, **fields: object) -> Slice:
    return replace(Slice("g", start, 2.0, "new", "", 0, 0), **fields)  # type: ignore[arg-type]


def test_a_period_counts_slices_by_revision_and_notes_when_the_canary_failed() -> None:
    counts = FailureCounts()
    assert dataclasses.astuple(counts) == (0, 0, 0, 0, (), *[0] * 9)
    counts.add(10, 2, 100.0, of_canary=False)
    counts.add(5, 1, 102.0, of_canary=True)
    counts.add(7, 0, 104.0, of_canary=True)
    counts.add(3, 3, 106.0, of_canary=True)
    counts.add(20, 4, 108.0, of_canary=False)
    assert counts == FailureCounts(30, 6, 15, 4, (102.0, 106.0))


@pytest.mark.parametrize(
    ("start", "seconds", "number"),
    [(0.0, 2, 0), (9.9, 2, 0), (10.0, 2, 1), (29.9, 2, 2), (30.0, 2, 3), (5.0, 10, 0), (5.0, 15, 1), (5.0, 100, 9)],
)
def test_a_period_has_ten_seconds_and_a_longer_slice_is_in_its_last_one(
    start: float, seconds: int, number: int
) -> None:
    periods = {number: FailureCounts(stable=7)}
    assert period_of(periods, piece(start, seconds=seconds)) is periods[number] and len(periods) == 1
    assert period_of({}, piece(start)) == FailureCounts()


def slow_of(*pieces: Slice) -> SlowCounts:
    counts = SlowCounts(Bound("ttft", 1.0))
    for one in pieces:
        counts.add(one, of_canary=True)
    return counts


@pytest.mark.parametrize(
    ("pieces", "counted"),
    [
        ([piece(latency={"ttft": {QUICK: 3, SLOW: 2}})], (5, 2)),
        ([piece(latency={"e2e": {QUICK: 3, SLOW: 2}})], (0, 0)),
        ([piece(latency={"ttft": {QUICK: 3}}, unmeasured={"ttft": {SLOW: 2, QUICK: 9}})], (5, 2)),
        ([piece(in_flight={"ttft": {SLOW: 2, QUICK: 9}})], (2, 2)),
        # A request that was slow in flight is no second failure when it ends; one of another stratum is another request.
        ([piece(in_flight={"ttft": {SLOW: 2}}), piece(2.0, latency={"ttft": {QUICK: 1, SLOW: 2}})], (3, 2)),
        ([piece(in_flight={"ttft": {SLOW: 2}}), piece(2.0, stratum="s", latency={"ttft": {SLOW: 2}})], (4, 4)),
        # Counts by a gateway's own edges: what lies in the bucket of the bound is not shown to be slower.
        (
            [piece(latency={"ttft": {QUICK: 6}}, edged={"ttft": Edged((0.5, 1.0, 4.0, math.inf), {0: 3, 1: 1, 2: 2})})],
            (6, 2),
        ),
        ([piece(latency={"ttft": {QUICK: 6}}, edged={"ttft": Edged((0.5, 4.0, math.inf), {1: 4, 2: 2})})], (6, 2)),
    ],
)
def test_a_request_slower_than_the_bound_fails_once(pieces: list[Slice], counted: tuple[int, int]) -> None:
    counts = slow_of(*pieces)
    assert [(one.canary, one.canary_failed) for one in counts.periods.values()] == [counted]
    assert counts.blind is False


def test_a_request_that_was_slow_before_the_first_slice_that_counts_is_no_failure() -> None:
    counts = SlowCounts(Bound("ttft", 1.0))
    assert counts.skip(piece(in_flight={"ttft": {SLOW: 2}}), of_canary=True) == ({}, {SLOW: 2})
    counts.add(piece(2.0, latency={"ttft": {SLOW: 2}}), of_canary=True)
    counts.add(piece(2.0, revision="old", latency={"ttft": {SLOW: 2}}), of_canary=False)
    assert counts.periods == {0: FailureCounts(stable=2, stable_failed=2)}


def test_a_bound_above_the_last_edge_once_is_blind_for_good() -> None:
    short, long = Edged((0.5, math.inf), {0: 1}), Edged((0.5, 1.0, math.inf), {0: 1})
    assert slow_of(piece(edged={"ttft": short}), piece(2.0, edged={"ttft": long})).blind is True
    assert slow_of(piece(edged={"ttft": long})).blind is False


def test_a_copy_counts_on_its_own() -> None:
    first = slow_of(piece(in_flight={"ttft": {SLOW: 2}}))
    copy = first.copied()
    first.add(piece(2.0, in_flight={"ttft": {SLOW: 5}}), of_canary=True)
    first.add(piece(12.0, latency={"ttft": {SLOW: 5}}), of_canary=True)
    assert copy.periods == {0: FailureCounts(canary=2, canary_failed=2, starts=(0.0,))}
    copy.add(piece(2.0, latency={"ttft": {SLOW: 2}}), of_canary=True)
    assert copy.periods == {0: FailureCounts(canary=2, canary_failed=2, starts=(0.0,))}
