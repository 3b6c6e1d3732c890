"""Protects the count of requests that are slower than a bound before they are measured: each once, whether it is in flight, left or was
measured; and that a gateway that is gone takes its requests with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagefleet_contract.sketch import bucket_of
from pagefleet_operator.domain.analysis.adjusted.waiting import SILENT_SECONDS
from pagefleet_operator.domain.analysis.waits import NO_WAITS, InFlight, Waits, decided
from pagefleet_operator.domain.status.observation import Slice

QUICK, SLOW = bucket_of(0.1), bucket_of(9.0)
BOUND = 1.0


@pytest.mark.parametrize(
    ("measured", "waits", "expected"),
    [
        ({QUICK: 3, SLOW: 2}, NO_WAITS, (5, 2)),
        ({QUICK: 3}, Waits(end={SLOW: 2, QUICK: 7}), (5, 2)),  # those in flight that are not slow yet decide nothing
        ({QUICK: 3, SLOW: 2}, Waits(begin={SLOW: 2}), (3, 0)),  # they were hits of an earlier block
        ({QUICK: 3}, Waits(unmeasured={SLOW: 4, QUICK: 9}), (7, 4)),
        ({QUICK: 1, SLOW: 1}, Waits(begin={SLOW: 5}, end={SLOW: 3}, unmeasured={SLOW: 2}), (2, 1)),
        ({QUICK: 3}, Waits(begin={SLOW: 2}), (3, 0)),  # lost requests make no negative counts
        ({}, NO_WAITS, (0, 0)),
    ],
)
def test_each_slow_request_counts_once(measured: dict[int, int], waits: Waits, expected: tuple[float, float]) -> None:
    assert decided(measured, waits, BOUND) == expected


def test_another_rule_says_what_is_above() -> None:
    assert decided({QUICK: 3}, NO_WAITS, BOUND, lambda histogram, bound: 2.0) == (3.0, 2.0)


def piece(start: float, instance: str, ages: dict[int, int], signal: str = "ttft") -> Slice:
    return Slice(instance, start, 2.0, "new", "", 0, 0, in_flight={signal: ages})


def flying(*pieces: Slice) -> InFlight:
    made = InFlight()
    for one in pieces:
        made.update(one, "ttft")
    return made


def test_the_newest_report_of_each_gateway_counts() -> None:
    assert InFlight().total() == {}
    assert flying(piece(0, "a", {SLOW: 1}), piece(2, "a", {SLOW: 3})).total() == {SLOW: 3}
    assert flying(piece(0, "a", {SLOW: 1}), piece(0, "b", {SLOW: 2, QUICK: 1})).total() == {SLOW: 3, QUICK: 1}
    assert flying(piece(0, "a", {SLOW: 1}), piece(2, "a", {})).total() == {}
    assert flying(piece(0, "a", {SLOW: 1}), piece(0, "a", {QUICK: 1}, "e2e")).total() == {}
    assert flying(piece(0, "a", {})).total() == {}


@pytest.mark.parametrize(("late", "left"), [(SILENT_SECONDS, {SLOW: 3}), (SILENT_SECONDS + 2.0, {SLOW: 2})])
def test_a_gateway_that_says_nothing_while_others_do_is_gone(late: float, left: dict[int, int]) -> None:
    assert flying(piece(0, "a", {SLOW: 1}), piece(late, "b", {SLOW: 2})).total() == left
    # Its slices may come late, and do not set the time back.
    assert flying(piece(late, "b", {SLOW: 2}), piece(0, "a", {SLOW: 1})).total() == left


def test_a_copy_goes_its_own_way() -> None:
    first = flying(piece(0, "a", {SLOW: 1}))
    copy = first.copied()
    first.update(piece(SILENT_SECONDS + 9, "b", {SLOW: 7}), "ttft")
    assert copy.total() == {SLOW: 1} and first.total() == {SLOW: 7}
    copy.update(replace(piece(0, "c", {SLOW: 4})), "ttft")
    assert copy.total() == {SLOW: 5}
    late = flying(piece(SILENT_SECONDS + 9, "b", {SLOW: 7})).copied()
    late.update(piece(0, "a", {SLOW: 1}), "ttft")
    assert late.total() == {SLOW: 7}
