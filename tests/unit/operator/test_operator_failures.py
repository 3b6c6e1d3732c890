"""Protects the evidence that too many of a canary's requests fail: what each period says of it by the accepted share and by the stable's, how long
the stable's failures count, and which stored evidence is continued."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pagefleet_operator.domain.analysis.adjusted.onsets import FLOOR
from pagefleet_operator.domain.analysis.failures import (
    FailureCounts,
    FailureEvidence,
    Subject,
    gather,
    handed_over,
    not_ahead,
    until_now,
)
from pagefleet_operator.domain.status.failure_record import FailureRecord, FailureTotals

SUBJECT = Subject("errors", "gateway", "old", 100.0, 0.05)
FRESH = FailureRecord(
    "errors", "gateway", "old", 100.0, 0.05, near=(0.0, 0.0), far=(0.0, 0.0), absolute=(FLOOR,) * 3,
    relative=(FLOOR,) * 3,
)  # fmt: skip


KNOWN = replace(
    FRESH, until=8, total=FailureTotals(stable=9), near=(1.0, 9.0), far=(1.0, 9.0), absolute=(1.0,) * 3, relative=(2.0,) * 3
)  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "kept"),
    [
        ([], FRESH),
        ([KNOWN], KNOWN),
        ([replace(KNOWN, signal="timeouts", until=3), KNOWN], KNOWN),
        ([replace(KNOWN, source="engine")], FRESH),
        ([replace(KNOWN, against="older")], FRESH),
        ([replace(KNOWN, since=101.0)], FRESH),
        ([replace(KNOWN, limit=0.06)], FRESH),  # the spec accepts another share now
        # What another version wrote, and what is damaged.
        ([replace(KNOWN, near=(1.0,))], FRESH),
        ([replace(KNOWN, far=(1.0,))], FRESH),
        ([replace(KNOWN, absolute=(1.0,) * 4)], FRESH),
        ([replace(KNOWN, relative=())], FRESH),
        ([replace(KNOWN, absolute_blocks=-1, relative_blocks=3)], FRESH),
        ([replace(KNOWN, absolute_blocks=3, relative_blocks=-1)], FRESH),
    ],
)
def test_stored_evidence_is_continued_when_it_is_about_the_same_requests(
    stored: list[FailureRecord], kept: FailureRecord
) -> None:
    assert gather(stored, SUBJECT, {}) == FailureEvidence(kept, kept)


def test_the_last_three_periods_may_change_and_are_not_stored() -> None:
    """A later decision continues with what is stored, and finds the same as one that sees all periods at once."""
    periods = {
        number: FailureCounts(100, number % 3, 50 + number, number % 5, canary_retried=1) for number in range(7, 13)
    }
    first = gather((), SUBJECT, periods)
    assert (first.now.until, first.settled.until) == (13, 10)
    assert first.settled == gather((), SUBJECT, {number: periods[number] for number in (9, 8, 7)}).now
    assert first.now.total == FailureTotals(600, 6, 357, 12, 6)
    assert gather((first.settled,), SUBJECT, periods) == first
    assert gather((first.now,), SUBJECT, periods).now == first.now


def test_a_subject_counts_its_own_failures_of_a_period() -> None:
    period = FailureCounts(100, 1, 50, 2, canary_timeouts=9)
    found = gather((), SUBJECT, {0: period}, lambda one: FailureCounts(one.stable, 0, one.canary, one.canary_timeouts))
    assert found.now.total == FailureTotals(100, 0, 50, 9)


def test_what_failed_and_where_is_added_up() -> None:
    one = FailureCounts(100, 1, 50, 2, canary_retried=3, canary_fell_back=4)
    two = FailureCounts(10, 5, 20, 6, canary_retried=7, canary_fell_back=8)
    assert gather((), SUBJECT, {0: one, 1: two}).now.total == FailureTotals(110, 6, 70, 8, 10, 12)


def last_says(period: FailureCounts, subject: Subject = SUBJECT, number: int = 8, **known: object) -> float:
    """What a period adds for the alternative of the odds 4, after what is `known` of the periods before number 8."""
    stored = replace(FRESH, limit=subject.limit, until=8, **known)  # type: ignore[arg-type]
    return gather((stored,), subject, {number: period}).now.excess


def ratio(failed: int, requests: float, null: float, odds: float = 4.0) -> float:
    """The logarithm of Poisson's likelihood ratio: of the share odds * null against null."""
    return failed * math.log(odds) - requests * null * (odds - 1)


