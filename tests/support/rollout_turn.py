"""One turn of a rollout as a value: revision b is the canary of revision a, with the pods and records that a test names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.rule_examples import spec

from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.status.observation import Observation, PodFault, PodReading, RevisionReading
from pagefleet_operator.domain.status.stage import Stage, stage_of
from pagefleet_operator.domain.status.status import Phase, RevisionRecord, RolloutRecord, Status, Weight
from pagefleet_operator.domain.status.turn import Journal, SpecTurn

NOW = 1_000_000.0


def pods(ready: int, waiting: int = 0, fault: PodFault | None = None) -> tuple[PodReading, ...]:
    """Pods of a revision; those that are not ready have the fault."""
    return tuple(
        PodReading(
            f"p{index}",
            ready=index < ready,
            terminating=False,
            created=NOW - 60,
            ready_since=NOW - 30 if index < ready else None,
            fault=None if index < ready else fault,
        )
        for index in range(ready + waiting)
    )


def reading(name: str, ready: int, waiting: int = 0, fault: str = "") -> RevisionReading:
    """A revision whose pods that are not ready wait for the reason `fault`, if there is one."""
    return RevisionReading(name, ready + waiting, pods(ready, waiting, PodFault("Waiting", fault) if fault else None))


def turn_of(
    phase: Phase,
    readings: tuple[RevisionReading, ...],
    *,
    desired: Mapping[str, int] | None = None,
    rollout: Mapping[str, Any] | None = None,
    record: Mapping[str, Any] | None = None,
    **status: Any,
) -> tuple[SpecTurn, Stage]:
    """A turn in which b is the target and has a tenth of the traffic. `desired` are stored replicas, `record` and `status` are
    fields of `.status.rollout` and of `.status`."""
    times = {"since": NOW, "started": NOW, "ticked": NOW}
    given = {"stable": "a", "canary": "b", "traffic": (Weight("a", 90), Weight("b", 10)), **status}
    stored = Status(
        rollout=RolloutRecord(phase, **{**times, **(record or {})}),
        revisions=tuple(
            RevisionRecord(name, NOW - 100 + place, {"model": {}}, desired=(desired or {}).get(name, 0))
            for place, name in enumerate(("z", "a", "b"))
        ),
        **given,
    )
    parsed = parse(spec({"rollout": dict(rollout or {"steps": [{"weight": 50, "hold": "10s"}]})}))
    assert isinstance(parsed, Spec)
    revisions = {one.hash: one for one in readings}
    observation = Observation("team-a", "chat", "uid", 1, {}, stored, revisions)
    return SpecTurn(observation, NOW, Journal(NOW), parsed, "b"), stage_of(stored)
