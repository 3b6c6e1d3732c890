"""Protects which requests a block of a stratum holds and when it ends, by values computed by hand, and that a copy of the sums goes its own
way."""

from __future__ import annotations

import math

import pytest
from support.counted_slices import QUICK, SLOW, TEST, edged, piece, state

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis.accumulate import Side, StratumSums
from pagefleet_operator.domain.analysis.paired import BlockCounts


def test_a_side_counts_its_measurements_in_the_sketch_s_buckets_and_in_their_own() -> None:
    side = Side()
    side.add("ttft", piece(0.0, "s", {QUICK: 2}, unmeasured={9: 1}))
    side.add("ttft", piece(2.0, "s", {QUICK: 1, 7: 4}, unmeasured={9: 2, 3: 1}, started=9))
    fine = {QUICK: 3, 7: 4}
    assert side == Side(fine, {}, None, fine, 11, {9: 3, 3: 1})
    side.add("ttft", edged(4.0, "s", (0.1, 0.2), {0: 5, 2: 1}))
    side.add("ttft", edged(6.0, "s", (0.1, 0.4), {0: 1, 1: 2}))
    assert (side.fine, side.edges, side.count) == (fine, (0.1,), 20)
    own = {(0.0, 0.1): 6, (0.2, math.inf): 1, (0.1, 0.4): 2}
    assert side.buckets == own
    assert side.all_buckets() == own | {
        (sketch.upper(0), sketch.upper(1)): 3,
        (sketch.upper(6), sketch.upper(7)): 4,
    }
    first, second, third = sketch.bucket_of(0.1), sketch.bucket_of(math.inf), sketch.bucket_of(0.4)
    assert side.latency == {**fine, first: 6, second: 1, third: 2}
    side.add("e2e", piece(8.0, "s", {QUICK: 1}))
    assert side.latency == {**fine, first: 6, second: 1, third: 2}, "a signal that was not measured"


def test_a_copied_side_is_its_own() -> None:
    side = Side()
    side.add("ttft", edged(0.0, "s", (0.1,), {0: 5}))
    side.add("ttft", piece(0.0, "s", {QUICK: 2}, unmeasured={9: 1}))
    copy, before = side.copied(), repr(side)
    assert repr(copy) == before
    copy.add("ttft", edged(0.0, "s", (0.1,), {0: 5}))
    copy.add("ttft", piece(0.0, "s", {QUICK: 2}, unmeasured={9: 1}))
    assert repr(side) == before


def learned() -> StratumSums:
    """Sums whose test has its threshold as soon as the slice of second 100 closes the first block."""
    sums = StratumSums(TEST)
    sums.add(piece(10.0, "s", {QUICK: 8}), False)
    return sums


@pytest.mark.parametrize(
    ("stable", "canary", "later", "ends"),
    [
        (5, 5, 4.0, True),
        (5, 5, 4.0 - 1e-7, True),  # sums of times are not exact
        (5, 5, 3.9, False),
        (4, 5, 29.0, False),
        (5, 4, 29.0, False),
        (1, 1, 29.9, False),
        (1, 1, 30.0, True),
    ],
)
def test_a_block_ends_after_four_seconds_with_five_requests_of_each_or_after_thirty(
    stable: int, canary: int, later: float, ends: bool
) -> None:
    sums = learned()
    sums.add(piece(100.0, "s", {QUICK: stable}), False)
    sums.add(piece(100.0, "c", {QUICK: canary}), True)
    sums.add(piece(100.0 + later, "s", {QUICK: 99}), False)
    assert sums.test.blocks == ([BlockCounts(stable, canary, 0, 0)] if ends else [])


def test_requests_end_a_block_when_they_come_however_slow_they_are() -> None:
    sums = learned()
    sums.add(piece(100.0, "s", {QUICK: 1}, started=5), False)
    sums.add(piece(102.0, "c", {QUICK: 1}, started=5), True)
    sums.add(piece(104.0, "c", {QUICK: 9}), True)
    assert sums.test.blocks == [BlockCounts(1, 1, 0, 0)]


