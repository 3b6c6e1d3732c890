"""Protects what the guard is asked about a canary and about a promoted revision, and what of its answer is stored for the next decision."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from support.rollout_turn import NOW, reading, turn_of

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis.judging import MAX_SIGNALS, judge_canary, judge_promoted
from pagefleet_operator.domain.analysis.verdict import Verdict
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.failure_record import FailureRecord
from pagefleet_operator.domain.status.observation import LoadCounts, RevisionReading, Slice
from pagefleet_operator.domain.status.stage import Stage
from pagefleet_operator.domain.status.status import (
    BaselineRecord,
    EvidenceRecord,
    Phase,
    PreviousRecord,
    RevisionRecord,
    SignalRecord,
    Weight,
)
from pagefleet_operator.domain.status.turn import SpecTurn
from pagefleet_operator.metrics.cumulative import Counts, Past, Pod

BEGAN = NOW - 600.0
ERRORS: dict[str, Any] = {"latency": [], "errors": {"maxRate": "1%"}}
PAGES: dict[str, Any] = {"latency": [], "errors": {}, "freePages": {"min": "10%", "for": "30s"}}


def turn(
    guard: dict[str, Any], slices: list[Slice], phase: Phase = Phase.STEP, **record: Any
) -> tuple[SpecTurn, Stage]:
    """A canary b beside a stable a, with traffic for ten minutes unless `record` says otherwise."""
    rollout = {"steps": [{"weight": 50, "hold": "10s"}], "guard": {"warmupRequests": 0, **guard}}
    given = {"since": BEGAN, "traffic_since": BEGAN, **record}
    asked, stage = turn_of(phase, (reading("a", 4), reading("b", 1)), rollout=rollout, record=given)
    return replace(asked, observation=replace(asked.observation, slices=tuple(slices))), stage


def pieces(failed: int = 0, start: float = BEGAN, count: int = 30, revisions: str = "ab", **more: Any) -> list[Slice]:
    """Ten requests a slice on each revision; so many of the canary's fail."""
    return [
        Slice("g", start + 2.0 * index, 2.0, name, "s", 10, failed if name == "b" else 0, started=10, **more)
        for index in range(count)
        for name in revisions
    ]


def test_a_canary_is_judged_by_its_requests_since_it_has_traffic() -> None:
    early = pieces(failed=10, start=BEGAN - 200.0)
    stage, verdict = judge_canary(*turn(ERRORS, [*early, *pieces()]))
    assert verdict is not None and verdict.reason == ""
    assert (verdict.record.samples, stage.record.requests) == (300, 300)
    assert stage.record.verdict == verdict.record and stage.record.verdicts == verdict.signals
    assert stage.record.failures == verdict.failures and {one.against for one in verdict.failures} == {"a"}
    stage, verdict = judge_canary(*turn(ERRORS, pieces(failed=10)))
    assert verdict is not None and verdict.reason == "ErrorRate"


def test_without_traffic_there_is_no_verdict_and_the_record_stays() -> None:
    asked, stage = turn(ERRORS, pieces(), traffic_since=None, failures=(FailureRecord(signal="errors"),))
    after, verdict = judge_canary(asked, stage)
    assert verdict is None and after == replace(stage, record=replace(stage.record, requests=300))


def test_the_requests_of_a_step_are_the_most_that_were_counted() -> None:
    after, _ = judge_canary(*turn(ERRORS, pieces(), requests=500))
    assert after.record.requests == 500
    after, _ = judge_canary(*turn(ERRORS, [*pieces(start=BEGAN - 300.0), *pieces(count=10)], requests=50))
    assert after.record.requests == 100


@pytest.mark.parametrize(
    ("phase", "weight", "judged"),
    [(Phase.MIRRORING, 0, 20), (Phase.MIRRORING, 10, 300), (Phase.STEP, 0, 300)],
)
def test_copies_are_judged_by_what_the_engines_count_since_the_phase_began(
    phase: Phase, weight: int, judged: int
) -> None:
    """The gateways throw the answers to copies away, so their measurements tell nothing of a canary that gets copies alone."""
    asked, stage = turn(ERRORS, pieces(), phase, since=BEGAN + 100.0)
    engines = pieces(start=BEGAN + 90.0, count=7, revisions="b")
    asked = replace(asked, observation=replace(asked.observation, engine_slices=tuple(engines)))
    stage = replace(stage, traffic=(Weight("a", 100 - weight), Weight("b", weight)))
    _, verdict = judge_canary(asked, stage)
    assert verdict is not None and verdict.record.samples == judged
    assert verdict.record.source == ("Engine" if judged == 20 else "Gateway")


