"""Protects what the watch of the stable revision counts, by numbers computed by hand: which slices make a minute, the class of its running
requests, the requests that are slower than a bound, and the evidence that a minute adds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from pagefleet_contract.sketch import bucket_of
from pagefleet_operator.domain.analysis.watching.evidence import Bet, after, quiet, total
from pagefleet_operator.domain.analysis.watching.minutes import (
    Minute,
    StratumMinute,
    complete,
    newest_complete,
    running_class,
)
from pagefleet_operator.domain.status.observation import LoadCounts, PodReading, RevisionReading, Slice, SpareReading

SECOND, LATER = bucket_of(1.0), bucket_of(3.0)
READY = PodReading("p", ready=True, terminating=False, created=0.0, ready_since=0.0)
READING = RevisionReading("a", 1, (READY,))
EMPTY: Mapping[int, int] = {}


def loaded(start: float, ttft: int = 1, waiting: Mapping[int, int] = EMPTY, stratum: str = "0-63") -> Slice:
    counts = LoadCounts({100: ttft}, waiting, {7: 1}, {103: ttft})
    return Slice("g", start, 2.0, "a", "", 0, 0, load={stratum: counts})


def counted(start: float, running: int, waiting: int = 0, stratum: str = "512-1447", seconds: float = 2.0) -> Slice:
    in_flight = {"e2e": {1: running, 2: waiting}, "ttft": {2: waiting}}
    return Slice("g", start, seconds, "a", stratum, 1, 0, in_flight=in_flight if running + waiting else {})


def test_measured_requests_above_the_bound_s_bucket_are_slow() -> None:
    measured = StratumMinute({SECOND - 5: 4, SECOND: 3, SECOND + 1: 2}, {1: 1}, {2000: 7}, {2000: 7})
    assert measured.decided(1.0, None) == (2, 9), "without the expected time, ages say nothing"
    assert StratumMinute().decided(1.0, None) == StratumMinute().decided(1.0, 5.0) == (0, 0)


@pytest.mark.parametrize("shift", [0.0, 10.0, -4.0])
def test_a_request_that_waits_is_slow_when_its_age_is_three_times_the_bound_and_was_not_before(shift: float) -> None:
    limit = round(LATER - shift)
    minute = StratumMinute({SECOND: 3}, {limit + 1: 1, limit: 9}, {limit + 1: 5, limit: 9}, {limit + 1: 2, limit: 9})
    assert minute.decided(1.0, shift) == (2 + 5 - 1, 3 + 6)
    gone = StratumMinute({SECOND: 3}, {limit + 1: 5})
    assert gone.decided(1.0, shift) == (0, 3), "no request takes another one's hit away"


@pytest.mark.parametrize(
    ("running", "replicas", "expected"),
    [(0, 1, 0), (1, 1, 0), (1.4, 1, 0), (1.42, 1, 1), (2, 1, 2), (4, 1, 4), (8, 2, 4), (8, 0, 6), (2**30, 1, 40)],
)
def test_a_class_of_running_requests_ends_at_1_4_times_its_begin(running: float, replicas: int, expected: int) -> None:
    assert running_class(running, replicas) == expected


def test_in_a_load_stratum_above_all_prompts_the_work_is_a_queue() -> None:
    minute = Minute(0.0, 0, {}, frozenset({"0-63"}))
    assert minute.is_queue("512-1447 queued") and minute.is_queue("512-1447")
    assert not minute.is_queue("0-63 queued") and not minute.is_queue("0-63")
    assert not Minute(0.0, 0, {}).is_queue("512-1447"), "no prompt is known"


def test_a_minute_is_complete_twenty_seconds_after_its_end() -> None:
    assert [newest_complete(now) for now in (79.0, 80.0, 139.9, 140.0)] == [0.0, 60.0, 60.0, 120.0]


def test_minutes_are_whole_and_of_possible_slices_of_the_revision() -> None:
    pieces = [
        loaded(119.0, 4), loaded(60.0, 2), loaded(120.0, 8), loaded(59.0, 16), loaded(180.0, 32),
        replace(loaded(61.0, 64), revision="b"), replace(loaded(61.0, 64), errors=1), counted(130.0, 3, stratum="x"),
    ]  # fmt: skip
    found = complete(pieces, READING, 0.5, 200.0)
    assert [(minute.start, minute.strata["0-63"].measured) for minute in found] == [(60.0, {103: 6}), (120.0, {103: 8})]
    assert [minute.running for minute in found] == [0, 0]
    assert found[0].strata["0-63"].unmeasured == {7: 2} and found[0].strata["0-63"].shift == 3.0
    assert [minute.start for minute in complete(pieces, READING, 60.0, 139.0)] == []
    assert [minute.start for minute in complete(pieces, READING, 60.0, 140.0)] == [60.0]
    assert complete([counted(70.0, 3)], READING, 0.0, 200.0) == [], "nothing was measured by load"


def test_requests_that_wait_at_a_minute_s_ends_are_those_of_the_slices_before() -> None:
    """A gateway's slices count from half a minute before the first minute on."""
    pieces = [loaded(30.0, waiting={5: 2}), loaded(62.0, waiting={5: 3}), loaded(70.0, waiting={6: 4}), loaded(125.0)]
    first, second = complete(pieces, READING, 60.0, 200.0)
    one, other = first.strata["0-63"], second.strata["0-63"]
    assert (one.begin, one.end, other.begin, other.end) == ({5: 2}, {6: 4}, {6: 4}, {})
    silent = complete([replace(pieces[0], start=29.0), *pieces[1:]], READING, 60.0, 200.0)
    assert silent[0].strata["0-63"].begin == {}


