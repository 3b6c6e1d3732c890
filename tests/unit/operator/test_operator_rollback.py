"""Protects the way back, number by number: who is rejected and with which evidence, the replicas that it needs, the traffic
that moves with each of them, the Events, and when pods without traffic may go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.rollout_turn import NOW, reading, turn_of

from pagefleet_operator.domain.rollout import carrying_capacity, draining, rollback
from pagefleet_operator.domain.status.observation import RevisionReading
from pagefleet_operator.domain.status.stage import Stage
from pagefleet_operator.domain.status.status import (
    BaselineRecord,
    DrainRecord,
    MirrorRecord,
    Phase,
    PreviousRecord,
    Rejection,
    VerdictRecord,
    Weight,
)

VERDICT = VerdictRecord("Regressed", "ttft p95", 0.5, 0.05, 1.0, 0.5, 2.0, 100, 200.0, "slower")
MEASURED = (
    "LatencyRegression",
    "LatencyBound",
    "Cost",
    "ErrorRate",
    "ClientErrors",
    "Fallbacks",
    "FreePages",
    "Gate",
    "LoadTest",
    "DeadlineExceeded",
)


def pair(stable: int, canary: int = 1) -> tuple[RevisionReading, RevisionReading]:
    return reading("a", stable), reading("b", canary)


@pytest.mark.parametrize(
    ("reason", "kept"), [*((reason, True) for reason in MEASURED), ("Alert", False), ("Aborted", False)]
)
def test_a_rejection_keeps_the_verdict_where_a_measurement_was_the_cause(reason: str, kept: bool) -> None:
    turn, stage = turn_of(Phase.STEP, pair(4), record={"verdict": VERDICT}, desired={"a": 4})
    back = rollback.reject(turn, stage, reason, "why")
    assert back.rejected == (Rejection("b", reason, "why", NOW, VERDICT if kept else None),)


def test_a_rollback_with_pods_enough_ends_at_once() -> None:
    turn, stage = turn_of(
        Phase.STEP, pair(4), desired={"a": 4}, record={"step": 1, "held": 30.0, "low_since": NOW - 5},
        mirror=MirrorRecord("b", 20), previous=PreviousRecord("z", NOW - 50),
        baseline=(BaselineRecord("a", "ttft", ""),),
    )  # fmt: skip
    back = rollback.reject(turn, stage, "Gate", "gate: 2 is above 1")
    assert (back.stable, back.canary, back.traffic) == ("a", "", (Weight("a", 100),))
    assert (back.mirror, back.baseline, back.previous) == (None, (), PreviousRecord("z", NOW - 50))
    assert (back.record.phase, back.record.held, back.record.since) == (Phase.ROLLED_BACK, 0.0, NOW)
    assert back.record.low_since is None
    assert [(event.type, event.reason, event.message) for event in turn.journal.events] == [
        (
            "Warning",
            "RolledBack",
            "Rolled back b -> a (Gate: gate: 2 is above 1). Not retried until the spec changes or "
            "`kubectl pagefleet rollout retry chat -n team-a`.",
        )
    ]


def test_a_rollback_waits_for_the_pods_of_the_good_revision() -> None:
    """The stable shrank to one pod while the canary served: it needs the canary's eight before it gets everything."""
    traffic = (Weight("b", 100),)
    turn, stage = turn_of(
        Phase.WATCHING, pair(1, 8), desired={"a": 1, "b": 8}, stable="b", canary="", traffic=traffic,
        record={"low_since": NOW - 5, "held": 9.0}, mirror=MirrorRecord("b", 20), previous=PreviousRecord("a", NOW - 50),
    )  # fmt: skip
    back = rollback.give_up(turn, stage, "b", "a", "Alert", "alert Bad fires for revision b")
    assert (back.stable, back.canary, back.mirror) == ("a", "b", None)
    assert back.traffic == (Weight("a", 12), Weight("b", 88))
    assert (back.record.phase, back.record.needed, back.record.low_since) == (Phase.ROLLING_BACK, 8, None)
    assert [(event.type, event.reason, event.message) for event in turn.journal.events] == [
        (
            "Warning",
            "RollingBack",
            "Rolling back b -> a (Alert: alert Bad fires for revision b). Revision a has 1 of the 8 ready replicas that it "
            "needs for all traffic; it gets traffic as they become ready.",
        )
    ]