@pytest.mark.parametrize(("traffic_since", "mirrored"), [(None, True), (None, False), (BEGAN, False)])
def test_a_canary_that_gets_copies_needs_no_traffic(traffic_since: float | None, mirrored: bool) -> None:
    phase = Phase.MIRRORING if mirrored else Phase.STEP
    asked, stage = turn(ERRORS, pieces(), phase, traffic_since=traffic_since)
    stage = replace(stage, traffic=(Weight("a", 100),))
    _, verdict = judge_canary(asked, stage)
    assert (verdict is None) is (traffic_since is None and not mirrored)


def low(asked: SpecTurn, name: str) -> SpecTurn:
    """The pods of one revision have 5 % of their pages free."""
    revisions = dict(asked.observation.revisions)
    load = EngineLoad(kv_pages_total=100, kv_pages_free=5)
    own = tuple(replace(pod, load=load, load_age=1.0) for pod in revisions[name].pods)
    revisions[name] = RevisionReading(name, len(own), own)
    return replace(asked, observation=replace(asked.observation, revisions=revisions))


@pytest.mark.parametrize("promoted", [False, True])
@pytest.mark.parametrize(
    ("before", "since", "outcome"),
    [(None, NOW, "Inconclusive"), (NOW - 29, NOW - 29, "Inconclusive"), (NOW - 30, NOW - 30, "Regressed")],
)
def test_a_shortage_of_pages_is_stored_with_its_beginning(
    promoted: bool, before: float | None, since: float, outcome: str
) -> None:
    asked, stage = turn(PAGES, [], low_since=before)
    asked = low(asked, "a" if promoted else "b")
    if promoted:
        after, verdict = judge_promoted(asked, stage, asked.rollout.guard, stage.baseline)
    else:
        after, verdict = judge_canary(asked, stage)
    assert after.record.low_since == since
    assert verdict is not None and verdict.outcome.value == outcome


def test_a_promoted_revision_is_judged_by_the_record_of_the_one_before_it() -> None:
    quick, slow = sketch.bucket_of(0.1), sketch.bucket_of(0.5)
    latency = {"latency": [{"signal": "ttft", "quantile": 0.95, "maxIncrease": "15%", "minRequests": 100}]}
    asked, stage = turn(
        ERRORS | latency,
        [Slice("g", BEGAN + 60.0 * minute, 2.0, "a", "s", 50, 0, {"ttft": {slow: 50}}) for minute in range(5)],
    )
    record = BaselineRecord("z", "ttft", "s", {str(quick): 1000}, source="gateway")
    stage = replace(stage, previous=PreviousRecord("z", BEGAN), baseline=(record,))
    after, verdict = judge_promoted(asked, stage, asked.rollout.guard, stage.baseline)
    assert verdict is not None and verdict.reason == "LatencyRegression"
    assert after.record.verdict == verdict.record
    assert {one.against for one in after.record.failures} == {""}
    (errors, *_) = after.record.failures
    _, again = judge_promoted(asked, after, asked.rollout.guard, after.baseline)
    assert again is not None and again.failures[0] == errors, "the stored evidence is continued, not counted twice"
    _, unknown = judge_promoted(asked, stage, asked.rollout.guard, ())
    assert unknown is not None and unknown.reason == ""


def test_before_a_promoted_revision_has_traffic_it_has_no_verdict() -> None:
    asked, stage = turn(ERRORS, pieces(), traffic_since=None)
    assert judge_promoted(asked, stage, asked.rollout.guard, stage.baseline) == (stage, None)


@pytest.mark.parametrize("promoted", [False, True])
def test_the_evidence_about_failures_goes_on_where_the_last_decision_ended(promoted: bool) -> None:
    def judged(asked: SpecTurn, stage: Stage) -> tuple[Stage, Verdict | None]:
        return (
            judge_promoted(asked, stage, asked.rollout.guard, stage.baseline)
            if promoted
            else judge_canary(asked, stage)
        )

    asked, stage = turn(ERRORS, pieces(failed=1))
    stage, first = judged(asked, stage)
    later = pieces(failed=1, start=BEGAN + 60.0)
    asked = replace(asked, observation=replace(asked.observation, slices=tuple(later)))
    _, verdict = judged(asked, stage)
    assert first is not None and verdict is not None
    assert verdict.record.samples > first.record.samples == 300


