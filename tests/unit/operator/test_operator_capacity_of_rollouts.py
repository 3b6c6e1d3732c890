"""Protects the pods that traffic needs before it moves: a canary is compared with what the stable should have, not with what is
ready of it, it is given up when it stays too small, and the exact bounds of steps, promotion, rollback, watch and failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.rollout_turn import NOW, pods, turn_of

from pagefleet_operator.domain.rollout import carrying_capacity, promotion, steps
from pagefleet_operator.domain.status.observation import PodFault, RevisionReading
from pagefleet_operator.domain.status.stage import Stage
from pagefleet_operator.domain.status.status import AlertRecord, Phase, PreviousRecord, Weight
from pagefleet_operator.domain.status.turn import SpecTurn

DEADLINE = 600.0
ROLLOUT = {"steps": [{"weight": 50, "hold": "1s"}], "guard": {"deadline": "10m"}}


def placed(
    phase: Phase, stable: tuple[int, int], ready: int, *, held: float = 0.0, fault: PodFault | None = None, **more: Any
) -> tuple[SpecTurn, Stage]:
    """A rollout of revision b over a. `stable` is (ready, desired), `ready` the canary's ready pods; `held` are the seconds in this phase."""
    record = {"since": NOW - held, "started": NOW - held, "held": held, **more.pop("record", {})}
    readings = RevisionReading("a", stable[1], pods(stable[0])), RevisionReading("b", ready, pods(ready, 1, fault))
    return turn_of(phase, readings, desired={"a": stable[1], "b": ready}, rollout=ROLLOUT, record=record, **more)


@pytest.mark.parametrize(
    ("ready", "desired", "canary", "promoted"),
    [(10, 10, 9, False), (10, 10, 10, True), (0, 10, 1, False), (0, 10, 9, False), (3, 10, 3, False), (0, 0, 1, True)],
)
def test_a_canary_is_promoted_when_it_has_the_pods_that_the_stable_should_have(
    ready: int, desired: int, canary: int, promoted: bool
) -> None:
    turn, stage = placed(Phase.PROMOTING, (ready, desired), canary, record={"step": 1})
    after = promotion.promote(turn, stage)
    assert (after.stable == "b") == promoted
    assert after.weight("b") == (100 if promoted else 10)


@pytest.mark.parametrize(
    ("ready", "desired", "canary", "in_force"),
    [(3, 3, 1, False), (3, 3, 2, True), (0, 10, 1, False), (1, 10, 4, False), (0, 10, 5, True), (1, 1, 0, False)],
)
def test_a_steps_weight_needs_its_part_of_the_stables_pods_rounded_up(
    ready: int, desired: int, canary: int, in_force: bool
) -> None:
    turn, stage = placed(Phase.STEP, (ready, desired), canary)
    assert carrying_capacity.canary_can_carry(turn, stage, 50) == in_force
    assert steps.advance(turn, stage, None).weight("b") == (50 if in_force else 10)


@pytest.mark.parametrize(("phase", "percent", "needed"), [(Phase.STEP, 50, 5), (Phase.PROMOTING, 100, 10)])
def test_a_shortage_of_capacity_is_given_up_after_the_deadline(phase: Phase, percent: int, needed: int) -> None:
    def after(held: float, stable: int = 10) -> Stage:
        fault = PodFault("Unschedulable", "0/3 nodes have 1 nvidia.com/gpu")
        record = {"step": 1} if phase is Phase.PROMOTING else {}
        turn, stage = placed(phase, (stable, 10), 3, held=held, fault=fault, record=record)
        return promotion.promote(turn, stage) if record else steps.advance(turn, stage, None)

    assert after(DEADLINE).canary == "b"
    given_up = after(DEADLINE + 1)
    [rejection] = given_up.rejected
    assert (rejection.hash, rejection.reason) == ("b", "CapacityShortage")
    assert rejection.message == (
        f"revision b has 3 of the {needed} ready pods that {percent} % of the traffic needs, for more than 600 s "
        "(spec.rollout.guard.deadline): 0/3 nodes have 1 nvidia.com/gpu"
    )
    assert given_up.weight("a") == 100
    worse = after(DEADLINE + 1, stable=2)
    assert (worse.canary, worse.rejected) == ("b", ()), (
        "the stable has fewer ready pods: there is nothing to go back to"
    )


def test_a_rollback_moves_everything_from_exactly_half_of_the_replicas_on() -> None:
    def carried(ready: int, needed: int) -> int:
        return carrying_capacity.percent_carried(RevisionReading("a", needed, pods(ready)), needed)

    assert [carried(ready, 4) for ready in range(4)] == [0, 25, 100, 100]
    assert [carried(ready, 5) for ready in range(4)] == [0, 20, 40, 100]


@pytest.mark.parametrize("alerting", [False, True])
def test_an_alert_that_pauses_keeps_the_watch_after_promotion_open(alerting: bool) -> None:
    alert = AlertRecord("f", "Bad", NOW, "a", NOW, {"severity": "page"})
    turn, stage = placed(
        Phase.WATCHING, (1, 1), 1, held=120.0, canary="", traffic=(Weight("a", 100),),
        previous=PreviousRecord("b", NOW - 120), alerts=(alert,) if alerting else (),
    )  # fmt: skip
    rollout = replace(turn.rollout, watch=60.0, alerts_pause=True, alert_labels={"severity": "page"})
    turn = replace(turn, target="a", spec=replace(turn.spec, rollout=rollout))
    after = promotion.watch(turn, stage)
    assert after.record.phase is (Phase.WATCHING if alerting else Phase.IDLE)
    assert after.previous == stage.previous
    ended = [event.reason for event in turn.journal.events]
    assert ended == ([] if alerting else ["WatchEnded"])