def rolling_back(ready: int, needed: int, traffic: tuple[Weight, ...], **status: object) -> Stage:
    turn, stage = turn_of(Phase.ROLLING_BACK, pair(ready, 8), record={"needed": needed}, traffic=traffic, **status)
    return rollback.move_traffic_back(turn, stage)


def test_traffic_moves_back_as_pods_become_ready_and_never_forward() -> None:
    everything = (Weight("b", 100),)
    assert rolling_back(0, 8, everything).traffic == everything
    assert rolling_back(0, 8, ()).traffic == (), "nothing served: nothing is given to the bad one"
    assert rolling_back(1, 8, everything).traffic == (Weight("a", 12), Weight("b", 88))
    assert rolling_back(3, 8, everything).traffic == (Weight("a", 37), Weight("b", 63))
    assert rolling_back(3, 8, (Weight("a", 50), Weight("b", 50))).traffic == (Weight("a", 50), Weight("b", 50))
    assert rolling_back(0, 8, (Weight("a", 50), Weight("b", 50))).traffic == (Weight("a", 50), Weight("b", 50))
    assert rolling_back(4, 8, everything).traffic == (Weight("a", 100),)
    assert rolling_back(3, 8, everything).canary == "b"
    assert rolling_back(4, 8, everything).canary == ""


def test_the_way_back_to_the_previous_revision_is_used_up() -> None:
    traffic = (Weight("b", 100),)
    assert rolling_back(4, 4, traffic, previous=PreviousRecord("a", 1.0)).previous is None
    assert rolling_back(4, 4, traffic, previous=PreviousRecord("z", 1.0)).previous == PreviousRecord("z", 1.0)
    assert rolling_back(4, 4, traffic).previous is None


def test_the_end_of_a_rollback_names_the_cause_of_its_own_revision() -> None:
    others = (Rejection("x", "Gate", "another", 1.0), Rejection("b", "Alert", "its own", 2.0))
    for rejected, cause in ((others, " (Alert: its own)"), (others[:1], "")):
        turn, stage = turn_of(Phase.ROLLING_BACK, pair(4), record={"needed": 4}, rejected=rejected)
        rollback.move_traffic_back(turn, stage)
        (event,) = turn.journal.events
        assert event.message.startswith(f"Rolled back b -> a{cause}. Not retried")


def test_a_revision_is_rejected_once_and_ten_are_remembered() -> None:
    rejected = tuple(Rejection(f"r{number}", "Alert", "", float(number)) for number in range(10))
    _, stage = turn_of(Phase.STEP, pair(1), rejected=rejected)
    again = rollback.remember_rejection(stage, Rejection("r3", "Gate", "", NOW))
    assert [one.hash for one in again.rejected] == ["r0", "r1", "r2", "r4", "r5", "r6", "r7", "r8", "r9", "r3"]
    assert again.rejected[-1].reason == "Gate"
    more = rollback.remember_rejection(stage, Rejection("new", "Gate", "", NOW))
    assert [one.hash for one in more.rejected] == [*(f"r{number}" for number in range(1, 10)), "new"]


@pytest.mark.parametrize(
    ("desired", "stable_weight", "bad_ready", "needed"),
    [(3, 90, 9, 3), (1, 90, 9, 1), (0, 90, 9, 1), (0, 0, 0, 1), (3, 0, 2, 3), (3, 0, 9, 9), (2, 0, 2, 2), (0, 0, 2, 2)],
)
def test_the_replicas_that_carry_everything(desired: int, stable_weight: int, bad_ready: int, needed: int) -> None:
    """A good revision with traffic has what was retained for it; one without has to replace the pods that serve now."""
    traffic = (Weight("a", stable_weight), Weight("b", 100 - stable_weight)) if stable_weight else (Weight("b", 100),)
    turn, stage = turn_of(Phase.STEP, pair(1, bad_ready), desired={"a": desired, "b": 7}, traffic=traffic)
    assert carrying_capacity.replicas_to_carry_all(turn, stage, "b", "a") == needed
    assert carrying_capacity.desired_replicas(turn.observation, "b") == 7
    assert carrying_capacity.desired_replicas(turn.observation, "unknown") == 0


def test_what_a_revision_can_carry() -> None:
    def carried(ready: int, needed: int) -> int:
        return carrying_capacity.percent_carried(reading("a", ready, 1), needed)

    assert [carried(ready, 400) for ready in (0, 1, 2, 100, 199, 200)] == [0, 0, 0, 25, 49, 100]
    assert carried(0, 0) == 0
    assert carried(1, 0) == 100