def test_a_guard_without_failures_keeps_what_is_stored_of_them() -> None:
    """An edit of the guard may name the errors again."""
    stored = (FailureRecord(signal="errors"),)
    after, verdict = judge_canary(*turn({"latency": [{"signal": "e2e"}], "errors": {}}, pieces(), failures=stored))
    assert verdict is not None and after.record.failures == stored


def test_the_stored_evidence_of_the_latency_is_that_of_the_verdict() -> None:
    old = (EvidenceRecord("a", "b", 0.15, 0.0, 3),)
    after, verdict = judge_canary(*turn(ERRORS, pieces(), evidence=old))
    assert verdict is not None and after.record.evidence == verdict.evidence == ()


def test_the_stored_evidence_of_the_latency_is_continued() -> None:
    asked, stage = turn({"errors": {}, "latency": [{"signal": "ttft"}]}, [])
    traffic = [
        replace(one, stratum="", requests=0, started=None, load={"512-1447": LoadCounts({40: 10}, ttft={40: 10})})
        for one in pieces(start=BEGAN - 60.0, count=60)
    ]
    asked = replace(asked, observation=replace(asked.observation, slices=tuple(traffic)))
    old = EvidenceRecord("a", "b", 0.15, BEGAN + 20.0, 1000, logs=(0.0,) * 37)
    after, _ = judge_canary(asked, replace(stage, record=replace(stage.record, evidence=(old,))))
    (evidence,) = after.record.evidence
    assert evidence.blocks > 1000


BOTH: dict[str, Any] = {"errors": {"maxRate": "1%"}, "latency": [{"signal": "ttft"}]}


def test_gateways_that_are_silent_take_nothing_from_the_stored_evidence() -> None:
    """An operator that restarts with the gateways goes on from it."""
    kept = (EvidenceRecord("a", "b", 0.15, BEGAN + 20.0, 9, logs=(0.0,) * 37),)
    failed = (FailureRecord(signal="errors", source="gateway"),)
    asked, stage = turn(BOTH, [], evidence=kept, failures=failed)
    for slices in (None, tuple(pieces())):  # nor do those of which none adjusts times yet
        silent = replace(asked, observation=replace(asked.observation, slices=slices))
        after, verdict = judge_canary(silent, stage)
        assert verdict is not None and verdict.outcome.value == "Inconclusive"
        assert after.record.evidence == kept
    after, _ = judge_canary(replace(asked, observation=replace(asked.observation, slices=None)), stage)
    assert after.record.failures == failed


def test_a_source_that_is_silent_takes_nothing_from_what_another_one_has_stored() -> None:
    guard = {"errors": {"maxRate": "1%", "source": "Engine"}, "latency": [{"signal": "e2e", "maxSeconds": 3}]}
    failed = FailureRecord(signal="errors", source="engine")
    after, _ = judge_canary(*turn(guard, pieces(), failures=(failed,)))
    assert [one.signal for one in after.record.failures] == ["e2e 3", "errors"]
    assert after.record.failures[1] == failed


@pytest.mark.parametrize(("previous", "reason"), [("z", ""), ("", "ErrorRate")])
def test_a_promoted_revision_is_excused_by_the_revision_before_it_alone(previous: str, reason: str) -> None:
    """Its last requests may fail in the same seconds, for the same cause."""
    traffic = [replace(one, errors=5) for one in pieces(revisions="az")]
    asked, stage = turn(ERRORS, traffic)
    stage = replace(stage, previous=PreviousRecord(previous, BEGAN) if previous else None)
    _, verdict = judge_promoted(asked, stage, asked.rollout.guard, stage.baseline)
    assert verdict is not None and verdict.reason == reason


@pytest.mark.parametrize("left", [1, 3, 30])
def test_the_last_requests_of_the_revision_before_it_hide_no_failures_of_a_promoted_one(left: int) -> None:
    """Streams that are open at the promotion end after it."""
    traffic = [replace(one, revision="a") for one in pieces(failed=3, revisions="b")]
    asked, stage = turn(ERRORS, [*traffic, Slice("g", BEGAN + 4.0, 2.0, "z", "s", left, 0, started=0)])
    _, verdict = judge_promoted(
        asked, replace(stage, previous=PreviousRecord("z", BEGAN)), asked.rollout.guard, stage.baseline
    )
    assert verdict is not None and verdict.reason == "ErrorRate"


