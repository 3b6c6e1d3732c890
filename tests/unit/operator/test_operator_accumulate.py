"""Protects how a source's slices are added up, by values computed by hand: which requests a block holds and when it ends, whose requests
count from when on, and that the sums of earlier decisions save work and change no result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis import accumulate as module
from pagefleet_operator.domain.analysis.accumulate import Accumulator, Scope, Side, SignalTest, StoredSums, StratumSums
from pagefleet_operator.domain.analysis.adjusted.memory import SETTLED_SECONDS
from pagefleet_operator.domain.analysis.failures import Bound, FailureCounts
from pagefleet_operator.domain.analysis.paired import BlockCounts
from pagefleet_operator.domain.base.edged import Edged
from pagefleet_operator.domain.status.observation import LoadCounts, Slice

TEST = SignalTest("ttft", 0.75, 0.15, 1000.0)
OTHER = SignalTest("e2e", 0.75, 0.15, 1000.0)
BOUND = Bound("ttft", 1.0)
SCOPE = Scope("s", "c", 0.0, 0, (TEST,))
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


def state(sums: StratumSums) -> str:
    """All that decides."""
    test = sums.test
    inner = (sums.stable, sums.canary, sums.unmeasured, sums.edged, sums.has_canary, sums._sides, sums._at_begin)
    flying = sums.ages(of_canary=False), sums.ages(of_canary=True), sums._begin
    return repr((inner, flying, test.threshold, test.blocks, test.total, test.logs))


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


# One revision's slices of a service, and what counts of them.


def added(*pieces: Slice, scope: Scope = SCOPE) -> Accumulator:
    sums = Accumulator(scope)
    for one in pieces:
        sums.add(one)
    return sums


def of(sums: Accumulator, stratum: str = "short") -> StratumSums:
    return sums.strata[stratum][TEST]


STABLE = piece(100.0, "s", {QUICK: 4}, errors=1)


@pytest.mark.parametrize(
    "foreign",
    [
        replace(STABLE, revision="x"),
        replace(STABLE, errors=9),  # more errors than requests cannot be
        replace(STABLE, load={"x": LoadCounts({1: 1})}),
    ],
)
def test_slices_of_others_impossible_ones_and_load_adjusted_times_count_nothing(foreign: Slice) -> None:
    sums = added(foreign)
    assert (sums.strata, sums.periods) == ({}, {})
    assert of(added(foreign, STABLE)).stable == {QUICK: 4}


def test_each_signal_of_each_stratum_has_sums_of_its_own() -> None:
    both = {"ttft": {QUICK: 3}, "e2e": {SLOW: 3}}
    pieces = [replace(piece(0.0, "c", {QUICK: 3}, stratum), latency=both) for stratum in ("short", "long")]
    sums = added(*pieces, piece(0.0, "s", {QUICK: 9}, "empty"), *pieces, scope=replace(SCOPE, tests=(TEST, OTHER)))
    assert {stratum: list(tests) for stratum, tests in sums.strata.items()} == {
        stratum: [TEST, OTHER] for stratum in ("short", "long", "empty")
    }
    assert list(sums.strata_of(OTHER)) == ["long", "short"], "where the canary has been measured"
    assert [one.canary for one in sums.strata_of(OTHER).values()] == [{SLOW: 6}] * 2
    assert [one.canary for one in sums.strata_of(TEST).values()] == [{QUICK: 6}] * 2


def test_requests_count_from_the_begin_on_and_those_that_waited_before_are_no_hits() -> None:
    scope = replace(SCOPE, begin=100.0, bounds=(BOUND,))
    early = [piece(99.0, revision, {QUICK: 9}, flying={SLOW: 3}) for revision in ("s", "c")]
    sums = added(*early, piece(100.0, "c", {QUICK: 5}, flying={SLOW: 4}), scope=scope)
    assert of(sums).stable == {} and of(sums).canary == {QUICK: 5}
    assert of(sums).ages(of_canary=False) == {SLOW: 3} and of(sums).ages(of_canary=True) == {SLOW: 4}
    assert list(sums.periods) == [10] and sums.periods[10].canary == 5
    period = sums.slow[BOUND].periods[10]
    assert (period.canary, period.canary_failed, period.stable) == (6, 1, 0), "one more is slow than before"
    sums.add(piece(102.0, "s", {QUICK: 5}, flying={SLOW: 3}))
    assert (period.stable, period.stable_failed) == (5, 0)


def test_a_canary_warms_up_by_the_requests_that_came() -> None:
    """Those that ended count where nobody counts the others, and those that another service answered count too."""
    scope = replace(SCOPE, warm_up=10, bounds=(BOUND,))
    sums = added(piece(100.0, "s", {QUICK: 20}), scope=scope)
    sums.add(piece(100.0, "c", {QUICK: 1}, started=4))
    sums.add(piece(102.0, "c", {QUICK: 3}, flying={SLOW: 2}))
    sums.add(piece(104.0, "c", {SLOW: 1}, started=0, fell_back=2))
    assert of(sums).canary == {} and sums.periods[10].canary == 0
    assert sums.slow[BOUND].periods[10].canary == 0
    sums.add(piece(106.0, "c", {QUICK: 1}, started=1))
    assert of(sums).canary == {}, "nine had come"
    sums.add(piece(108.0, "c", {QUICK: 7}))
    assert of(sums).canary == {QUICK: 7} and sums.periods[10].canary == 7
    assert of(sums).stable == {QUICK: 20} and sums.periods[10].stable == 20


def test_a_period_counts_what_came_failed_and_was_answered_elsewhere_by_revision() -> None:
    """All numbers differ, so that none stands for another."""
    stable = piece(
        101.0, "s", {}, requests=50, errors=7, started=60, retried=1, client_errors=2, timeouts=3, fell_back=4
    )
    canary = piece(
        101.0, "c", {}, requests=40, errors=9, started=30, retried=5, client_errors=6, timeouts=8, fell_back=10
    )
    one = FailureCounts(
        stable=50, stable_failed=7, stable_arrived=60, stable_client_errors=2, stable_timeouts=3, stable_fell_back=4,
        canary=40, canary_failed=9, canary_arrived=30, canary_client_errors=6, canary_timeouts=8, canary_fell_back=10,
        canary_retried=5, starts=(101.0,),
    )  # fmt: skip
    sums = added(stable, canary)
    assert sums.periods == {10: one}
    later = [replace(stable, start=109.0), replace(canary, start=109.0), replace(stable, start=110.0)]
    twice = {name: 2 * count for name, count in vars(one).items() if name != "starts"}
    rest = FailureCounts(
        stable=50, stable_failed=7, stable_arrived=60, stable_client_errors=2, stable_timeouts=3, stable_fell_back=4
    )
    assert added(stable, canary, *later).periods == {10: FailureCounts(**twice, starts=(101.0, 109.0)), 11: rest}


def test_slices_of_one_time_count_the_same_in_any_order() -> None:
    scope = replace(SCOPE, warm_up=8, begin=10.0, bounds=(BOUND,))
    times = [10.0, *(100.0 + 2 * step for step in range(30))]
    groups = [
        [piece(start, "s", {QUICK: 8}, flying={SLOW: 1}), piece(start, "c", {QUICK: 3, SLOW: 1}, flying={SLOW: 2})]
        for start in times
    ]
    one = added(*(own for group in groups for own in group), scope=scope)
    other = added(*(own for group in groups for own in reversed(group)), scope=scope)
    assert whole(one) == whole(other) and of(one).test.blocks


def whole(sums: Accumulator) -> str:
    strata = {name: [state(one) for one in tests.values()] for name, tests in sorted(sums.strata.items())}
    slow = [(one.periods, one.blind) for one in sums.slow.values()]
    return repr((strata, sums.periods, slow, sums._canary_requests))


def test_a_copied_accumulator_goes_its_own_way() -> None:
    scope = replace(SCOPE, warm_up=2, bounds=(BOUND,))
    pieces = [
        piece(100.0, "s", {QUICK: 4}),
        piece(100.0, "c", {QUICK: 4}),
        piece(102.0, "c", {SLOW: 4}, flying={SLOW: 1}),
    ]
    sums = added(*pieces, scope=scope)
    copy, before = sums.copied(), whole(sums)
    assert whole(copy) == before
    for one in pieces:
        copy.add(replace(one, start=104.0, stratum="short"))
        copy.add(replace(one, start=104.0, stratum="long"))
    assert whole(sums) == before != whole(copy)
    for one in (sums, copy.copied()):
        one.add(piece(106.0, "c", {QUICK: 1}, flying={SLOW: 1}))
    assert sums.slow[BOUND].periods[10].canary_failed == 5, (
        "what was in flight in the copy is no matter of the original"
    )


# The memo.


def hour(count: int, first: float = 100.0) -> tuple[Slice, ...]:
    """A slice of each revision every two seconds."""
    times = [first + 2 * step for step in range(count)]
    return tuple(piece(start, name, {QUICK: 6, SLOW: 1}) for start in times for name in ("s", "c"))


def stored(memo: Mapping[str, object]) -> StoredSums:
    sums = memo["gateway"]
    assert isinstance(sums, StoredSums)
    return sums


def decided(memo: dict[str, object], slices: tuple[Slice, ...], scope: Scope = SCOPE) -> int:
    """Decide with the memo. The sums are those without one. Return how many slices were added up."""
    sums = module.accumulate(memo, "gateway", scope, slices)
    assert whole(sums) == whole(added(*slices, scope=scope))
    kept = stored(memo)
    assert (kept.scope, kept.slices, kept.latest) == (scope, slices, sums)
    assert whole(kept.settled) == whole(added(*slices[: kept.count], scope=scope))
    return kept.added


def test_slices_of_the_last_twenty_seconds_are_not_settled() -> None:
    memo = dict[str, object]()
    slices = hour(30)
    assert decided(memo, slices) == 60
    assert stored(memo).count == 38 and slices[38].start == slices[-1].start - SETTLED_SECONDS


def test_a_decision_adds_up_the_new_slices_and_those_that_are_settled_now() -> None:
    memo = dict[str, object]()
    slices = hour(40)
    decided(memo, slices[:60])
    assert decided(memo, slices[:60]) == 0
    assert decided(memo, slices[:64]) == 4 + 4
    assert decided(memo, slices[:65]) == 1 + 2, "the second slice of a time may come in a later decision"
    assert decided(memo, slices[:66]) == 1


def test_after_a_long_gap_all_sums_begin_with_the_settled_ones() -> None:
    memo = dict[str, object]()
    slices = hour(30)
    decided(memo, slices)
    later = (*slices, *hour(15, first=500.0))
    assert decided(memo, later) == (68 - 38) + (90 - 68)
    assert stored(memo).count == 68


def test_a_late_slice_is_added_up_with_those_that_are_not_settled() -> None:
    memo = dict[str, object]()
    slices = hour(30)
    decided(memo, slices)
    late = (*slices[:50], replace(slices[50], instance="h"), *slices[50:])
    assert decided(memo, late) == 61 - 38


@pytest.mark.parametrize("place", [0, 20, 37])
def test_a_change_of_what_is_settled_is_added_up_from_the_beginning(place: int) -> None:
    memo = dict[str, object]()
    slices = hour(30)
    decided(memo, slices)
    assert decided(memo, (*slices[:place], *slices[place + 1 :])) == 59


def test_slices_that_leave_take_what_is_settled_no_further_back() -> None:
    """The newest ten are gone: what was settled stays, although it is within twenty seconds of the newest now."""
    memo = dict[str, object]()
    slices = hour(30)
    decided(memo, slices)
    assert decided(memo, slices[:50]) == 50 - 38 and stored(memo).count == 38
    assert decided(memo, ()) == 0 and stored(memo).count == 0
    assert decided(memo, slices) == 60


def test_another_scope_and_another_source_begin_anew() -> None:
    memo: dict[str, object] = {"gateway": "not ours", "engine": "kept"}
    slices = hour(30)
    assert decided(memo, slices) == 60
    assert decided(memo, slices, replace(SCOPE, warm_up=5)) == 60
    assert memo["engine"] == "kept"


def test_sums_that_failed_halfway_are_not_kept() -> None:
    memo = dict[str, object]()
    slices = hour(3)
    decided(memo, slices)
    broken = replace(slices[0], start=200.0, latency={"ttft": {QUICK: "no number"}})  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        module.accumulate(memo, "gateway", SCOPE, (*slices, broken))
    assert memo == {} and decided(memo, slices) == 6
