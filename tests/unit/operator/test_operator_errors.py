"""Protects the verdicts on failed requests and on fallbacks: from which evidence on they convict, which numbers and words they show, when the
stable excuses the canary; and that an excess of 4xx or of timeouts convicts only when it is unmistakable and lasts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pagefleet_operator.domain.analysis import errors
from pagefleet_operator.domain.analysis.adjusted.onsets import FLOOR
from pagefleet_operator.domain.analysis.failures import FailureCounts, Subject, handed_over
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict
from pagefleet_operator.domain.status.failure_record import FailureRecord, FailureTotals

LEVEL = 1 - errors.CONFIDENCE
ERRORS_PROOF = math.log(1 / (0.8 * LEVEL))  # evidence of 125
EXCESS_PROOF = math.log(1 / (0.1 * LEVEL))  # evidence of 1000
LIMITS = {"errors": 0.05, "clientErrors": 0.1, "timeouts": 0.02, "fallbacks": 0.05}
BEFORE_LAST = 3  # periods before the newest: one so old is stored


def subject(signal: str = "errors") -> Subject:
    return Subject(signal, "gateway", "old", 100.0, LIMITS[signal])


def record(signal: str, log: float, total: FailureTotals, recent: FailureTotals | None = None) -> FailureRecord:
    """What is stored of a signal with the evidence exp(`log`): its failures have been too many for 60 seconds."""
    return FailureRecord(
        signal, "gateway", "old", 100.0, LIMITS[signal], until=12, recent_from=6, total=total,
        recent=recent or FailureTotals(canary=1, canary_failed=1), near=(0.0, 0.0), far=(0.0, 0.0),
        absolute=(50.0, FLOOR, FLOOR), relative=(log, FLOOR, FLOOR),
    )  # fmt: skip


def judged(*stored: FailureRecord) -> Verdict:
    return errors.judge(stored, subject(), {}, LEVEL)


TOTAL = FailureTotals(stable=4000, stable_failed=40, canary=400, canary_failed=30)
RECENT = FailureTotals(stable=1000, stable_failed=10, canary=100, canary_failed=25, retried=3, fell_back=4)


def test_failures_convict_from_evidence_of_125_on() -> None:
    stored = record("errors", ERRORS_PROOF, TOTAL, RECENT)
    verdict = judged(stored)
    words = (
        "errors: 25 of 100 canary requests failed (25.00%, limit 5.00%), 3 of them attempts that were retried on another pod, "
        "4 more were answered by the fallback service; 10 of 1000 of the stable (1.00%)"
    )
    assert (verdict.outcome, verdict.reason, verdict.failures[0]) == (Outcome.REGRESSED, "ErrorRate", stored)
    assert verdict.record.message == f"{words}; within 60 s"
    assert (verdict.record.signal, verdict.record.statistic, verdict.record.limit) == ("errors", 0.25, 0.05)
    assert (verdict.record.samples, verdict.record.evidence) == (100, pytest.approx(125))
    (shown,) = verdict.signals
    assert (shown.signal, shown.stratum, shown.outcome, shown.message) == ("errors", "", "Regressed", words)
    assert (shown.stable_samples, shown.canary_samples, shown.evidence) == (1000, 100, pytest.approx(125))


@pytest.mark.parametrize(
    ("stable", "failed", "reason"),
    [(0.03, 3, ""), (0.03, 20, "ErrorRate"), (0.002, 3, "ErrorRate"), (0.002, 1, "")],
)
def test_a_promoted_revision_may_fail_as_often_as_the_one_before_it_did(
    stable: float, failed: int, reason: str
) -> None:
    """Three of 100 requests are no more than before where the one before failed as often; 20 of 100 are."""
    limit, periods = 0.01, range(100, 130)
    before = replace(record("errors", 0.0, TOTAL), limit=limit, far=(stable * 2000, 2000.0))
    stored = handed_over((before, replace(before, against="older", far=(900.0, 1000.0))), "old", 500.0)
    assert [(one.against, one.since, one.limit, one.far, one.until) for one in stored] == [
        ("", 500.0, limit, before.far, 0)
    ]
    promoted = Subject("errors", "gateway", "", 500.0, limit)
    # The last request of the one before fails in the first period, and says nothing of a share.
    counts = {number: FailureCounts(*[int(number == 100)] * 2, 100, failed, (10.0 * number,)) for number in periods}
    verdict = errors.judge(stored, promoted, counts, LEVEL)
    assert verdict.reason == reason
    assert verdict.failures[0].far == before.far


def test_failures_with_less_evidence_are_suspicious() -> None:
    verdict = judged(record("errors", math.log(124.999), TOTAL, RECENT))
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, "")
    words = "errors: 30 of 400 canary requests failed (7.50%, limit 5.00%); 40 of 4000 of the stable (1.00%)"
    assert verdict.record.message == verdict.signals[0].message == words


@pytest.mark.parametrize(
    ("evidence", "canary", "outcome", "words"),
    [
        (0.5, 20, Outcome.PASSED, "errors: 0 of 20 canary requests failed (0.00%, limit 5.00%)"),
        (0.5, 19, Outcome.INCONCLUSIVE, "errors: 19 of the 20 requests needed"),
        (0.5, 0, Outcome.INCONCLUSIVE, "errors: 0 of the 20 requests needed"),
        (9.999, 20, Outcome.PASSED, "errors: 0 of 20 canary requests failed (0.00%, limit 5.00%)"),
        (10.001, 20, Outcome.INCONCLUSIVE, "errors: 0 of 20 canary requests failed (0.00%, limit 5.00%)"),
    ],
)
def test_a_canary_passes_with_enough_requests_and_little_evidence(
    evidence: float, canary: int, outcome: Outcome, words: str
) -> None:
    verdict = judged(record("errors", math.log(evidence), FailureTotals(canary=canary)))
    assert (verdict.outcome, verdict.reason, verdict.record.message) == (outcome, "", words)
    assert verdict.record.statistic == 0.0


@pytest.mark.parametrize(
    ("stable", "stable_failed", "canary", "canary_failed", "excused"),
    [
        (400, 80, 400, 80, True),
        (400, 79, 400, 80, False),
        (400, 80, 400, 20, False),  # 5 % is accepted: there is nothing to excuse
        (400, 80, 400, 21, True),
        (0, 0, 400, 80, False),  # no stable that does the same
        (1, 1, 1, 1, True),
    ],
)
def test_a_stable_that_fails_as_often_is_named(
    stable: int, stable_failed: int, canary: int, canary_failed: int, excused: bool
) -> None:
    total = FailureTotals(stable, stable_failed, canary, canary_failed)
    message = judged(record("errors", -3.0, total)).record.message
    assert message.endswith("; the stable revision fails as often, so this is no regression") is excused


def test_a_conviction_excuses_nobody() -> None:
    both = FailureTotals(stable=100, stable_failed=50, canary=100, canary_failed=50)
    verdict = judged(record("errors", ERRORS_PROOF, both, both))
    assert verdict.outcome is Outcome.REGRESSED and "no regression" not in verdict.record.message


def test_fallbacks_are_judged_like_failures_at_the_whole_level() -> None:
    stored = record("fallbacks", math.log(1 / LEVEL), TOTAL, FailureTotals(canary=100, canary_failed=25))
    verdict = errors.judge_fallbacks((stored,), subject("fallbacks"), {}, LEVEL)
    assert (verdict.outcome, verdict.reason, verdict.failures) == (Outcome.REGRESSED, "Fallbacks", (stored,))
    assert (verdict.record.signal, verdict.signals[0].signal) == ("fallbacks", "fallbacks")
    words = (
        "fallbacks: 25 of 100 canary requests were answered by the fallback service (25.00%, limit 5.00%); within 60 s"
    )
    assert verdict.record.message == words
    same = record("fallbacks", -3.0, FailureTotals(100, 50, 100, 50))
    excused = errors.judge_fallbacks((same,), subject("fallbacks"), {}, LEVEL)
    assert excused.record.message.endswith("; the stable revision falls back as often, so this is no regression")


EXCESSES = [
    ("clientErrors", "ClientErrors", "were refused with 4xx"),
    ("timeouts", "Timeouts", "were ended by a time limit"),
]
HEALTHY = record("errors", -3.0, FailureTotals(stable=4000, canary=400))


@pytest.mark.parametrize(("signal", "reason", "text"), EXCESSES)
def test_an_excess_convicts_from_evidence_of_1000_on(signal: str, reason: str, text: str) -> None:
    excess = record(signal, EXCESS_PROOF, TOTAL, RECENT)
    verdict = judged(HEALTHY, excess)
    words = f"{signal}: 25 of 100 canary requests {text} (25.00%), 10 of 1000 of the stable (1.00%)"
    assert (verdict.outcome, verdict.reason, verdict.record.message) == (Outcome.REGRESSED, reason, words)
    assert (verdict.record.signal, verdict.record.samples, verdict.record.statistic) == (signal, 100, 0.25)
    assert verdict.record.evidence == pytest.approx(1000)
    healthy, shown = verdict.signals
    assert (healthy.signal, healthy.outcome) == ("errors", "Passed")
    assert (shown.signal, shown.stratum, shown.outcome, shown.message) == (signal, "", "Regressed", words)
    assert (shown.stable_samples, shown.canary_samples, shown.evidence) == (1000, 100, pytest.approx(1000))
    assert [one.signal for one in verdict.failures] == ["errors", "clientErrors", "timeouts"]
    assert verdict.failures[0] == HEALTHY and excess in verdict.failures


@pytest.mark.parametrize(("signal", "reason", "text"), EXCESSES)
def test_an_excess_with_less_evidence_is_shown_and_stops_nothing(signal: str, reason: str, text: str) -> None:
    verdict = judged(HEALTHY, record(signal, math.log(999.99), TOTAL, RECENT))
    assert (verdict.outcome, verdict.reason, verdict.record.signal) == (Outcome.PASSED, "", "errors")
    assert [one.outcome for one in verdict.signals] == ["Passed", "Passed"]
    words = f"{signal}: 30 of 400 canary requests {text} (7.50%), 40 of 4000 of the stable (1.00%)"
    assert verdict.signals[1].message == words
    nothing = record(signal, -3.0, FailureTotals(stable=400, stable_failed=9, canary=400))
    assert [one.signal for one in judged(HEALTHY, nothing).signals] == ["errors"]


@pytest.mark.parametrize(("stable", "stable_failed", "limit"), [(0, 0, 0.1), (100, 2, 0.1), (100, 4, 0.2)])
def test_the_limit_of_an_excess_is_five_times_the_stables_share_at_least(
    stable: int, stable_failed: int, limit: float
) -> None:
    both = FailureTotals(stable, stable_failed, 100, 90)
    assert judged(HEALTHY, record("clientErrors", 9.0, both, both)).record.limit == pytest.approx(limit)


def test_each_signal_counts_its_own_requests_of_a_period() -> None:
    period = FailureCounts(
        stable=90, stable_failed=2, canary=30, canary_failed=3, canary_retried=1, stable_client_errors=1,
        canary_client_errors=10, stable_timeouts=1, canary_timeouts=2, stable_arrived=100, canary_arrived=50,
        stable_fell_back=1, canary_fell_back=4,
    )  # fmt: skip
    periods = {0: period, BEFORE_LAST: FailureCounts()}
    failed, refused, timed_out = errors.judge((), subject(), periods, LEVEL).failures
    (fallen,) = errors.judge_fallbacks((), subject("fallbacks"), periods, LEVEL).failures
    assert (failed.signal, failed.limit, failed.total) == ("errors", 0.05, FailureTotals(90, 2, 30, 3, 1, 4))
    assert (refused.signal, refused.limit, refused.total) == ("clientErrors", 0.1, FailureTotals(91, 1, 40, 10))
    assert (timed_out.signal, timed_out.limit, timed_out.total) == ("timeouts", 0.02, FailureTotals(90, 1, 30, 2))
    assert (fallen.signal, fallen.limit, fallen.total) == ("fallbacks", 0.05, FailureTotals(91, 1, 34, 4))
    # Half of a request counts when it comes and half when it ends: those of the stable in `near`, those of the canary in what
    # k failures of n say at the odds 4 against the accepted share p: k log(4) - 3 n p.
    assert [one.near for one in (failed, refused, timed_out, fallen)] == [(2, 95), (1, 95.5), (1, 95), (1, 96)]
    for one, says in (
        (failed, 3 * math.log(4) - 40 * 0.05 * 3),
        (refused, 10 * math.log(4) - 45 * 0.1 * 3),
        (timed_out, 2 * math.log(4) - 40 * 5 / 95 * 3),  # five times the stable's share, which is above 2 %
        (fallen, 4 * math.log(4) - 44 * 0.05 * 3),
    ):
        assert one.absolute[0] == pytest.approx(math.log(0.5 * 0.6) + says)


def periods_until_convicted(period: FailureCounts, fallbacks: bool = False) -> int | None:
    """How many periods like this one convict, of 30 at most."""
    for count in range(1, 31):
        periods = dict.fromkeys(range(count), period)
        judge, name = (errors.judge_fallbacks, "fallbacks") if fallbacks else (errors.judge, "errors")
        if judge((), subject(name), periods, LEVEL).outcome is Outcome.REGRESSED:
            return count
    return None


@pytest.mark.parametrize(
    ("period", "fallbacks", "periods"),
    [
        (FailureCounts(stable=100, canary_client_errors=100), False, 6),  # log 1/2 + 1.5 n is at least log 1000
        (FailureCounts(stable=100, canary=100, canary_timeouts=100), False, 6),
        (FailureCounts(stable=100, canary_fell_back=100), True, 8),  # log 1/2 + 0.75 n is at least log 100
    ],
)
def test_what_one_client_or_one_pod_may_cause_convicts_when_it_has_lasted_for_a_minute(
    period: FailureCounts, fallbacks: bool, periods: int
) -> None:
    assert periods_until_convicted(period, fallbacks) == periods


@pytest.mark.parametrize(("refused", "convicted"), [(40, False), (95, True)])
def test_an_excess_is_more_than_five_times_the_stables_share(refused: int, convicted: bool) -> None:
    period = FailureCounts(90, 0, 100 - refused, 0, stable_client_errors=10, canary_client_errors=refused)
    assert (periods_until_convicted(period) is not None) is convicted
