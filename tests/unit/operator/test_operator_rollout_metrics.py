"""Protects the metrics of conditions, rollouts and the guard: what the status says no more loses its series at once, so
that no alert goes on about a reason that has passed or a canary that is gone."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest

from pagefleet_operator.domain.status.plan import Event, Plan
from pagefleet_operator.domain.status.status import (
    Condition,
    Phase,
    RevisionRecord,
    RolloutRecord,
    SignalRecord,
    Status,
    Weight,
)
from pagefleet_operator.web.own_metrics import Metrics
from pagefleet_operator.web.own_rollout_metrics import RolloutMetrics

JUDGED = SignalRecord(
    "ttft", "s", "Inconclusive", stable_samples=90, canary_samples=10, stable_p95=0.5, canary_p95=0.6, evidence=3.0
)
COUNTED = SignalRecord("errors", "", "Passed", stable_samples=90, canary_samples=10)


def status(phase: Phase, *verdicts: SignalRecord, canary: str = "", reason: str = "Stable") -> Plan:
    return Plan(
        Status(
            stable="old",
            canary=canary,
            rollout=RolloutRecord(phase, verdicts=verdicts),
            conditions=(Condition("Scaling", "False", reason, "words", 0.0, 1),),
        )
    )


def series(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def test_a_rollout_s_series_come_and_go_with_it() -> None:
    registry = CollectorRegistry()
    metrics = RolloutMetrics(registry)
    metrics.planned("ns", "chat", status(Phase.STEP, JUDGED, COUNTED, canary="new", reason="AtMaximum"))
    judged = 'namespace="ns",revision="{}",service="chat",signal="{}",stratum="{}"'
    scaling = 'pagefleet_condition{{namespace="ns",reason="{}",service="chat",status="False",type="Scaling"}}'
    assert series(registry) == {
        scaling.format("AtMaximum"): 1,
        'pagefleet_rollout{namespace="ns",phase="Step",revision="new",service="chat"}': 1,
        f"pagefleet_guard_seconds{{{judged.format('old', 'ttft', 's')}}}": 0.5,
        f"pagefleet_guard_seconds{{{judged.format('new', 'ttft', 's')}}}": 0.6,
        f"pagefleet_guard_samples{{{judged.format('old', 'ttft', 's')}}}": 90,
        f"pagefleet_guard_samples{{{judged.format('new', 'ttft', 's')}}}": 10,
        f"pagefleet_guard_samples{{{judged.format('old', 'errors', '')}}}": 90,
        f"pagefleet_guard_samples{{{judged.format('new', 'errors', '')}}}": 10,
        f"pagefleet_guard_evidence{{{judged.format('new', 'ttft', 's')}}}": 3,
        f"pagefleet_guard_evidence{{{judged.format('new', 'errors', '')}}}": 0,
    }
    metrics.planned("ns", "chat", status(Phase.ROLLED_BACK, JUDGED))
    assert series(registry) == {scaling.format("Stable"): 1}


def test_a_promoted_revision_is_named_while_it_is_watched() -> None:
    registry = CollectorRegistry()
    metrics = RolloutMetrics(registry)
    metrics.planned("ns", "chat", status(Phase.WATCHING, JUDGED))
    shown = series(registry)
    assert shown['pagefleet_rollout{namespace="ns",phase="Watching",revision="old",service="chat"}'] == 1
    assert not any("guard" in name for name in shown), "there is no canary to judge"


def test_a_service_that_is_gone_leaves_nothing_and_others_stay() -> None:
    registry = CollectorRegistry()
    metrics = RolloutMetrics(registry)
    metrics.planned("ns", "chat", status(Phase.STEP, JUDGED, canary="new"))
    metrics.planned("ns", "other", status(Phase.IDLE))
    metrics.forget("ns", "chat")
    metrics.forget("ns", "chat")
    assert len(series(registry)) == 1
    assert 'service="other"' in next(iter(series(registry)))


def test_a_service_that_sleeps_keeps_the_zeros_of_its_revision_so_that_waking_is_no_outage() -> None:
    """PagefleetNoReadyReplica looks back for them (`tests/support/alert_cases.py`, WOKEN)."""
    metrics = Metrics()
    awake = RevisionRecord("r1", 1.0, ready=2, desired=2)
    asleep = replace(awake, ready=0, desired=0)
    for revisions in ((awake,), (asleep, RevisionRecord("r0", 0.0))):
        metrics.planned("ns", "chat", Plan(Status(stable="r1", traffic=(Weight("r1", 100),), revisions=revisions)))
    shown = series(metrics.registry)
    of = 'namespace="ns",revision="r1",service="chat"'
    assert {name: value for name, value in shown.items() if "revision=" in name} == {
        f'pagefleet_replicas{{{of},state="ready"}}': 0,
        f'pagefleet_replicas{{{of},state="desired"}}': 0,
        f"pagefleet_weight{{{of}}}": 100,
    }
    metrics.forget("ns", "chat")
    assert not any('service="chat"' in name for name in series(metrics.registry))


def test_the_decisions_about_a_deleted_service_are_counted_no_more() -> None:
    """A cluster in which services come and go must not fill Prometheus with their names."""
    metrics = Metrics()
    for number in range(20):
        plan = Plan(Status(), events=(Event("Normal", "Promoted", "words"), Event("Warning", "RolledBack", "words")))
        metrics.planned("ns", f"test-{number}", plan)
        metrics.planned("ns", f"test-{number}", plan)
        metrics.forget("ns", f"test-{number}")
        metrics.forget("ns", f"test-{number}")
    assert not any('service="test' in name for name in series(metrics.registry))
