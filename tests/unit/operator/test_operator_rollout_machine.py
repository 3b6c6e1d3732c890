"""Protects each transition of a rollout, number by number: the first revision, a new canary, one that is asked for no longer, a
rejected one, the start and its deadline, alerts that roll back or pause, and when the timer of a phase is written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.rollout_turn import NOW, reading, turn_of

from pagefleet_operator.domain.rollout import machine
from pagefleet_operator.domain.status.observation import GateReading, RevisionReading
from pagefleet_operator.domain.status.stage import Stage
from pagefleet_operator.domain.status.status import (
    AlertRecord,
    BaselineRecord,
    MirrorRecord,
    Phase,
    PreviousRecord,
    Rejection,
    Weight,
)
from pagefleet_operator.domain.status.turn import SpecTurn

PAIR = (reading("a", 4), reading("b", 4))
ALL = (Weight("a", 100),)
ROLLOUT = {"steps": [{"weight": 10, "hold": "20s"}, {"pause": {}}], "guard": {"deadline": "60s"}}
PAUSING = {**ROLLOUT, "alerts": {"matchLabels": {"severity": "page"}, "onAlert": "pause"}}
ALERT = AlertRecord("f", "Bad", NOW, "b", NOW, {"severity": "page"})
LEFT_OVER: dict[str, Any] = {"mirror": MirrorRecord("b", 5), "baseline": (BaselineRecord("z", "ttft", ""),)}


def turned(
    phase: Phase, *, target: str = "b", pods: tuple[RevisionReading, ...] = PAIR, **more: Any
) -> tuple[SpecTurn, Stage]:
    more = {"rollout": ROLLOUT, "desired": {"a": 4}, **more}
    turn, _ = turn_of(phase, pods, **more)
    turn = replace(turn, target=target)
    return turn, machine.advance(turn)


def noted(turn: SpecTurn) -> list[tuple[str, str]]:
    return [(event.reason, event.message) for event in turn.journal.events]


def test_the_first_revision_gets_all_traffic_when_it_is_ready() -> None:
    none: dict[str, Any] = {"stable": "", "canary": "", "traffic": ()}
    turn, begun = turned(Phase.IDLE, pods=(reading("b", 0, 1),), **none)
    assert (begun.stable, begun.canary, begun.traffic) == ("b", "", ())
    assert (begun.record.phase, begun.record.since, begun.record.started) == (Phase.STARTING, NOW, NOW)
    assert noted(turn) == [("RevisionStarted", "revision b is started; it is the first")]
    turn, waiting = turned(Phase.STARTING, pods=(reading("b", 0, 1),), **{**none, "stable": "b"})
    assert (waiting.record.phase, noted(turn)) == (Phase.STARTING, [])
    turn, serving = turned(Phase.STARTING, pods=(reading("b", 1),), **{**none, "stable": "b"})
    assert (serving.stable, serving.traffic) == ("b", (Weight("b", 100),))
    assert (serving.record.phase, serving.record.since) == (Phase.IDLE, NOW)
    assert noted(turn) == [("Serving", "revision b is ready and gets all traffic")]


def test_a_spec_that_changes_before_anything_served_makes_another_first_revision() -> None:
    _, serving = turned(Phase.STARTING, stable="a", canary="c", traffic=())
    assert (serving.stable, serving.canary, serving.traffic) == ("b", "", (Weight("b", 100),))
    pods = (reading("b", 0, 1),)
    _, begun = turned(Phase.STARTING, stable="a", canary="c", traffic=(), pods=pods)
    assert (begun.stable, begun.canary) == ("b", "")
    _, nameless = turned(Phase.IDLE, stable="", canary="", traffic=ALL, pods=pods)
    assert (nameless.stable, nameless.traffic) == ("b", ())


def test_the_watch_after_a_promotion_is_about_the_revision_that_the_spec_asks_for() -> None:
    watch = {**ROLLOUT, "afterPromotion": {"watch": "30s"}}
    promoted: dict[str, Any] = {
        "rollout": watch,
        "canary": "",
        "traffic": ALL,
        "previous": PreviousRecord("z", NOW - 99),
    }
    turn, watched = turned(Phase.WATCHING, target="a", record={"held": 29.0}, **promoted)
    assert (watched.record.phase, noted(turn)) == (Phase.WATCHING, [])
    turn, ended = turned(Phase.WATCHING, target="a", record={"held": 30.0}, **promoted)
    assert ended.record.phase is Phase.IDLE
    assert [reason for reason, _ in noted(turn)] == ["WatchEnded"]
    _, other = turned(Phase.WATCHING, record={"held": 30.0}, **promoted)
    assert (other.canary, other.record.phase) == ("b", Phase.STARTING)


def test_a_step_goes_on_unless_it_is_paused_and_a_promotion_ends() -> None:
    assert turned(Phase.STEP, record={"held": 20.0})[1].record.step == 1
    assert turned(Phase.STEP, record={"held": 20.0, "paused": "action x"})[1].record.step == 0
    _, promoted = turned(Phase.PROMOTING, record={"step": 2})
    assert (promoted.stable, promoted.canary) == ("b", "")


@pytest.mark.parametrize(("value", "rejected"), [(2.0, ["Gate"]), (0.5, []), (None, [])])
def test_a_verdict_against_the_canary_rolls_it_back(value: float | None, rejected: list[str]) -> None:
    gate = {"name": "gate", "query": "up", "max": 1}
    rollout = {**ROLLOUT, "guard": {"deadline": "60s", "promql": [gate]}}
    record = {"held": 30.0, "traffic_since": NOW - 30, "since": NOW - 30, "started": NOW - 60}
    turn, _ = turn_of(Phase.STEP, PAIR, rollout=rollout, desired={"a": 4}, record=record)
    observation = replace(turn.observation, gates={"gate": GateReading("gate", value)})
    after = machine.advance(replace(turn, observation=observation))
    assert [one.reason for one in after.rejected] == rejected


def test_a_new_revision_starts_beside_the_stable() -> None:
    turn, begun = turned(Phase.IDLE, canary="", traffic=ALL, **LEFT_OVER)
    assert (begun.stable, begun.canary, begun.traffic) == ("a", "b", ALL)
    assert (begun.record.phase, begun.record.started, begun.mirror, begun.baseline) == (Phase.STARTING, NOW, None, ())
    assert noted(turn) == [("CanaryStarted", "revision b is started beside stable a")]
    turn, other = turned(Phase.STEP, canary="c", traffic=(Weight("a", 50), Weight("c", 50)), record={"step": 1})
    assert (other.canary, other.traffic, other.record.step) == ("b", ALL, 0)
    assert noted(turn) == [("CanaryStarted", "revision b is started beside stable a instead of c")]


def test_a_rollout_ends_when_the_spec_asks_for_the_stable() -> None:
    turn, ended = turned(Phase.STEP, target="a", **LEFT_OVER, record={"step": 1})
    assert (ended.canary, ended.traffic, ended.mirror) == ("", ALL, None)
    assert (ended.record.phase, ended.record.since, ended.record.step) == (Phase.IDLE, NOW, 0)
    assert noted(turn) == [("RolloutEnded", "the spec asks for stable a again; canary b is removed")]
    turn, idle = turned(Phase.IDLE, target="a", canary="", traffic=ALL, record={"since": 5.0})
    assert (idle.record.since, noted(turn)) == (5.0, [])
    turn, settled = turned(Phase.ROLLED_BACK, target="a", canary="", traffic=ALL, record={"since": 5.0})
    assert (settled.record.phase, settled.record.since, noted(turn)) == (Phase.IDLE, NOW, [])


def test_a_rejected_revision_gets_nothing() -> None:
    rejected = (Rejection("b", "Gate", "why", 1.0),)
    turn, refused = turned(Phase.STEP, rejected=rejected, **LEFT_OVER)
    assert (refused.canary, refused.traffic, refused.mirror) == ("", ALL, None)
    assert (refused.record.phase, refused.record.since, noted(turn)) == (Phase.ROLLED_BACK, NOW, [])
    _, again = turned(Phase.ROLLED_BACK, rejected=rejected, canary="", traffic=ALL, record={"since": 5.0})
    assert again.record.since == 5.0, "nothing is written while nothing happens"


def test_a_rollback_is_finished_before_anything_else() -> None:
    _, back = turned(Phase.ROLLING_BACK, target="c", record={"needed": 4})
    assert (back.canary, back.record.phase, back.traffic) == ("", Phase.ROLLED_BACK, ALL)


def start(ready: int, held: float, fault: str = "", **more: Any) -> Stage:
    pods = (reading("a", 4), reading("b", ready, 1, fault))
    return turned(Phase.STARTING, pods=pods, traffic=ALL, record={"held": held, **more})[1]


def test_a_canary_starts_within_the_deadline_or_not_at_all() -> None:
    assert (start(1, 0.0).record.phase, start(1, 0.0).weight("b")) == (Phase.STEP, 10)
    assert start(1, 900.0).record.phase is Phase.STEP
    assert start(1, 0.0, paused="action x").record.phase is Phase.STARTING
    assert start(0, 60.0).record.phase is Phase.STARTING
    (late,) = start(0, 60.1).rejected
    assert (late.hash, late.reason) == ("b", "StartFailed")
    assert late.message == "revision b did not start within 60 s (spec.rollout.guard.deadline): no pod became ready"
    assert start(0, 60.1, "no node fits").rejected[0].message.endswith("(spec.rollout.guard.deadline): no node fits")


def test_an_alert_rolls_back_or_pauses() -> None:
    acting = {**ROLLOUT, "alerts": {"matchLabels": {"severity": "page"}}}
    _, back = turned(Phase.STARTING, rollout=acting, alerts=(ALERT,), traffic=ALL)
    assert [(one.reason, one.message) for one in back.rejected] == [("Alert", "alert Bad fires for revision b")]
    turn, paused = turned(Phase.STEP, rollout=PAUSING, alerts=(ALERT,), record={"held": 30.0})
    assert (paused.rejected, paused.record.paused, paused.record.step) == ((), "alert Bad", 0)
    message = "alert Bad fires for revision b; the rollout is paused until the alert is resolved"
    assert noted(turn) == [("AlertPaused", message)]
    assert turn.journal.events[0].type == "Warning"
    turn, still = turned(Phase.STEP, rollout=PAUSING, alerts=(ALERT,), record={"paused": "alert Bad"})
    assert (still.record.paused, noted(turn)) == ("alert Bad", [])
    turn, own = turned(Phase.STEP, rollout=PAUSING, alerts=(ALERT,), record={"paused": "action x"})
    assert (own.record.paused, noted(turn)) == ("action x", [])
    turn, free = turned(Phase.STEP, rollout=PAUSING, record={"paused": "alert Bad", "held": 9.0})
    assert (free.record.paused, free.record.held, free.record.phase) == ("", 0.0, Phase.STEP)
    assert noted(turn) == [("AlertResolved", "alert Bad is resolved; the step begins again")]
    _, kept = turned(Phase.STEP, rollout=PAUSING, record={"paused": "action x"})
    assert kept.record.paused == "action x", "a person's pause stays"


@pytest.mark.parametrize(
    ("phase", "record", "written"),
    [
        (Phase.STEP, {}, True),
        (Phase.STEP, {"paused": "action x"}, False),
        (Phase.STEP, {"paused": "action x", "low_since": NOW}, True),
        (Phase.PAUSED, {"step": 1}, False),
        (Phase.PAUSED, {"step": 1, "low_since": NOW}, True),
        (Phase.STARTING, {"paused": "action x"}, True),
        (Phase.PROMOTING, {"step": 2}, True),
        (Phase.PROMOTING, {"step": 1}, True),
        (Phase.STEP, {"step": 2}, True),
        (Phase.IDLE, {}, False),
        (Phase.ROLLED_BACK, {"low_since": NOW}, False),
    ],
)
def test_the_timer_is_written_only_where_something_becomes_due(
    phase: Phase, record: dict[str, Any], written: bool
) -> None:
    """Row 1 of docs/reliability.md: a rollout that waits for a person writes nothing."""
    turn, stage = turn_of(phase, PAIR, rollout=ROLLOUT, record={"ticked": NOW - 15, **record})
    assert machine._is_timed(stage.record, turn.rollout) is written


def test_the_timer_counts_the_seconds_since_the_last_decision() -> None:
    pods = (reading("a", 4), reading("b", 0, 1))
    _, stage = turned(Phase.STARTING, pods=pods, traffic=ALL, record={"held": 10.0, "ticked": NOW - 15})
    assert (stage.record.held, stage.record.ticked) == (25.0, NOW)
    _, paused = turned(
        Phase.PAUSED, traffic=(Weight("a", 90), Weight("b", 10)), record={"step": 1, "held": 1.0, "ticked": 5.0}
    )
    assert (paused.record.held, paused.record.ticked) == (1.0, 5.0)
