"""Protects how a source's slices are added up, by values computed by hand: whose requests count from when on, and that the sums of earlier
decisions save work and change no result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.counted_slices import QUICK, SLOW, TEST, piece, state

from pagefleet_operator.domain.analysis import accumulate as module
from pagefleet_operator.domain.analysis.accumulate import Accumulator, Scope, SignalTest, StoredSums, StratumSums
from pagefleet_operator.domain.analysis.adjusted.memory import SETTLED_SECONDS
from pagefleet_operator.domain.analysis.failures import Bound, FailureCounts
from pagefleet_operator.domain.status.observation import LoadCounts, Slice

OTHER = SignalTest("e2e", 0.75, 0.15, 1000.0)
BOUND = Bound("ttft", 1.0)
SCOPE = Scope("s", "c", 0.0, 0, (TEST,))


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
    assert "gateway" not in memo and decided(memo, slices) == 6
