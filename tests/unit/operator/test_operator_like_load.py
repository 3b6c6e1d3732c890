"""Protects the judgement of the stable revision by its predecessor's record, by numbers computed by hand: which minutes and requests
count, when the evidence convicts and until when, and what is stored and said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis.watching import evidence
from pagefleet_operator.domain.analysis.watching.evidence import Bet
from pagefleet_operator.domain.analysis.watching.like_load import Answer, Question, judge
from pagefleet_operator.domain.spec.rollout import LatencyGuard
from pagefleet_operator.domain.status.observation import LoadCounts, PodReading, RevisionReading, Slice
from pagefleet_operator.domain.status.status import BaselineRecord, WatchRecord

ENTRY = LatencyGuard("ttft", 0.9, 0.2, 0.99, 50)
READING = RevisionReading("a", 1, (PodReading("p", ready=True, terminating=False, created=0.0, ready_since=0.0),))
NEEDED = math.log(1 / ((1 - 0.99) / 2))  # of a confidence of 99 %: half of what may be wrong is the watch's
STEP = (NEEDED + math.log(4 * 7 * 24 * 60 * 6)) / 4  # a conviction takes four minutes
BET = Bet(1 - 0.9, 2.0, STEP, NEEDED + math.log(10))
QUICK, SLOW = 400, 500  # buckets; the bound is 1.2 times the upper end of 400


def record(count: int = 1000, name: str = "a", running: int = 40, bucket: int = QUICK) -> BaselineRecord:
    return BaselineRecord("z", "ttft", f"load {name}, running {running}", {str(bucket): count}, "gateway")


QUESTION = Question(ENTRY, (record(),), since=0.0, now=500.0)


def part(start: float, times: Mapping[int, int], name: str = "a") -> Slice:
    return Slice("g", start, 2.0, "a", "", 0, 0, load={name: LoadCounts(times, ttft=times)})


def minutes(count: int, times: Mapping[int, int], first: float = 120.0) -> list[Slice]:
    return [part(first + 60.0 * number, times) for number in range(count)]


def test_each_complete_minute_adds_its_evidence_and_three_never_convict() -> None:
    found = judge(QUESTION, minutes(3, {SLOW: 50}), READING, None)
    expected: tuple[float, ...] = ()
    for _ in range(3):
        expected = evidence.after(expected, 50, 50, BET)
    assert found.record == WatchRecord("a", "ttft p90", 120.0, 300.0, expected, 150, 150, False)
    assert (found.convicted, found.hits, found.trials, found.log) == (False, 150, 150, evidence.total(expected))
    assert judge(QUESTION, minutes(4, {SLOW: 50}), READING, None).convicted


def test_a_request_is_slow_above_the_recorded_quantile_and_the_accepted_increase() -> None:
    """1.2 times a bucket's end is inside the tenth one further, which counts as below."""
    found = judge(QUESTION, minutes(1, {QUICK + 10: 30, QUICK + 11: 20}), READING, None)
    assert (found.hits, found.trials) == (20, 50)
    assert found.record is not None and found.record.logs == evidence.after((), 20, 50, BET)


def test_the_minutes_of_seven_minutes_since_the_begin_that_are_new_count() -> None:
    slices = minutes(8, {QUICK: 7, SLOW: 3}, first=0.0)
    first = judge(QUESTION, slices, READING, None)
    assert first.trials == 60 and first.record is not None, "from second 120 on"
    assert (first.record.since, first.record.until) == (120.0, 480.0)
    assert judge(replace(QUESTION, since=200.0), slices, READING, None).trials == 40
    stored = replace(first.record, until=420.0, since=33.0)
    second = judge(QUESTION, slices, READING, stored)
    assert (second.hits, second.trials) == (18 + 3, 60 + 10) and second.record is not None
    assert second.record == replace(
        stored, until=480.0, logs=evidence.after(stored.logs, 3, 10, BET), hits=21, trials=70, regressed=False
    )
    other = judge(QUESTION, slices, READING, replace(stored, revision="b"))
    assert other == first, "the evidence is of another revision"


def test_after_the_clock_was_set_back_the_minutes_that_come_count() -> None:
    stored = WatchRecord("a", "ttft p90", 33.0, 7200.0, (-1.0,) * 6, 21, 70)
    kept = judge(QUESTION, minutes(6, {SLOW: 9}), READING, stored).record
    assert kept == replace(stored, until=480.0)
    later = judge(replace(QUESTION, now=560.0), minutes(7, {SLOW: 9}), READING, kept)
    assert (later.hits, later.trials) == (30, 79)


def test_without_a_new_minute_the_evidence_stays() -> None:
    stored = WatchRecord("a", "ttft p90", 33.0, 480.0, (-1.0,) * 6, 21, 70)
    assert judge(QUESTION, minutes(6, {SLOW: 9}), READING, stored).record == stored
    assert judge(QUESTION, [], READING, stored).record == stored
    assert judge(QUESTION, [], READING, None) == Answer(None)


def test_little_evidence_is_not_stored_and_a_minute_without_a_bound_adds_none() -> None:
    assert judge(QUESTION, minutes(3, {QUICK: 50}), READING, None) == replace(
        judge(QUESTION, minutes(3, {QUICK: 50}), READING, None), record=None, convicted=False, hits=0, trials=150
    )
    unknown = judge(QUESTION, [part(120.0, {SLOW: 50}, "other")], READING, None)
    assert unknown == Answer(None)


@pytest.mark.parametrize(("log", "regressed", "convicted"), [(-0.2, True, False), (0.0, True, True), (0.0, False, False),
                                                             (NEEDED, False, True), (NEEDED - 0.1, False, False)])  # fmt: skip