def test_a_canary_needs_its_part_of_the_stables_pods() -> None:
    def needs(ready: int, desired: int, percent: int) -> int:
        turn, stage = turn_of(Phase.STEP, pair(ready), desired={"a": desired})
        return carrying_capacity.canary_needs(turn, stage, percent)

    assert [needs(100, 0, percent) for percent in (0, 1, 2, 50, 99, 100)] == [1, 1, 2, 50, 99, 100]
    assert (needs(3, 9, 100), needs(9, 3, 100), needs(3, 3, 34), needs(1000, 0, 100)) == (9, 9, 2, 1000)


def short(stable: int, canary: int, held: float, fault: str = "") -> str:
    readings = (reading("a", stable), reading("b", canary, 1, fault))
    rollout = {"steps": [{"weight": 50}], "guard": {"deadline": "10m"}}
    turn, stage = turn_of(Phase.STEP, readings, desired={"a": 8}, record={"held": held}, rollout=rollout)
    return carrying_capacity.shortage(turn, stage, 50)


def test_a_shortage_needs_its_time_and_a_stable_to_go_back_to() -> None:
    assert short(8, 3, 600.0) == ""
    assert short(8, 3, 600.1) == (
        "revision b has 3 of the 4 ready pods that 50 % of the traffic needs, for more than 600 s "
        "(spec.rollout.guard.deadline)"
    )
    assert short(8, 3, 600.1, "no node fits").endswith("(spec.rollout.guard.deadline): no node fits")
    assert short(3, 3, 600.1) != ""
    assert short(2, 3, 600.1) == ""


def raised(
    phase: Phase, replicas: dict[str, int], needed: int, maximum: int, canary: RevisionReading
) -> dict[str, int]:
    turn, stage = turn_of(phase, (reading("a", 1), canary), record={"needed": needed}, desired={"b": 0})
    return carrying_capacity.raise_for_rollback(turn, stage, replicas, maximum)


def test_a_rollback_only_ever_raises_replicas_up_to_the_maximum() -> None:
    four = reading("b", 3, 1)
    back = Phase.ROLLING_BACK
    given = {"a": 2}
    assert raised(back, given, 5, 9, four) == {"a": 5, "b": 4}
    assert given == {"a": 2}, "the caller's numbers stay"
    assert raised(back, {"a": 2}, 5, 3, four) == {"a": 3, "b": 4}
    assert raised(back, {"a": 7, "b": 6}, 5, 9, four) == {"a": 7, "b": 6}
    assert raised(back, {}, 0, 9, RevisionReading("b", None)) == {"a": 0, "b": 1}
    assert raised(back, {}, 0, 9, RevisionReading("b", 0)) == {"a": 0, "b": 1}
    assert raised(Phase.STEP, {"a": 2}, 5, 9, four) == {"a": 2}
    turn, stage = turn_of(back, pair(1, 3), record={"needed": 1}, desired={"b": 6})
    assert carrying_capacity.raise_for_rollback(turn, stage, {}, 9) == {"a": 1, "b": 6}


def test_pods_without_traffic_go_when_every_gateway_has_the_new_weights() -> None:
    turn, _ = turn_of(Phase.STEP, (*pair(2), reading("z", 3), RevisionReading("y", None)))

    def after(seconds: float | None, clock: float = 0.0) -> draining.Draining:
        records = () if seconds is None else tuple(DrainRecord(name, NOW - seconds) for name in ("z", "y"))
        status = replace(turn.observation.status, draining=records)
        observed = replace(turn.observation, status=status)
        return draining.decide(replace(turn, observation=observed, now=NOW + clock), {"a": 2, "b": 0})

    first = after(None)
    assert first == draining.Draining({"y": 0, "z": 3}, (DrainRecord("y", NOW), DrainRecord("z", NOW)), ())
    assert after(4.9).delete == ()
    assert after(4.9).replicas == {"y": 0, "z": 3}
    due = after(5.0)
    assert (due.delete, due.replicas) == (("y", "z"), {})
    assert due.records == (DrainRecord("y", NOW - 5.0), DrainRecord("z", NOW - 5.0))
    back = after(-30.0)
    assert back.records == (DrainRecord("y", NOW), DrainRecord("z", NOW)), "a time in the future is now"
    assert back.delete == ()
