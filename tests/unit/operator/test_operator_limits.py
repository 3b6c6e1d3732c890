"""Protects the limits of the guard that are no comparison: the floor under free KV pages with its grace and with pods that are not read, PromQL
gates with one bound or two, and the absolute bound of a latency with its words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pagefleet_operator.domain.analysis import limits
from pagefleet_operator.domain.analysis.failures import ABSOLUTE_LEVEL, PERIOD_SECONDS, FailureEvidence
from pagefleet_operator.domain.analysis.latency import ABOVE_LAST_EDGE
from pagefleet_operator.domain.analysis.verdict import Outcome
from pagefleet_operator.domain.spec.rollout import FreePages, Gate, LatencyGuard
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.failure_record import FailureRecord, FailureTotals
from pagefleet_operator.domain.status.observation import GateReading, Observation, PodReading, RevisionReading
from pagefleet_operator.domain.status.status import Status
from pagefleet_operator.domain.status.turn import Journal, Turn

FLOOR = FreePages(least=0.1, grace=60.0)


def pod(free: int | None = 50, total: int | None = 100, age: float | None = 1.0, **other: bool) -> PodReading:
    load = EngineLoad(running=0, waiting=0, kv_pages_free=free, kv_pages_total=total)
    ready, terminating = other.get("ready", True), other.get("terminating", False)
    return PodReading("p", ready, terminating, 0.0, 0.0, load=load, load_age=age)


def observed(*pods: PodReading) -> Observation:
    return Observation("team", "chat", "u", 1, {}, Status(), revisions={"new": RevisionReading("new", 1, pods)})


@pytest.mark.parametrize(
    ("pods", "share"),
    [
        ([pod(5), pod(15)], 0.1),
        ([pod(0, 300), pod(100, 100)], 0.25),  # of all pages, not the mean of the pods
        ([pod(5), pod(80, ready=False), pod(80, terminating=True)], 0.05),
        ([pod(5), pod(None)], None),
        ([pod(5), pod(5, None)], None),
        ([pod(5), pod(5, 0)], None),
        ([pod(5), pod(95, age=15.1)], None),
        ([pod(5), pod(95, age=15.0)], 0.5),
        ([pod(5), pod(95, age=None)], 0.5),
        ([replace(pod(), load=None)], None),
        ([], None),
        ([pod(10)] * 20 + [pod(None)], 0.1),  # one of more than twenty may be silent
        ([pod(10)] * 20 + [pod(None)] * 2, None),
    ],
)
def test_the_free_share_is_of_the_ready_pods_pages(pods: list[PodReading], share: float | None) -> None:
    assert limits.free_page_share(observed(*pods), "new") == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    ("free", "floor", "before", "since"),
    [
        (9, FLOOR, None, 100.0),  # it begins now
        (9, FLOOR, 40.0, 40.0),
        (9, FLOOR, 140.0, 100.0),  # a time in the future is of a clock that was set back
        (10, FLOOR, 40.0, None),  # exactly the floor is enough
        (None, FLOOR, 40.0, 40.0),  # a missing reading changes nothing
        (None, FLOOR, None, None),
        (9, None, 40.0, None),
    ],
)
def test_since_when_pages_are_short(
    free: int | None, floor: FreePages | None, before: float | None, since: float | None
) -> None:
    turn = Turn(observed(pod(free)), 100.0, Journal(100.0))
    assert limits.low_since(turn, floor, "new", before) == since


@pytest.mark.parametrize(
    ("free", "short", "outcome", "wait", "words"),
    [
        (10, None, Outcome.PASSED, None, "10% of the KV pages of revision new are free, limit at least 10%"),
        (9, None, Outcome.INCONCLUSIVE, 60.0, ", below it for 0 s (accepted for 60 s)"),
        (9, 59.0, Outcome.INCONCLUSIVE, 1.0, ", below it for 59 s (accepted for 60 s)"),
        (9, 60.0, Outcome.REGRESSED, None, ", below it for 60 s (accepted for 60 s)"),
    ],
)
def test_too_few_free_pages_are_accepted_for_their_grace(
    free: int, short: float | None, outcome: Outcome, wait: float | None, words: str
) -> None:
    verdict = limits.judge_free_pages(observed(pod(free)), FLOOR, "new", short)
    assert (verdict.outcome, verdict.reason, verdict.record.expected_seconds) == (outcome, "FreePages", wait)
    assert words in verdict.record.message and (outcome is not Outcome.PASSED or "below" not in verdict.record.message)
    assert verdict.record.statistic == pytest.approx(free / 100) and verdict.record.limit == 0.1
    assert (verdict.record.evidence, verdict.record.samples, verdict.record.bound_seconds) == (0.0, 0, None)
    (shown,) = verdict.signals
    assert (shown.signal, shown.stratum, shown.outcome) == ("free pages", "", outcome.value)
    assert shown.message == verdict.record.message


def test_pages_that_are_not_reported_are_no_verdict() -> None:
    verdict = limits.judge_free_pages(observed(pod(None), pod(5)), FLOOR, "new", 500.0)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.record.message == "free pages: not every one of the 2 pods of revision new reports its KV pages"
    assert verdict.signals[0].signal == verdict.record.signal == "free pages"


def gate(low: float | None, high: float | None) -> Gate:
    return Gate("drops", "q", low, high, 30.0)


@pytest.mark.parametrize(
    ("low", "high", "value", "outcome", "limit", "words"),
    [
        (None, 5.0, 5.0, Outcome.PASSED, 5.0, "the value is 5, limit at most 5"),
        (None, 5.0, 5.1, Outcome.REGRESSED, 5.0, "the value is 5.1, limit at most 5"),
        (2.0, None, 2.0, Outcome.PASSED, 2.0, "the value is 2, limit at least 2"),
        (2.0, None, 1.9, Outcome.REGRESSED, 2.0, "the value is 1.9, limit at least 2"),
        (2.0, 5.0, 3.0, Outcome.PASSED, 5.0, "the value is 3, limit at least 2 and at most 5"),
        (2.0, 5.0, 1.0, Outcome.REGRESSED, 2.0, "limit at least 2 and at most 5"),
        (2.0, 5.0, 6.0, Outcome.REGRESSED, 5.0, "limit at least 2 and at most 5"),
        (0.0, None, -1.0, Outcome.REGRESSED, 0.0, "limit at least 0"),
    ],
)
def test_a_gate_convicts_beyond_its_bounds(
    low: float | None, high: float | None, value: float, outcome: Outcome, limit: float, words: str
) -> None:
    verdict = limits.judge_gate(gate(low, high), GateReading("drops", value))
    assert (verdict.outcome, verdict.reason) == (outcome, "Gate")
    assert (verdict.record.statistic, verdict.record.limit, verdict.record.signal) == (value, limit, "drops")
    assert words in verdict.record.message and verdict.signals[0].message == verdict.record.message
    assert (verdict.signals[0].signal, verdict.signals[0].stratum, verdict.signals[0].outcome) == (
        "drops",
        "",
        outcome.value,
    )


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        (None, "drops: Prometheus has not answered yet"),
        (GateReading("drops", None, "parse error"), "drops: parse error"),
        (GateReading("drops", None), "drops: Prometheus gave no finite number"),
        (GateReading("drops", math.nan), "drops: Prometheus gave no finite number"),
        (GateReading("drops", math.inf), "drops: Prometheus gave no finite number"),
    ],
)
def test_a_gate_without_a_number_is_no_verdict(reading: GateReading | None, words: str) -> None:
    verdict = limits.judge_gate(gate(None, 5.0), reading)
    assert (verdict.outcome, verdict.record.message) == (Outcome.INCONCLUSIVE, words)


BOUND = LatencyGuard("ttft", 0.95, 0.15, 0.99, 200, max_seconds=2.0)
LEVEL = 0.01


def evidence(log: float, total: FailureTotals, recent: FailureTotals | None = None) -> FailureEvidence:
    """Evidence with this logarithm by both of its parts."""
    absolute = log + math.log(LEVEL) - math.log(ABSOLUTE_LEVEL)
    record = FailureRecord(
        limit=0.05, total=total, recent=recent or FailureTotals(), until=12, recent_from=6, absolute=(absolute,),
        relative=(log,),
    )  # fmt: skip
    return FailureEvidence(record, replace(record, until=9))


def test_a_broken_bound_convicts_from_the_confidence_on() -> None:
    total = FailureTotals(stable=4000, stable_failed=40, canary=400, canary_failed=30)
    recent = FailureTotals(stable=1000, stable_failed=10, canary=100, canary_failed=25)
    found = evidence(math.log(1 / LEVEL) + 1e-9, total, recent)
    verdict = limits.judge_bound(BOUND, found, False, LEVEL)
    assert (verdict.outcome, verdict.reason, verdict.failures) == (Outcome.REGRESSED, "LatencyBound", (found.settled,))
    assert verdict.record.message == (
        "ttft p95 bound: 25 of 100 canary requests took longer than 2 s (25.0%, allowed 5.0%); 10 of 1000 of the stable; "
        f"within {6 * PERIOD_SECONDS:.0f} s"
    )
    record = verdict.record
    assert (record.statistic, record.limit, record.samples, record.bound_seconds) == (0.25, 0.05, 100, 2.0)
    assert record.evidence == pytest.approx(1 / LEVEL) and record.signal == "ttft p95 bound"
    (shown,) = verdict.signals
    assert (shown.signal, shown.stratum, shown.outcome) == ("ttft p95 bound", "", "Regressed")
    assert (shown.stable_samples, shown.canary_samples) == (1000, 100)
    assert (shown.evidence, shown.message + f"; within {6 * PERIOD_SECONDS:.0f} s") == (record.evidence, record.message)
    doubted = limits.judge_bound(BOUND, evidence(math.log(1 / LEVEL) - 1e-6, total, recent), False, LEVEL)
    assert (doubted.outcome, doubted.reason, doubted.record.samples) == (Outcome.INCONCLUSIVE, "", 400)


@pytest.mark.parametrize(
    ("log", "canary", "blind", "outcome", "words"),
    [
        (-3.0, 200, False, Outcome.PASSED, "ttft p95 bound: 0 of 200 canary requests took longer than 2 s"),
        (-3.0, 199, False, Outcome.INCONCLUSIVE, "ttft p95 bound: 199 of the 200 requests needed"),
        (-3.0, 200, True, Outcome.INCONCLUSIVE, f"ttft p95 bound: {ABOVE_LAST_EDGE}"),
        (math.log(10.0) - 1e-9, 200, False, Outcome.PASSED, "0 of 200"),
        (math.log(10.0), 200, False, Outcome.INCONCLUSIVE, "0 of 200"),  # suspicious
        (-3.0, 0, False, Outcome.INCONCLUSIVE, "0 of the 200 requests needed"),
    ],
)
def test_a_bound_is_kept_when_enough_requests_show_it(
    log: float, canary: int, blind: bool, outcome: Outcome, words: str
) -> None:
    verdict = limits.judge_bound(BOUND, evidence(log, FailureTotals(canary=canary, stable=7)), blind, LEVEL)
    assert (verdict.outcome, verdict.reason) == (outcome, "")
    assert words in verdict.record.message
    assert verdict.record.statistic == 0.0


def test_evidence_of_exactly_the_confidence_convicts_and_excuses_nobody() -> None:
    both = FailureTotals(stable=100, stable_failed=50, canary=100, canary_failed=50)
    found = evidence(9.0, both, both)
    exact = FailureEvidence(replace(found.now, relative=(math.log(1 / LEVEL),)), found.settled)
    verdict = limits.judge_bound(BOUND, exact, False, LEVEL)
    assert verdict.outcome is Outcome.REGRESSED and "just as badly" not in verdict.record.message


@pytest.mark.parametrize(
    ("stable_failed", "canary_failed", "blames"),
    [(80, 80, True), (79, 80, False), (80, 20, False), (80, 21, True)],
)
def test_a_stable_that_breaks_the_bound_as_badly_is_named(stable_failed: int, canary_failed: int, blames: bool) -> None:
    """The canary's share is above what is allowed (5 %), and not above the stable's."""
    total = FailureTotals(stable=400, stable_failed=stable_failed, canary=400, canary_failed=canary_failed)
    message = limits.judge_bound(BOUND, evidence(-3.0, total), False, LEVEL).record.message
    assert ("breaks the bound just as badly: no reason to roll back" in message) is blames
