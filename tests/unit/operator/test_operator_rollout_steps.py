"""Protects each step of a rollout and its end, number by number: the weight that is in force, hold, requests and verdict, the
deadline, load tests, steps that were edited under the rollout, promotion's beginning. Protects which alert counts, and that
the way back stays open while the spec cannot be used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.rollout_turn import NOW, reading, turn_of

from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict, record_without_latency
from pagefleet_operator.domain.rollout import actions, alerts, invalid_spec, steps
from pagefleet_operator.domain.spec.rollout import Rollout
from pagefleet_operator.domain.status.observation import LoadTestReading
from pagefleet_operator.domain.status.stage import Stage
from pagefleet_operator.domain.status.status import AlertRecord, MirrorRecord, Phase, Weight
from pagefleet_operator.domain.status.turn import SpecTurn

PAIR = (reading("a", 4), reading("b", 4))
STEPS = ({"weight": 10, "hold": "20s"}, {"mirror": "20%", "hold": "5s"}, {"weight": 50, "hold": "20s"}, {"pause": {}})
RESULT = {"requests": 10, "errors": 0, "ttft": {"300": 10}}
PAGE = {"severity": "page"}


def at(step: int, *, all_steps: tuple[Any, ...] = STEPS, guard: Any = None, **more: Any) -> tuple[SpecTurn, Stage]:
    """The rollout in a step of `all_steps`, its weight in force."""
    kinds = ("weight", "pause", "mirror", "loadTest")
    phases = (Phase.STEP, Phase.PAUSED, Phase.MIRRORING, Phase.LOAD_TEST)
    phase = next(phase for kind, phase in zip(kinds, phases, strict=True) if kind in all_steps[step])
    record = {"step": step, **more.pop("record", {})}
    rollout = {"steps": list(all_steps), **({"guard": guard} if guard else {})}
    return turn_of(phase, more.pop("pods", PAIR), desired={"a": 4}, rollout=rollout, record=record, **more)


def verdict(outcome: Outcome) -> Verdict:
    record = replace(record_without_latency("errors", 0.0, 0.01, 30, 1.0), message="errors: none of 30")
    return Verdict(outcome, record, "ErrorRate")


def test_the_weight_of_each_step() -> None:
    turn, _ = at(0)
    assert [steps.weight_of(turn.rollout, step) for step in range(5)] == [10, 10, 50, 50, 50]
    assert steps.weight_of(at(0, all_steps=({"pause": {}}, {"weight": 5}))[0].rollout, 0) == 0


def test_a_step_is_entered_with_its_timer_at_zero() -> None:
    passed = verdict(Outcome.PASSED).record
    turn, stage = at(0, record={"held": 20.0, "requests": 7, "verdict": passed}, mirror=MirrorRecord("b", 1))
    entered = steps.enter(turn, stage, 2)
    assert entered.traffic == (Weight("a", 50), Weight("b", 50))
    assert (entered.record.phase, entered.record.step, entered.record.held) == (Phase.STEP, 2, 0.0)
    assert (entered.record.requests, entered.record.traffic_since, entered.mirror) == (0, NOW, None)
    (event,) = turn.journal.events
    assert (event.type, event.reason) == ("Normal", "StepAdvanced")
    assert event.message == "step 3 of 4: revision b gets 50 % of requests (errors: none of 30)"
    copies = steps.enter(turn, stage, 1)
    turn, stage = at(0)
    steps.enter(turn, stage, 1)
    assert turn.journal.events[-1].message == "step 2 of 4: revision b gets copies of 20 % of requests"
    assert (copies.mirror, copies.record.phase, copies.weight("b")) == (MirrorRecord("b", 20), Phase.MIRRORING, 10)


def test_after_the_last_step_the_promotion_begins() -> None:
    turn, stage = at(3, record={"held": 5.0}, mirror=MirrorRecord("b", 1))
    promoting = steps.enter(turn, stage, 4)
    assert (promoting.record.phase, promoting.record.step, promoting.record.held) == (Phase.PROMOTING, 4, 0.0)
    assert (promoting.mirror, promoting.traffic) == (None, stage.traffic)
    (event,) = turn.journal.events
    assert event.reason == "Promoting"
    assert event.message == "revision b has passed every step; its replicas are raised before it gets all traffic"


@pytest.mark.parametrize(
    ("held", "requests", "outcome", "ready", "goes_on"),
    [
        (20.0, 5, None, 1, True),
        (19.9, 5, None, 1, False),
        (20.0, 4, None, 1, False),
        (20.0, 5, Outcome.PASSED, 1, True),
        (20.0, 5, Outcome.INCONCLUSIVE, 1, False),
        (20.0, 5, Outcome.PASSED, 0, False),
    ],
)
def test_a_step_ends_after_its_hold_its_requests_and_a_passing_verdict(
    held: float, requests: int, outcome: Outcome | None, ready: int, goes_on: bool
) -> None:
    turn, stage = at(
        0, all_steps=({"weight": 10, "hold": "20s", "minRequests": 5}, {"weight": 50}),
        record={"held": held, "requests": requests}, pods=(reading("a", 4), reading("b", ready)),
    )  # fmt: skip
    after = steps.advance(turn, stage, verdict(outcome) if outcome else None)
    assert after.record.step == (1 if goes_on else 0)


@pytest.mark.parametrize(("step", "outcome"), [(0, "Refused"), (1, "Refused"), (3, "Done")])
def test_only_a_pause_waits_for_a_person(step: int, outcome: str) -> None:
    turn, stage = at(step)
    asked = replace(turn, observation=replace(turn.observation, action='{"id": "x", "action": "resume"}'))
    answered = actions.act(asked, stage).action
    assert answered is not None
    assert answered.outcome == outcome


def test_a_weight_that_is_not_in_force_yet_ends_no_step() -> None:
    """The canary has one pod and needs two for half of the traffic: the hold has not begun."""
    small = (reading("a", 4), reading("b", 1))
    turn, stage = at(2, record={"held": 100.0, "paused": ""}, pods=small)
    waiting = steps.advance(turn, stage, None)
    assert (waiting.record.step, waiting.weight("b"), waiting.record.held) == (2, 10, 100.0)
    turn, stage = at(2, record={"held": 100.0, "paused": "action x", "traffic_since": 5.0})
    begun = steps.advance(turn, stage, None)
    assert (begun.record.step, begun.weight("b")) == (2, 50)
    assert (begun.record.held, begun.record.paused, begun.record.traffic_since) == (0.0, "action x", 5.0)
    lower = at(0, traffic=(Weight("a", 50), Weight("b", 50)), pods=(reading("a", 4), reading("b", 0)))
    assert steps.advance(*lower, None).weight("b") == 10, "less traffic needs no pods"


@pytest.mark.parametrize(
    ("held", "outcome", "choice", "given_up"),
    [
        (80.0, Outcome.INCONCLUSIVE, "rollback", True),
        (79.9, Outcome.INCONCLUSIVE, "rollback", False),
        (80.0, Outcome.INCONCLUSIVE, "hold", False),
        (80.0, None, "rollback", False),
        (80.0, Outcome.PASSED, "rollback", False),
    ],
)
def test_without_a_verdict_the_deadline_decides(
    held: float, outcome: Outcome | None, choice: str, given_up: bool
) -> None:
    guard = {"onInconclusive": choice, "deadline": "60s"}
    turn, stage = at(
        0, all_steps=({"weight": 10, "hold": "20s", "minRequests": 50}, {"weight": 20}), guard=guard,
        record={"held": held, "requests": 9},
    )  # fmt: skip
    after = steps.advance(turn, stage, verdict(outcome) if outcome else None)
    assert [(one.reason, one.message) for one in after.rejected] == (
        [
            (
                "DeadlineExceeded",
                "no verdict within 60 s after the hold of 20 s in step 1 of 2, with 9 requests to the canary: "
                "errors: none of 30",
            )
        ]
        if given_up
        else []
    )


@pytest.mark.parametrize(
    ("held", "requests", "ready", "goes_on"),
    [(80.0, 50, 1, True), (79.9, 50, 1, False), (80.0, 49, 1, False), (80.0, 50, 0, False)],
)
def test_a_spec_may_ask_to_go_on_unproven(held: float, requests: int, ready: int, goes_on: bool) -> None:
    turn, stage = at(
        0, all_steps=({"weight": 10, "hold": "20s", "minRequests": 50}, {"weight": 20, "hold": "1s"}),
        guard={"onInconclusive": "promote", "deadline": "60s"}, record={"held": held, "requests": requests},
        pods=(reading("a", 4), reading("b", ready)),
    )  # fmt: skip
    after = steps.advance(turn, stage, verdict(Outcome.INCONCLUSIVE))
    assert (after.record.step, after.rejected) == ((1 if goes_on else 0), ())
    noted = [(event.type, event.reason) for event in turn.journal.events]
    assert noted == ([("Warning", "StepUnproven"), ("Normal", "StepAdvanced")] if goes_on else [])


def test_steps_that_were_edited_under_the_rollout_begin_again() -> None:
    turn, stage = at(1)
    other = replace(stage, record=replace(stage.record, phase=Phase.STEP, held=9.0))
    again = steps.advance(turn, other, None)
    assert (again.record.phase, again.record.step, again.record.held) == (Phase.MIRRORING, 1, 0.0)
    last = at(3, traffic=(Weight("a", 50), Weight("b", 50)))
    assert steps.advance(*last, None) == last[1], "a pause without an end waits"


@pytest.mark.parametrize("outcome", [Outcome.PASSED, Outcome.INCONCLUSIVE])
def test_fewer_steps_promote_no_canary_that_has_not_passed_the_last_one(outcome: Outcome) -> None:
    """The third of four steps is gone."""
    fewer = ({"weight": 10, "hold": "20s"}, {"weight": 25, "hold": "60s"})
    half = (Weight("a", 50), Weight("b", 50))
    turn, stage = at(1, all_steps=fewer, traffic=half, record={"held": 500.0})
    again = steps.advance(turn, replace(stage, record=replace(stage.record, step=2)), verdict(outcome))
    assert (again.record.phase, again.record.step, again.record.held) == (Phase.STEP, 1, 0.0)
    assert again.weight("b") == 25 and turn.journal.events[-1].message.startswith("step 2 of 2: revision b gets 25 %")
    turn, stage = at(0, all_steps=fewer, traffic=half)
    none = replace(turn, spec=replace(turn.spec, rollout=replace(turn.rollout, steps=())))
    assert steps.advance(none, stage, verdict(outcome)).record.phase is Phase.PROMOTING


def load_test(held: float, result: LoadTestReading | None, **stored: Any) -> tuple[SpecTurn, Stage]:
    turn, stage = at(0, all_steps=({"loadTest": {"timeout": "40s"}}, {"weight": 50}), record={"held": held})
    records = tuple(replace(one, load_test=stored.get(one.hash, {})) for one in turn.observation.status.revisions)
    status = replace(turn.observation.status, revisions=records)
    stage = replace(stage, traffic=(Weight("a", 100),))
    return replace(turn, observation=replace(turn.observation, status=status, load_test=result)), stage


def test_a_load_test_ends_with_its_result_its_failure_or_its_timeout() -> None:
    assert steps.advance(*load_test(40.0, None), None).rejected == ()
    (late,) = steps.advance(*load_test(40.1, None), None).rejected
    assert (late.reason, late.message) == ("LoadTest", "the load test has not ended within its timeout of 40 s")
    (failed,) = steps.advance(*load_test(0.0, LoadTestReading(failure="no pod")), None).rejected
    assert (failed.reason, failed.message) == ("LoadTest", "the load test failed: no pod")
    assert steps.advance(*load_test(0.0, LoadTestReading(RESULT)), None).record.step == 1
    assert steps.advance(*load_test(50.0, None, b=RESULT), None).record.step == 1, "a stored result counts"
    stored = load_test(0.0, LoadTestReading(failure="no pod"), b=RESULT)
    assert steps.advance(*stored, None).record.step == 1
    assert stored[0].journal.events[0].reason == "LoadTestPassed"
    failing = {**RESULT, "errors": 10}
    (worse,) = steps.advance(*load_test(0.0, LoadTestReading(failing), a=RESULT), None).rejected
    assert worse.reason == "LoadTest"


def test_a_load_test_is_compared_with_the_stable_revisions_own() -> None:
    slow, quick = {"requests": 1000, "errors": 0, "ttft": {"400": 1000}}, {**RESULT, "ttft": {"300": 1000}}
    (slower,) = steps.advance(*load_test(0.0, LoadTestReading(slow), a=quick), None).rejected
    assert "in its own load test" in slower.message
    turn, stage = load_test(0.0, LoadTestReading(slow))
    assert steps.advance(turn, stage, None).record.step == 1, "the first load test of all has nothing to compare with"
    turn, stage = load_test(0.0, LoadTestReading(slow))
    assert steps.advance(turn, replace(stage, stable="forgotten"), None).record.step == 1


def alert(name: str = "Bad", revision: str = "b", received: float = NOW, **more: Any) -> AlertRecord:
    return AlertRecord(name, name, NOW, revision, received, more.pop("labels", PAGE), **more)


def test_which_alert_counts() -> None:
    def first(*records: AlertRecord, labels: Any = PAGE, nameless: bool = False) -> str:
        record = alerts.firing_against("b", records, labels, NOW, nameless)
        return record.name if record else ""

    assert first(alert("other", "a"), alert("Bad")) == "Bad"
    assert first(alert(resolved=True), alert("early", received=NOW - 0.1), alert("info", labels={})) == ""
    assert first(alert(), labels=None) == ""
    assert first(alert(labels={}), labels={}) == "Bad"
    assert (first(alert(revision="")), first(alert(revision=""), nameless=True)) == ("", "Bad")
    assert first(alert("other", "a"), nameless=True) == ""
    assert alerts.sentence(alert(), "b") == "alert Bad fires for revision b"


@pytest.mark.parametrize(
    ("raw", "labels", "nameless"),
    [
        ({"rollout": {"alerts": {"matchLabels": PAGE}}}, PAGE, False),
        ({"rollout": {"alerts": {"matchLabels": PAGE, "withoutRevision": "act"}}}, PAGE, True),
        ({"rollout": {"alerts": {"matchLabels": PAGE, "onAlert": "rollback", "withoutRevision": "no"}}}, PAGE, False),
        ({"rollout": {"alerts": {"matchLabels": PAGE, "onAlert": "pause"}}}, PAGE, False),
        ({"rollout": {"alerts": {"matchLabels": {"severity": "page", "team": 5}}}}, None, False),
        ({"rollout": {"alerts": {"matchLabels": [1]}}}, None, False),
        ({"rollout": {"alerts": 5}}, None, False),
        ({"rollout": [1]}, None, False),
        ("text", None, False),
    ],
)
def test_labels_are_read_from_a_spec_that_may_be_anything(raw: object, labels: object, nameless: bool) -> None:
    assert alerts.labels_of(raw) == labels
    assert alerts.rollback_labels_of(raw) == (None if "pause" in str(raw) else labels)
    assert alerts.counts_without_revision(raw) is nameless


def decided(phase: Phase, rollout: Rollout | None, raw: object = None, about: str = "b", canary: str = "b") -> bool:
    turn, _ = turn_of(phase, PAIR, canary=canary, alerts=(alert(revision=about),))
    return alerts.decides(turn.observation.status, raw, rollout)


def test_an_alert_decides_alone_where_something_is_judged() -> None:
    turn, _ = turn_of(Phase.STEP, PAIR, rollout={"steps": [{"weight": 5}], "alerts": {"matchLabels": PAGE}})
    ours, raw = turn.rollout, {"rollout": {"alerts": {"matchLabels": PAGE}}}
    pausing = replace(ours, alerts_pause=True)
    assert decided(Phase.STEP, ours)
    assert not decided(Phase.STEP, pausing)
    assert not decided(Phase.ROLLING_BACK, ours)
    assert not decided(Phase.STEP, ours, about="", canary="")
    assert (decided(Phase.WATCHING, ours, about="a"), decided(Phase.WATCHING, ours)) == (True, False)
    assert (decided(Phase.STEP, None, raw), decided(Phase.STEP, None, {})) == (True, False)
    acting = {"rollout": {"alerts": {"matchLabels": PAGE, "withoutRevision": "act"}}}
    assert (decided(Phase.STEP, None, acting, ""), decided(Phase.STEP, None, raw, "")) == (True, False)
    act_on_all = replace(ours, alerts_without_revision=True)
    assert (decided(Phase.STEP, act_on_all, None, ""), decided(Phase.STEP, ours, None, "")) == (True, False)
    assert not decided(Phase.ROLLING_BACK, act_on_all, None, "")


def held_by(phase: Phase, raw: Any, **more: Any) -> Stage:
    turn, _ = turn_of(phase, PAIR, desired={"a": 4}, mirror=MirrorRecord("b", 5), **more)
    return invalid_spec.hold(replace(turn, observation=replace(turn.observation, spec=raw)), "spec.x: is wrong")


def test_an_invalid_spec_moves_nothing_but_the_way_back() -> None:
    raw = {"rollout": {"alerts": {"matchLabels": PAGE}}}
    calm = held_by(Phase.STEP, raw)
    assert (calm.canary, calm.weight("b"), calm.mirror) == ("b", 10, MirrorRecord("b", 5))
    alarmed = held_by(Phase.STEP, raw, alerts=(alert(),))
    assert [(one.hash, one.reason, one.message) for one in alarmed.rejected] == [
        ("b", "Alert", "alert Bad fires for revision b")
    ]
    assert (alarmed.weight("a"), alarmed.mirror) == (100, None)
    assert held_by(Phase.STEP, raw, alerts=(alert(received=NOW - 1),)).rejected == ()
    assert held_by(Phase.STEP, {}, alerts=(alert(),)).rejected == ()
    assert held_by(Phase.IDLE, raw, alerts=(alert(revision=""),), canary="").rejected == ()
    back = held_by(Phase.ROLLING_BACK, raw, record={"needed": 4})
    assert (back.canary, back.record.phase) == ("", Phase.ROLLED_BACK)
