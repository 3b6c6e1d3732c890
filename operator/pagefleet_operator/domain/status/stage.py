"""Where a rollout stands between two decisions, and the few changes that every part of the state machine makes to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_operator.domain.base.frozen import replace
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
    WatchRecord,
    Weight,
)

MAX_REJECTIONS = 10
MAX_TICK_SECONDS = 60.0  # a longer time between two decisions means a jump of the clock, or that no operator ran
TIMER_WRITE_SECONDS = 10.0  # the watched time is written at most this often


@dataclass(frozen=True)
class Stage:
    """Where the rollout stands after a decision.

    `canary` is "" when there is none. During a rollback `canary` is the revision that is given up, and `stable` is
    already the revision that gets all traffic in the end.
    """

    stable: str
    canary: str
    traffic: tuple[Weight, ...]
    record: RolloutRecord
    rejected: tuple[Rejection, ...]
    mirror: MirrorRecord | None = None
    action: ActionRecord | None = None
    previous: PreviousRecord | None = None
    baseline: tuple[BaselineRecord, ...] = ()
    watch: WatchRecord | None = None

    @property
    def rejected_hashes(self) -> frozenset[str]:
        """The revisions that are not tried again."""
        return frozenset(rejection.hash for rejection in self.rejected)

    def weight(self, revision: str) -> int:
        """The percentage of requests that a revision gets."""
        return sum(entry.weight for entry in self.traffic if entry.revision == revision)


def stage_of(status: Status) -> Stage:
    """The stage that the last decision stored."""
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
        watch=status.watch,
    )


def reading_of(revisions: Mapping[str, RevisionReading], name: str) -> RevisionReading:
    """The reading of a revision; an empty one for a revision without a workload."""
    return revisions.get(name) or RevisionReading(name, None)


def all_traffic_to(revision: str) -> tuple[Weight, ...]:
    """Weights with 100 percent on one revision."""
    return (Weight(revision, 100),)


def split_traffic(stable: str, canary: str, weight: int) -> tuple[Weight, ...]:
    """Weights with `weight` percent on the canary."""
    return (Weight(stable, 100 - weight), Weight(canary, weight)) if weight < 100 else all_traffic_to(canary)


def begin_phase(record: RolloutRecord, phase: Phase, now: float) -> RolloutRecord:
    """Set the record to the start of a phase or step, with its timer at zero."""
    return replace(record, phase=phase, since=now, held=0.0, ticked=now, requests=0, paused="")


def watched_seconds(record: RolloutRecord, now: float) -> float:
    """Count the seconds of this phase that an operator watched. A jump of the clock adds nothing."""
    return record.held + _tick_seconds(record, now)


def begun_before(record: RolloutRecord, now: float) -> RolloutRecord:
    """The record with beginnings that have passed, also after the clock was set back: alerts and requests count from then on.

    The Job of a load test is named by the beginning of its phase, which stays.
    """
    latest, traffic = now + MAX_TICK_SECONDS, record.traffic_since
    if record.started > latest:
        record = replace(record, started=now - MAX_TICK_SECONDS)
    if traffic is not None and traffic > latest:
        record = replace(record, traffic_since=now)
    if record.since > latest and record.phase is not Phase.LOAD_TEST:
        record = replace(record, since=now)
    return record


def advance_timer(record: RolloutRecord, now: float) -> RolloutRecord:
    """Bring the phase's timer forward. A time that lies in the future (the clock was set back) becomes `now`."""
    passed = now - record.ticked
    if not 0 <= passed <= MAX_TICK_SECONDS:
        return replace(record, ticked=now, low_since=None if record.low_since is None else now)
    if passed < TIMER_WRITE_SECONDS:
        return record
    return replace(record, held=watched_seconds(record, now), ticked=now)


def _tick_seconds(record: RolloutRecord, now: float) -> float:
    passed = now - record.ticked
    return passed if 0 <= passed <= MAX_TICK_SECONDS else 0.0