THIRD = math.exp(-1 / 3)  # what is left of the stable's failures of the period before


@pytest.mark.parametrize(
    ("period", "known", "null"),
    [
        (FailureCounts(100, 0, 50, 2), {}, 0.05),  # the accepted share
        (FailureCounts(100, 5, 50, 2), {}, 0.05),
        (FailureCounts(100, 10, 50, 2), {}, 0.1),  # the stable's share at the same time
        (FailureCounts(80, 9, 50, 2, stable_arrived=100), {}, 0.1),  # half of each counts when it comes
        (FailureCounts(100, 0, 50, 2), {"near": (40.0, 100.0)}, 40 * THIRD / (100 * THIRD + 100)),
        (FailureCounts(0, 0, 50, 2), {"near": (20.0, 100.0)}, 0.2),
        (FailureCounts(0, 0, 50, 2), {"near": (0.15 / THIRD, 1.01 / THIRD)}, 0.15 / 1.01),
        (FailureCounts(0, 0, 50, 2), {"near": (0.15 / THIRD, 0.99 / THIRD)}, 0.05),  # it has had none for long
        (FailureCounts(0, 0, 50, 2), {}, 0.05),  # a stable without requests says nothing
        # A stable with a third of the canary's requests is compared at the same time; with less of them, the upper bound
        # of its earlier share is accepted: (f + 1 + 1.65 sqrt(f + 1)) / n.
        (FailureCounts(30, 0, 90, 2), {"far": (8.0, 100.0)}, 0.05),
        (
            FailureCounts(29, 0, 90, 2), {"far": (8.0, 100.0)},  # a thirtieth of it is forgotten in a period
            (8 * math.exp(-1 / 30) + 1 + 1.65 * math.sqrt(8 * math.exp(-1 / 30) + 1)) / (100 * math.exp(-1 / 30) + 29),
        ),
        (
            FailureCounts(10, 1, 90, 2), {"far": (8.0, 100.0)},  # or ten of five hundred parts, with ten requests
            (8 * math.exp(-0.02) + 2 + 1.65 * math.sqrt(8 * math.exp(-0.02) + 2)) / (100 * math.exp(-0.02) + 10),
        ),
        (FailureCounts(0, 0, 90, 2), {"far": (0.0, 53.0)}, 0.05),  # 2.65 of 53
        (FailureCounts(0, 0, 90, 2), {"near": (0.0, 5.0), "far": (0.0, 26.5)}, 0.1),
        (FailureCounts(0, 0, 90, 2), {"near": (0.0, 5.0), "far": (0.0, 0.9)}, 0.05),
        # One without requests of late is known by the mean: one failure more of twenty requests more.
        (FailureCounts(0, 0, 90, 2), {"far": (0.0, 26.5)}, 0.05),
        (FailureCounts(0, 0, 90, 2), {"far": (1.0, 1.0)}, 2 / 21),
        (FailureCounts(0, 0, 90, 2), {"near": (9e-5, 1e-4), "far": (80.0, 780.0)}, 81 / 800),
        # It had some in the last five minutes, so the bound of its share still counts: 81 + 1.65 * 9 of 780.
        (FailureCounts(0, 0, 90, 2), {"near": (0.0, 1.2e-4 / THIRD), "far": (80.0, 780.0)}, 95.85 / 780),
    ],
)  # fmt: skip
def test_the_canary_may_fail_as_often_as_accepted_or_as_the_stable_does(
    period: FailureCounts, known: dict[str, tuple[float, float]], null: float
) -> None:
    assert last_says(period, **known) == pytest.approx(ratio(2, period.canary, null))


def test_the_stables_failures_are_forgotten_with_the_time_that_has_passed() -> None:
    period, rest = FailureCounts(100, 0, 50, 2), math.exp(-1)  # three periods later
    null = 40 * rest / (100 * rest + 100)
    assert last_says(period, number=10, near=(40.0, 100.0)) == pytest.approx(ratio(2, 50, null))
    found = gather((), SUBJECT, {0: FailureCounts(100, 8, 50), 1: FailureCounts(100, 2, 50)}).now
    assert found.near == pytest.approx((8 * THIRD + 2, 100 * THIRD + 100))
    assert found.far == pytest.approx((8 * math.exp(-1 / 30) + 2, 100 * math.exp(-1 / 30) + 100))