def test_a_conviction_lasts_until_the_evidence_is_what_nobody_would_bet_on(
    log: float, regressed: bool, convicted: bool
) -> None:
    stored = WatchRecord("a", "ttft p90", 33.0, 480.0, (log, *(-700.0,) * 5), 21, 70, regressed, "then")
    found = judge(QUESTION, [], READING, stored)
    assert found.convicted is convicted and found.record is not None
    assert found.record.regressed is convicted
    said = "then" if convicted and regressed else ""
    assert found.record.message == said or (
        convicted and not regressed and "revision a; 30.0% of its 70" in found.record.message
    )


def test_a_stored_conviction_without_numbers_is_a_conviction() -> None:
    stored = WatchRecord("a", "ttft p90", 33.0, 480.0, (NEEDED + 1,) * 6)
    found = judge(QUESTION, [], READING, stored)
    assert found.convicted and found.record is not None and "; 0.0% of its 0 requests" in found.record.message


def test_evidence_grows_to_ten_times_a_conviction_at_most() -> None:
    found = judge(QUESTION, minutes(6, {SLOW: 50}), READING, None)
    assert found.record is not None and found.record.logs == pytest.approx((NEEDED + math.log(10),) * 6)


def test_the_message_states_the_ratio_at_the_same_load_and_the_share_of_slow_requests() -> None:
    found = judge(QUESTION, minutes(4, {QUICK: 10, QUICK + 35: 40}), READING, None)
    assert found.convicted and found.record is not None and found.ratio == pytest.approx(1.02**35)
    assert found.record.message == (
        "ttft p90 of revision a is 2.00 times that recorded at the same load; 80.0% of its 200 requests are slower than "
        f"the p90 recorded at their load by more than 20%, accepted 10.0% (evidence {math.exp(found.log):.3g})"
    )


def test_the_ratio_is_the_mean_over_the_loads_with_twenty_requests_by_their_number() -> None:
    """Twice 15 requests of one load are 30: 10 buckets further. Ten of another are 20, and 19 are too few."""
    records = (record(), record(name="b"), record(name="c"))
    slices = [
        part(120.0, {QUICK + 10: 15}), part(180.0, {QUICK + 10: 15}), part(240.0, {QUICK - 20: 20}, "b"),
        part(300.0, {QUICK + 90: 19}, "c"), part(360.0, {QUICK + 90: 50}, "d"),
    ]  # fmt: skip
    found = judge(replace(QUESTION, records=records), slices, READING, None)
    assert found.ratio == pytest.approx(1.02 ** ((30 * 10 - 20 * 20) / 50))
    assert judge(QUESTION, minutes(1, {QUICK: 19}), READING, None).ratio is None


@pytest.mark.parametrize(("count", "trials"), [(999, 0), (1000, 50)])
def test_loads_that_the_predecessor_never_had_are_judged_by_the_revision_s_own_record(count: int, trials: int) -> None:
    """From 1000 requests on. Where the predecessor has a record, that one counts."""
    question = replace(QUESTION, own=(record(count, "b"), record(5000, "a", bucket=SLOW)))
    found = judge(question, [part(120.0, {SLOW: 50}, "b")], READING, None)
    assert (found.hits, found.trials) == (trials, trials)
    assert judge(question, minutes(1, {SLOW: 50}), READING, None).hits == 50


def test_the_dispersion_is_that_of_both_records() -> None:
    question = replace(QUESTION, own=(replace(record(name="b"), dispersion=5.0),))
    found = judge(question, minutes(1, {QUICK: 20, SLOW: 30}), READING, None)
    assert found.record is not None
    assert found.record.logs == evidence.after((), 30, 50, replace(BET, dispersion=5.0))


@pytest.mark.parametrize(
    ("times", "counted"),
    [({462: 48}, (0, 0)), ({463: 12, QUICK: 36}, (0, 0)), ({463: 13, QUICK: 35}, (13, 48))],
)
def test_in_a_queue_only_more_slow_requests_than_accepted_count_at_the_bound_of_its_longest(
    times: Mapping[int, int], counted: tuple[int, int]
) -> None:
    """A queue moves through a stratum, whose ends are 2.8 times apart: its bound is in bucket 462. A quarter may be slower."""
    question = replace(QUESTION, entry=replace(ENTRY, quantile=0.75))
    arrived = Slice("g", 120.0, 2.0, "a", "0-63", 5, 0)
    found = judge(question, [arrived, part(120.0, times)], READING, None)
    assert (found.hits, found.trials) == counted


def test_requests_that_hang_are_slow_by_the_shift_of_minutes_that_count_already() -> None:
    """Ages count in seconds by the newest measurements: here 30 buckets. Three times the bound is in bucket 465."""
    counts = LoadCounts({QUICK - 30: 40}, ttft={QUICK: 40})
    measured = Slice("g", 120.0, 2.0, "a", "", 0, 0, load={"a": counts})
    hanging = Slice("g", 180.0, 2.0, "a", "", 0, 0, load={"a": LoadCounts(waiting={465 - 30: 5, 466 - 30: 6})})
    before = judge(QUESTION, [measured], READING, None)
    assert (before.hits, before.trials) == (0, 40)
    stored = WatchRecord("a", "ttft p90", 120.0, 180.0, (-1.0,) * 6, 0, 40)
    after = judge(QUESTION, [measured, hanging], READING, stored)
    assert (after.hits, after.trials) == (6, 46)


def test_buckets_of_the_bounds_are_as_these_tests_say() -> None:
    bound = 1.2 * sketch.upper(QUICK)
    assert [sketch.bucket_of(times * bound) for times in (1.0, 2.0**1.5, 3.0)] == [410, 462, 465]