def test_the_shift_is_the_distance_of_the_mean_buckets_and_needs_measurements() -> None:
    load = {
        "one": LoadCounts({10: 1, 20: 3}, {}, {}, {30: 1, 60: 3}),
        "two": LoadCounts({}, {3: 1}, {}, {}),
        "three": LoadCounts({10: 1}, {}, {}, {}),
        "four": LoadCounts({}, {}, {}, {30: 1}),
    }
    [minute] = complete([Slice("g", 60.0, 2.0, "a", "", 0, 0, load=load)], READING, 60.0, 200.0)
    shifts = {name: stratum.shift for name, stratum in minute.strata.items()}
    assert shifts == {"one": 52.5 - 17.5, "two": None, "three": None, "four": None}
    assert minute.strata["two"].end == {3: 1} and minute.strata["two"].begin == {}


def test_running_requests_are_a_minute_s_mean_of_those_with_a_first_token_and_no_last_one() -> None:
    """Slices of 30, 20 and 10 seconds with 4, 2 and 8 running requests: 4 in the mean, which is the class 4."""
    slices = [counted(60.0, 4, 9, seconds=30.0), counted(90.0, 2, seconds=20.0), counted(110.0, 8, seconds=10.0)]
    [minute] = complete([loaded(60.0), *slices], READING, 60.0, 200.0)
    assert (minute.running, minute.prompts) == (4, {"512-1447"})
    [minute] = complete([loaded(60.0), *slices[1:]], READING, 60.0, 200.0)
    assert minute.running == 2


def test_the_prompts_of_a_minute_are_those_that_came_or_are_in_flight() -> None:
    none = replace(counted(62.0, 0, stratum="none"), requests=0)
    flying = replace(counted(62.0, 1, stratum="flying"), requests=0)
    [minute] = complete([loaded(60.0), none, flying, counted(64.0, 0, stratum="came")], READING, 60.0, 200.0)
    assert minute.prompts == {"flying", "came"}


def test_running_requests_are_shared_by_the_pods_that_were_ready_then() -> None:
    young, gone = replace(READY, ready_since=61.0), replace(READY, terminating=True)
    broken, unknown = replace(READY, ready=False), replace(READY, ready_since=None)
    slices = [loaded(60.0), counted(60.0, 16, seconds=60.0)]

    def running(*pods: PodReading, spares: tuple[PodReading, ...] = ()) -> int:
        reading = RevisionReading("a", 1, pods, spares=tuple(map(SpareReading, spares)))
        return complete(slices, reading, 60.0, 200.0)[0].running

    assert running(READY) == running(READY, young, gone, broken, unknown) == 8
    assert running(READY, replace(READY, ready_since=60.0)) == 6
    assert running(READY, spares=(READY, gone, broken)) == 6
    assert running(READY, spares=(READY, READY, gone, broken)) == 4
    assert running(young, unknown) == 6, "all of them when none was ready"
    assert running() == 8


BET = Bet(share=0.05, dispersion=2.0, ceiling=100.0, maximum=100.0)
ODDS = (1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
FOUR_WEEKS = 4 * 7 * 24 * 60


def gain(odds: float, hits: int, misses: int) -> float:
    """Half of the logarithm of the likelihood ratio of these odds: hits have twice the variance of independent ones."""
    share = odds * 0.05 / (0.95 + odds * 0.05)
    return 0.5 * (hits * math.log(share / 0.05) + misses * math.log((1 - share) / 0.95))


def test_each_minute_begins_a_bet_whose_stakes_of_four_weeks_add_up_to_one() -> None:
    first = after((), 2, 10, BET)
    stake = 1 / (FOUR_WEEKS * 6)
    assert first == pytest.approx([math.log(stake) + gain(odds, 2, 8) for odds in ODDS])
    second = after(first, 3, 4, BET)
    expected = [math.log(math.exp(log) + stake) + gain(odds, 3, 1) for log, odds in zip(first, ODDS, strict=True)]
    assert second == pytest.approx(expected)
    assert after((0.0,) * 5, 2, 10, BET) == first, "logarithms of other alternatives do not count"


def test_a_minute_adds_no_more_than_the_ceiling_and_the_evidence_has_a_floor_and_a_maximum() -> None:
    begin = -math.log(FOUR_WEEKS * 6)
    assert after((), 50, 50, replace(BET, ceiling=3.0)) == pytest.approx((begin + 3.0,) * 6)
    assert after((2.5,) * 6, 50, 50, replace(BET, maximum=4.0)) == (4.0,) * 6
    assert after((), 0, 10**6, BET) == (-700.0,) * 6


def test_evidence_is_the_sum_of_the_bets_and_quiet_below_two_minutes_stakes() -> None:
    assert total(()) == -700.0
    assert total((math.log(2), math.log(3))) == pytest.approx(math.log(5))
    assert quiet((math.log(2 / FOUR_WEEKS),)) and quiet(()) and not quiet((math.log(2.1 / FOUR_WEEKS),))