def test_one_request_of_the_stable_is_enough_for_a_bound_of_its_share() -> None:
    """It is above 95 %, and no alternative is above that."""
    assert last_says(FailureCounts(1, 0, 4, 2)) == 0.0
    assert last_says(FailureCounts(0, 0, 4, 2)) == pytest.approx(ratio(2, 4, 0.05))


@pytest.mark.parametrize(
    ("period", "subject", "null", "odds"),
    [
        (FailureCounts(100, 50, 50, 2), SUBJECT, 0.5, 1.9),  # no share is above 95 %
        (FailureCounts(100, 100, 50, 2), SUBJECT, 0.95, 1.0),
        (FailureCounts(100, 0, 50, 1), replace(SUBJECT, limit=0.0), 1e-4, 4.0),  # none is below 0.01 %
        (FailureCounts(100, 2, 50, 2), replace(SUBJECT, ratio=5.0), 0.1, 4.0),  # five times as often as the stable
        (FailureCounts(100, 0, 50, 2), replace(SUBJECT, odds=(2.0, 3.0, 9.0)), 0.05, 2.0),
    ],
)
def test_the_alternatives_are_shares_up_to_95_percent(
    period: FailureCounts, subject: Subject, null: float, odds: float
) -> None:
    assert last_says(period, subject) == pytest.approx(ratio(period.canary_failed, 50, null, odds))


@pytest.mark.parametrize(("ended", "arrived", "count"), [(10, 50, 30), (50, 10, 30), (0, 25, 12.5), (50, 0, 50)])
def test_half_of_a_request_of_the_canary_counts_when_it_comes_and_half_when_it_ends(
    ended: int, arrived: int, count: float
) -> None:
    """An engine's metrics say only when requests ended."""
    found = last_says(FailureCounts(100, 0, ended, 2, canary_arrived=arrived))
    assert found == pytest.approx(ratio(2, count, 0.05))


@pytest.mark.parametrize(
    ("starts", "ceiling", "most"),
    [
        ((), None, 2.2),
        ((80.0,), None, 2.2),
        ((80.0, 82.0, 84.0), None, 6.6),
        ((80.0, 80.0, 84.0), None, 4.4),  # two gateways tell of one time
        ((80.0, 82.0, 84.0), 1.5, 1.5),
    ],
)
def test_a_burst_of_failures_says_no_more_than_its_slices_may(
    starts: tuple[float, ...], ceiling: float | None, most: float
) -> None:
    period, subject = FailureCounts(100, 0, 50, 50, starts), replace(SUBJECT, ceiling=ceiling)
    found = gather((), subject, {0: period}).now
    assert found.absolute == pytest.approx([math.log(0.5 * share) + most for share in (0.6, 0.25, 0.15)])
    assert found.relative == pytest.approx([math.log(0.5 * share) + most for share in (0.2, 0.3, 0.5)])


def test_the_absolute_evidence_adds_up_over_steady_onsets() -> None:
    period = FailureCounts(100, 0, 50, 1)
    found = gather((), replace(SUBJECT, limit=0.01), {0: period, 1: period}).now
    assert found.absolute_blocks == 2
    for log, share, odds in zip(found.absolute, (0.6, 0.25, 0.15), (4, 12, 40), strict=True):
        once = math.exp(ratio(1, 50, 0.01, odds))
        assert log == pytest.approx(math.log(share * (0.5 * once + 1 / 40) * once))


@pytest.mark.parametrize(("times", "share"), [(1.0, 50 / 150), (5.0, 250 / 350)])
def test_the_relative_evidence_asks_whose_the_failures_are(times: float, share: float) -> None:
    """`share` of them are the canary's when it fails `times` as often as the stable."""
    period = FailureCounts(100, 2, 50, 5)
    found = gather((), replace(SUBJECT, ratio=times), {0: period, 1: period}).now
    assert found.relative_blocks == 2
    later = 0.5 * (1 - 300 / 301)  # the weight of the second onset
    for log, prior, odds in zip(found.relative, (0.2, 0.3, 0.5), (3, 10, 50), strict=True):
        once = odds**5 / (1 - share + odds * share) ** 7
        assert log == pytest.approx(math.log(prior * (0.5 * once + later) * once))