def test_the_slice_that_ends_a_block_is_the_first_of_the_next() -> None:
    sums = learned()
    for start, slow in ((100.0, 0), (104.0, 1), (106.0, 1), (108.0, 2), (112.0, 0)):
        sums.add(piece(start, "s", {QUICK: 5, SLOW: slow}), False)
        sums.add(piece(start, "c", {QUICK: 6, SLOW: 2 * slow}), True)
    assert sums.test.blocks == [BlockCounts(5, 6, 0, 0), BlockCounts(12, 16, 2, 4), BlockCounts(7, 10, 2, 4)]
    assert sums.stable == {QUICK: 33, SLOW: 4} and sums.canary == {QUICK: 30, SLOW: 8}


@pytest.mark.parametrize("canary_first", [False, True])
def test_slices_of_one_time_are_in_one_block_in_whatever_order(canary_first: bool) -> None:
    """The first slice of second 104 makes the requests of its revision enough."""
    sums = learned()
    for start in (100.0, 104.0, 106.0):
        pieces = [(piece(start, "s", {QUICK: 4}), False), (piece(start, "c", {QUICK: 3}), True)]
        for one, of_canary in reversed(pieces) if canary_first else pieces:
            sums.add(one, of_canary)
    assert sums.test.blocks == [BlockCounts(8, 6, 0, 0)]


def test_requests_that_wait_are_hits_of_the_block_in_which_they_become_slow() -> None:
    """Of the stable's two, one ends measured in the second block and one in the third. Of the canary's four, one more becomes slow in the second block and one ends
    unmeasured."""
    sums = learned()
    sums.add(piece(98.0, "s", {}, flying={SLOW: 1}), False)
    sums.add(piece(100.0, "s", {QUICK: 5}, flying={SLOW: 2}), False)
    sums.add(piece(100.0, "c", {QUICK: 5}, flying={SLOW: 4, 1: 9}), True)
    sums.add(piece(104.0, "s", {QUICK: 5, SLOW: 1}, flying={SLOW: 1}), False)
    sums.add(piece(104.0, "c", {QUICK: 6}, flying={SLOW: 4}, unmeasured={SLOW: 1}), True)
    assert sums.ages(of_canary=False) == {SLOW: 1} and sums.ages(of_canary=True) == {SLOW: 5}
    sums.add(piece(108.0, "s", {QUICK: 5, SLOW: 1}), False)
    sums.add(piece(108.0, "c", {QUICK: 5}, flying={SLOW: 4}), True)
    sums.add(piece(112.0, "s", {QUICK: 5}), False)
    assert sums.test.blocks == [BlockCounts(7, 9, 2, 4), BlockCounts(5, 7, 0, 1), BlockCounts(5, 5, 0, 0)]
    assert sums.unmeasured == ({}, {SLOW: 1}) and sums.ages(of_canary=False) == {}


def test_requests_that_end_unmeasured_are_hits_too() -> None:
    sums = learned()
    sums.add(piece(100.0, "s", {QUICK: 5}, unmeasured={SLOW: 2, 1: 9}), False)
    sums.add(piece(100.0, "c", {QUICK: 5}), True)
    sums.add(piece(104.0, "c", {QUICK: 5}, unmeasured={SLOW: 3}), True)
    assert sums.test.blocks == [BlockCounts(7, 5, 2, 0)]
    assert sums.unmeasured == ({SLOW: 2, 1: 9}, {SLOW: 3})