def test_the_last_requests_of_a_stable_hide_no_failures_of_a_canary_with_all_traffic() -> None:
    """Its first weight is 100: the requests that the stable had open then are all that is ever known of it."""
    left = Slice("g", BEGAN + 4.0, 2.0, "a", "s", 3, 1, started=0)
    _, verdict = judge_canary(*turn(ERRORS, [*pieces(failed=3, revisions="b", count=220), left]))
    assert verdict is not None and verdict.reason == "ErrorRate"


def test_so_many_signals_are_stored_at_most() -> None:
    latency = {"e2e": {sketch.bucket_of(0.1): 1}}
    many = [replace(one, stratum=f"s{number:02}", latency=latency) for number in range(40) for one in pieces(count=1)]
    after, verdict = judge_canary(*turn({**ERRORS, "latency": [{"signal": "e2e"}]}, many))
    assert verdict is not None and len(verdict.signals) > MAX_SIGNALS == len(after.record.verdicts) == 32
    assert isinstance(after.record.verdicts[0], SignalRecord)


def test_engines_whose_requests_take_minutes_count_what_failed() -> None:
    """A pod's counts are known when a request ends, and those of the stable's pods in the meantime as well."""
    guard = {"latency": [], "errors": {"maxRate": "1%", "source": "Engine"}}
    asked, stage = turn(guard, [])
    engines, reason, memo = Past(), "", dict[str, object]()
    for second in range(10, 601, 10):
        tokens = {"itl": {0.1: 50.0 * second, math.inf: 50.0 * second}}
        failed = 20.0 * (second // 100)
        engines.add(Pod("p", "", "a"), Counts(BEGAN + second, tokens, second, 0.0))
        engines.add(Pod("q", "", "b"), Counts(BEGAN + second, tokens, failed, failed))
        observed = replace(asked.observation, slices=None, engine_slices=tuple(engines.slices), memo=memo)
        stage, verdict = judge_canary(replace(asked, observation=observed, now=BEGAN + second), stage)
        reason = reason or ("" if verdict is None else verdict.reason)
    assert reason == "ErrorRate"


def priced(known: str, price: float | None = 2.5) -> tuple[SpecTurn, Stage]:
    """A guard of the cost alone, at a price for an accelerator; the specs of the revisions in `known` are stored."""
    tpot = {"tpot": {sketch.bucket_of(0.02): 10}}
    traffic = [
        one for index in range(10) for one in pieces(start=BEGAN + 30.0 * index, count=15, latency=tpot, tokens=500)
    ]
    asked, stage = turn({"errors": {}}, traffic)
    records = tuple(
        RevisionRecord(
            name, 0.0, {"model": {}, "resources": {"accelerator": {"name": "nvidia.com/gpu", "count": count}}}
        )
        for name, count in (("a", 1), ("b", 2))
        if name in known
    )
    records += tuple(RevisionRecord(name, 0.0, {}) for name in "ab" if name not in known)
    status = replace(asked.observation.status, revisions=records)
    rollout = replace(asked.rollout, guard=replace(asked.rollout.guard, latency=(), max_cost_increase=0.1))
    spec = replace(asked.spec, cost=replace(asked.spec.cost, per_accelerator_hour=price), rollout=rollout)
    return replace(asked, spec=spec, observation=replace(asked.observation, status=status)), stage


def test_a_canary_on_twice_the_accelerators_costs_twice_as_much() -> None:
    _, verdict = judge_canary(*priced("ab"))
    assert verdict is not None and verdict.reason == "Cost"
    assert "a replica costs 5 an hour, one of the stable 2.5" in verdict.record.message
    # Four replicas of the stable make 250 tokens a second: 10 / 3600 / 250 for one, and the canary twice that.
    costs = re.search(r"1,000 output tokens cost (\S+) on the canary, (\S+) on the stable", verdict.record.message)
    assert costs is not None
    assert [float(cost) for cost in costs.groups()] == pytest.approx([0.0222, 0.0111], rel=0.05)


@pytest.mark.parametrize(("known", "price"), [("", 2.5), ("a", 2.5), ("b", 2.5), ("ab", None)])
def test_a_cost_is_not_judged_while_a_price_is_not_known(known: str, price: float | None) -> None:
    _, verdict = judge_canary(*priced(known, price))
    assert verdict is not None and (verdict.outcome.value, verdict.reason) == ("Inconclusive", "")