@pytest.mark.parametrize(
    ("period", "times", "blocks"),
    [
        (FailureCounts(100, 0, 50, 0), 1.0, (1, 0)),  # without failures nothing is known of whose they are
        (FailureCounts(100, 1, 50, 0), 1.0, (1, 1)),
        (FailureCounts(100, 0, 50, 1), 1.0, (1, 1)),
        (FailureCounts(100, 9, 0, 0), 1.0, (0, 0)),  # no requests of the canary
        (FailureCounts(0, 0, 50, 0), 1.0, (1, 1)),  # next to no stable: by the accepted share alone
        (FailureCounts(0, 0, 50, 5), 5.0, (1, 0)),  # many times as often as whom?
        (FailureCounts(0, 0, 0, 0), 1.0, (0, 0)),
    ],
)
def test_which_periods_say_something(period: FailureCounts, times: float, blocks: tuple[int, int]) -> None:
    found = gather((), replace(SUBJECT, ratio=times), {0: period}).now
    assert (found.absolute_blocks, found.relative_blocks) == blocks
    assert [FLOOR not in found.absolute, FLOOR not in found.relative] == [block == 1 for block in blocks]


def test_without_a_stable_both_parts_ask_for_the_accepted_share() -> None:
    found = gather((), SUBJECT, {0: FailureCounts(0, 0, 50, 5)}).now
    says = [ratio(5, 50, 0.05, odds) for odds in (4, 12, 19)]  # 19 times 5 % are the 95 % that no share is above
    pairs = zip((0.2, 0.3, 0.5), says, strict=True)
    assert found.relative == pytest.approx([math.log(0.5 * share) + one for share, one in pairs])


def test_failures_are_too_many_since_the_sum_of_what_they_say_is_above_nothing() -> None:
    good, bad = FailureCounts(100, 0, 50, 0), FailureCounts(100, 0, 50, 6)
    worse, better = ratio(6, 50, 0.05), ratio(0, 50, 0.05)  # 0.8 and -7.5
    found = gather((), SUBJECT, {7: good, 8: bad, 9: bad, 10: bad})
    assert (found.now.recent_from, found.now.recent, found.seconds) == (8, FailureTotals(300, 0, 150, 18), 30.0)
    assert found.now.excess == pytest.approx(3 * worse)
    after = gather((found.now,), SUBJECT, {11: good})
    assert (after.now.recent_from, after.seconds) == (8, 40.0)
    assert after.now.excess == pytest.approx(3 * worse + better)
    again = gather((after.now,), SUBJECT, {12: good})
    assert (again.now.recent_from, again.now.recent, again.seconds) == (12, FailureTotals(100, 0, 50), 0.0)
    assert gather((), SUBJECT, {7: bad}).seconds == 10.0


@pytest.mark.parametrize(
    ("absolute", "relative", "evidence"),
    [
        (20.0, 1e6, 100.0),  # 20 is 1 / ABSOLUTE_LEVEL: from there on it says nothing against a conviction
        (2.0, 1e6, 10.0),
        (1e6, 7.0, 7.0),
    ],
)
def test_both_parts_must_convict(absolute: float, relative: float, evidence: float) -> None:
    record = replace(FRESH, absolute=(math.log(absolute), FLOOR), relative=(math.log(relative), FLOOR))
    assert FailureEvidence(record, FRESH).log(0.01) == pytest.approx(math.log(evidence))


def test_after_the_clock_was_set_back_the_periods_that_begin_from_now_on_count() -> None:
    ahead = replace(FRESH, until=100, recent_from=50)
    began_before = replace(FRESH, until=100, recent_from=20)
    past = replace(FRESH, until=20, recent_from=15)
    assert not_ahead((ahead, began_before, past), 305.0) == (
        replace(FRESH, until=31, recent_from=31),
        replace(FRESH, until=31, recent_from=20),
        past,
    )


def test_periods_that_are_still_to_come_wait() -> None:
    counts = {number: FailureCounts(stable=number) for number in (29, 30, 31, 90)}
    assert until_now(counts, 305.0) == {29: FailureCounts(stable=29), 30: FailureCounts(stable=30)}
    begun = {number: counts[number] for number in (29, 30)}
    assert until_now(begun, 305.0) is begun, "nothing is copied"
    assert until_now({}, 305.0) == {}


def test_one_failed_request_of_the_stable_excuses_a_canary_that_has_few() -> None:
    assert last_says(FailureCounts(1, 1, 3, 2)) == 0.0


def test_a_record_of_another_version_hands_no_share_over() -> None:
    assert handed_over((replace(FRESH, far=(1.0,)), replace(FRESH, far=(2.0, 50.0))), "old", 7.0) == (
        replace(FRESH, against="", since=7.0, far=(2.0, 50.0)),
    )
