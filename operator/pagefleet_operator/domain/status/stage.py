"""Where a rollout stands between two decisions, and the few moves that every part of the automaton makes on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pagefleet_operator.domain.status.observation import RevisionReading
from pagefleet_operator.domain.status.status import (
    ActionRecord,
    BaselineRecord,
    MirrorRecord,
    Phase,
    PreviousRecord,
    Rejection,
    RolloutRecord,
    Status,
    Weight,
)

MOST_REJECTIONS = 10
LONGEST_TICK = 60.0  # seconds between two decisions beyond which the clock has jumped, or nobody was watching
FOLD_SECONDS = 10.0  # held time is written at most this often


@dataclass(frozen=True)
class Stage:
    """Where the rollout stands after a decision. `canary` is "" when there is none; while rolling back it is the
    revision that is given up, and `stable` already the one that gets everything."""

    stable: str
    canary: str
    traffic: tuple[Weight, ...]
    record: RolloutRecord
    rejected: tuple[Rejection, ...]
    mirror: MirrorRecord | None = None
    action: ActionRecord | None = None
    previous: PreviousRecord | None = None
    baseline: tuple[BaselineRecord, ...] = ()

    @property
    def rejects(self) -> frozenset[str]:
        return frozenset(rejection.hash for rejection in self.rejected)

    def weight(self, revision: str) -> int:
        return sum(entry.weight for entry in self.traffic if entry.revision == revision)


def stage_of(status: Status) -> Stage:
    return Stage(
        stable=status.stable,
        canary=status.canary,
        traffic=status.traffic,
        record=status.rollout,
        rejected=status.rejected,
        mirror=status.mirror,
        action=status.action,
        previous=status.previous,
        baseline=status.baseline,
    )


def reading(revisions: Mapping[str, RevisionReading], name: str) -> RevisionReading:
    return revisions.get(name) or RevisionReading(name, None)


def everything(revision: str) -> tuple[Weight, ...]:
    return (Weight(revision, 100),)


def split(stable: str, canary: str, weight: int) -> tuple[Weight, ...]:
    """Weights with `weight` percent on the canary."""
    return (Weight(stable, 100 - weight), Weight(canary, weight)) if weight < 100 else everything(canary)


def begun(record: RolloutRecord, phase: Phase, now: float) -> RolloutRecord:
    """The record at the start of a phase or step: its timer is at zero."""
    return replace(record, phase=phase, since=now, held=0.0, ticked=now, requests=0, paused="")


def held(record: RolloutRecord, now: float) -> float:
    """Seconds that this phase has been watched. A jump of the clock, or a time without an operator, adds nothing."""
    return record.held + _tick(record, now)


def ticked(record: RolloutRecord, now: float) -> RolloutRecord:
    """The record with its timer brought forward, and times that lie in the future (the clock went back) made now."""
    since = record.traffic_since
    if since is not None and since > now + LONGEST_TICK:
        record = replace(record, traffic_since=now)
    passed = now - record.ticked
    if not 0 <= passed <= LONGEST_TICK:
        return replace(record, ticked=now, low_since=None if record.low_since is None else now)
    if passed < FOLD_SECONDS:
        return record
    return replace(record, held=held(record, now), ticked=now)


def _tick(record: RolloutRecord, now: float) -> float:
    passed = now - record.ticked
    return passed if 0 <= passed <= LONGEST_TICK else 0.0