def test_requests_that_became_slow_in_slices_that_do_not_count_are_no_hits() -> None:
    """A canary is warming up while the stable's requests count: three of its first requests wait for a minute. One of them
    ends measured when it is warm, and two others become slow then."""
    sums = learned()
    for start in range(100, 160, 2):
        sums.add(piece(start, "s", {QUICK: 5}), False)
        sums.skip(piece(start, "c", {QUICK: 2}, flying={SLOW: 3}), True)
    assert sums.test.blocks == [] and sums.canary == {} and not sums.has_canary
    assert sums.ages(of_canary=True) == {SLOW: 3}
    sums.add(piece(158.0, "c", {QUICK: 5, SLOW: 1}, flying={SLOW: 4}), True)
    sums.add(piece(160.0, "s", {QUICK: 5}), False)
    assert sums.test.blocks == [BlockCounts(75, 7, 0, 2)]


def test_a_block_with_edges_of_its_own_is_counted_at_them() -> None:
    """The threshold is 0.1 s, and the first of the canary's edges that is not below 0.115 s is 0.2 s."""
    sums = StratumSums(TEST)
    sums.add(edged(10.0, "s", (0.1, 0.2), {0: 8}), False)
    assert sums.edged and not sums.has_canary
    sums.add(edged(100.0, "s", (0.1, 0.2), {0: 5, 1: 2}), False)
    sums.add(edged(100.0, "c", (0.1, 0.2, 0.4), {1: 4, 2: 3}), True)
    sums.add(edged(104.0, "s", (0.1, 0.2), {0: 5}), False)
    assert sums.test.blocks == [BlockCounts(7, 7, 2, 3)] and sums.test.bound == 0.2
    assert sums.has_canary


def test_a_canary_in_the_sketch_s_buckets_is_counted_by_their_ends_where_the_stable_has_edges() -> None:
    """The four requests in the bound's bucket are no hits, because they may lie below. It is not split as without edges."""
    sums, edge = StratumSums(TEST), sketch.upper(349)
    sums.add(edged(10.0, "s", (edge,), {0: 8}), False)
    sums.add(edged(100.0, "s", (edge,), {0: 3, 1: 3}), False)
    sums.add(piece(100.0, "c", {QUICK: 2, sketch.bucket_of(1.15 * edge): 4, SLOW: 1}), True)
    sums.add(piece(104.0, "s", {QUICK: 5}), False)
    assert sums.test.blocks == [BlockCounts(6, 7, 3, 1)] and sums.edged


def test_a_canary_with_edges_is_held_to_them_where_the_stable_has_none() -> None:
    """The bound lies between 0.1 and 0.5 s. The three requests between them are no hits, because they may lie below."""
    sums = StratumSums(TEST)
    sums.add(piece(10.0, "s", {sketch.bucket_of(0.1): 8}), False)
    sums.add(piece(100.0, "s", {sketch.bucket_of(0.1): 5, SLOW: 1}), False)
    sums.add(edged(100.0, "c", (0.1, 0.5), {0: 2, 1: 3, 2: 1}), True)
    sums.add(piece(104.0, "s", {QUICK: 5}), False)
    assert sums.test.blocks == [BlockCounts(6, 6, 1, 1)] and sums.edged


def test_sketched_slices_have_no_edges() -> None:
    sums = learned()
    assert not sums.edged and not sums.has_canary


def more(sums: StratumSums, start: float) -> None:
    sums.add(piece(start, "s", {QUICK: 5}, flying={SLOW: 2}, unmeasured={7: 1}), False)
    sums.skip(piece(start, "c", {}, flying={SLOW: 4}), True)
    sums.add(piece(start + 2, "c", {QUICK: 5, SLOW: 1}, flying={SLOW: 5}, unmeasured={8: 1}), True)


def test_copied_sums_go_their_own_way() -> None:
    sums = learned()
    more(sums, 100.0)
    copy, before = sums.copied(), state(sums)
    assert state(copy) == before
    copy.skip(piece(102.0, "c", {}, flying={SLOW: 9}), True)
    assert state(sums) == before
    copy.add(edged(102.0, "s", (0.1,), {0: 1}), False)
    more(copy, 104.0)
    assert state(sums) == before != state(copy)
