"""Protects the error signal of the guard. A canary that fails no more often than the stable is never rolled back, however often
both fail; one that fails more often is, soon and whenever that begins; a crash alone convicts nobody; and a restarted operator
goes on with a few sums. 10 requests/s, one of them on the canary, 1 % of failures accepted, unless said otherwise."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import pytest
from support.virtual.failing import convicts, draw, evidences, judge

from pagefleet_operator.domain.analysis import failures
from pagefleet_operator.domain.analysis.failures import FailureCounts, Subject
from pagefleet_operator.domain.analysis.verdict import Outcome
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.failure_record import FailureRecord
from pagefleet_operator.domain.status.status import Phase, RolloutRecord, Status

MINUTE = 6  # periods


def convicted(seed: int, periods: int, rates: tuple[float, float], counts: tuple[float, float] = (90, 10)) -> bool:
    source = random.Random(seed)
    drawn = (draw(source, rates, counts) for _ in range(periods))
    return any(convicts(evidence) for evidence in evidences(drawn))


def requests_until(
    seed: int, clean: int, rates: tuple[float, float], counts: tuple[float, float] = (90, 10), queues: bool = False
) -> int:
    """The canary's requests from the onset to the conviction, after `clean` periods with 0.1 % of failures on both.

    With `queues` other numbers of requests come in a period than end in it.
    """
    source, requests = random.Random(seed), 0

    def drawn() -> Iterator[FailureCounts]:
        nonlocal requests
        for number in range(clean + 200):
            period = draw(source, rates if number >= clean else (0.001, 0.001), counts)
            if queues:
                came = draw(source, (0, 0), counts)
                period = replace(period, stable_arrived=came.stable, canary_arrived=came.canary)
            requests += period.canary if number >= clean else 0
            yield period

    for number, evidence in enumerate(evidences(drawn())):
        if convicts(evidence):
            assert number >= clean, "before the onset"
            return requests
    raise AssertionError("never convicted")


@pytest.mark.parametrize(("rate", "counts"), [(0.03, (90, 10)), (0.03, (50, 50)), (0.03, (10, 90)), (0.002, (90, 10))])
def test_a_canary_that_fails_as_often_as_the_stable_is_not_rolled_back(
    rate: float, counts: tuple[float, float]
) -> None:
    """Half an hour each."""
    runs = 60
    assert sum(convicted(seed, 30 * MINUTE, (rate, rate), counts) for seed in range(runs)) == 0


def test_a_canary_at_exactly_the_limit_is_rarely_rolled_back_within_a_rollout() -> None:
    """The price of finding late onsets: of canaries worse than the stable that fail exactly at the limit, few in ten minutes."""
    runs = 150
    assert sum(convicted(seed, 10 * MINUTE, (0.001, 0.01)) for seed in range(runs)) <= 0.04 * runs


def test_a_canary_at_half_of_the_limit_is_rarely_rolled_back_within_a_day() -> None:
    runs = 10
    assert sum(convicted(seed, 24 * 60 * MINUTE, (0.001, 0.005)) for seed in range(runs)) <= 0.3 * runs


@pytest.mark.parametrize(("clean", "limit"), [(0, 130), (50 * MINUTE, 180), (24 * 60 * MINUTE, 225)])
def test_five_percent_are_found_soon_whenever_they_begin(clean: int, limit: int) -> None:
    runs = 7 if clean > 1000 else 40
    assert median(requests_until(seed, clean, (0.001, 0.05)) for seed in range(runs)) <= limit


def test_five_percent_are_found_as_soon_where_requests_wait() -> None:
    """What comes and what ends in ten seconds differs by chance: the larger of both would be a fifth too many."""
    alike, waiting = (
        median(requests_until(seed, 0, (0.001, 0.05), queues=queues) for seed in range(60)) for queues in (False, True)
    )
    assert waiting <= 1.1 * alike


def test_with_half_of_the_traffic_five_percent_take_less_than_two_minutes() -> None:
    assert median(requests_until(seed, 50 * MINUTE, (0.001, 0.05), (50, 50)) for seed in range(30)) <= 600


def test_seconds_in_which_both_fail_convict_nobody() -> None:
    """The machine or its network fails for a minute, again and again; the canary is a little worse than the stable else."""
    for seed in range(20):
        source = random.Random(seed)
        drawn = (draw(source, (0.3, 0.3) if number % 60 < 6 else (0.0005, 0.006)) for number in range(360))
        assert not any(convicts(evidence) for evidence in evidences(drawn))


def test_without_traffic_on_the_stable_the_limit_alone_counts() -> None:
    """After a promotion, or at a weight of 100."""
    drawn = [draw(random.Random(seed), (0, 0.05), (0, 100)) for seed in range(20)]
    assert any(convicts(evidence) for evidence in evidences(iter(drawn)))
    within = [draw(random.Random(seed), (0, 0.003), (0, 100)) for seed in range(100)]
    assert not any(convicts(evidence) for evidence in evidences(iter(within)))


@pytest.mark.parametrize(("slices", "worse"), [(1, False), (2, False), (5, True)])
def test_a_burst_of_failures_convicts_only_when_it_lasts(slices: int, worse: bool) -> None:
    """A crashed engine drops what it has in flight, in one slice or on the border of two."""
    clean = [FailureCounts(90, 0, 10, 0) for _ in range(30)]
    burst = FailureCounts(90, 0, 60, 50, tuple(2.0 * number for number in range(slices)))
    assert (judge([*clean, burst]).outcome is Outcome.REGRESSED) is worse
    assert (judge([burst]).outcome is Outcome.REGRESSED) is worse


def test_failures_that_end_sooner_than_answers_are_shares_of_the_requests_that_came() -> None:
    """Answers take half a minute, failures none: at first nothing has ended but failures."""
    early = FailureCounts(0, 0, 3, 3, (2.0, 4.0, 8.0), stable_arrived=900, canary_arrived=300)
    assert judge([early]).outcome is not Outcome.REGRESSED
    alone = FailureCounts(900, 0, 3, 3, (2.0, 4.0, 8.0, 6.0))
    assert judge([alone]).record.evidence > 200 * judge([early]).record.evidence


def test_the_stored_sums_say_the_same_as_all_periods_and_survive_the_status() -> None:
    source = random.Random(5)
    periods = {number: draw(source, (0.002, 0.02)) for number in range(200)}
    subject = Subject("errors", "gateway", "s", 1.7e9, 0.01)
    whole = failures.gather((), subject, periods)
    stored: tuple[FailureRecord, ...] = ()
    for end in range(1, 201, 3):
        settled = failures.gather(stored, subject, {n: periods[n] for n in range(max(0, end - 20), end)}).settled
        document = codec.dump(Status(rollout=RolloutRecord(Phase.STEP, failures=(settled,))))
        assert len(str(document)) < 1500
        stored = codec.load(document).rollout.failures
    later = failures.gather(stored, subject, {n: periods[n] for n in range(185, 200)})
    assert later.now == whole.now
    other = Subject("errors", "gateway", "s", 1.7e9, 0.02)
    assert failures.gather(stored, other, {}).now.until == 0, "another limit: the evidence begins again"
    broken = codec.load({"rollout": {"phase": "Step", "failures": [{"signal": "errors", "absolute": [1.0]}]}})
    assert failures.gather(broken.rollout.failures, subject, {}).now.until == 0
    short = replace(stored[0], absolute=(1.0,))
    assert failures.gather((short,), subject, {}).now.until == 0, "of a version with other alternatives"


def test_the_verdict_counts_from_the_onset_and_says_when_the_stable_fails_as_often() -> None:
    clean = [FailureCounts(90, 0, 10, 0) for _ in range(300)]
    bad = [FailureCounts(90, 0, 10, 2, (0.0, 4.0)) for _ in range(12)]
    message = judge([*clean, *bad]).record.message
    assert (
        message
        == "errors: 24 of 120 canary requests failed (20.00%, limit 1.00%); 0 of 1080 of the stable (0.00%); within 120 s"
    )
    both = judge([FailureCounts(90, 3, 30, 1, (0.0,)) for _ in range(40)])
    assert both.outcome is Outcome.PASSED
    assert both.record.message.endswith("; the stable revision fails as often, so this is no regression")
