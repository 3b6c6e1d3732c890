"""What a service takes over from its records. Pure.

A record that was written for this InferenceService is a copy of its status, and is not read. Records are read when they were
written for another uid (the service was deleted and applied again, or restored into this or another cluster), and when the
status is empty. They may come before the service, after it, or while its first revision starts, and change what is going on.
Records that come more than an hour after the service was created change nothing: an old export that is applied again must
not roll anything back. A status that was restored too is older than its object, and counts more than the records.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.records.manifest import PREVIOUS, STABLE
from pagefleet_operator.domain.spec.policy import refusals
from pagefleet_operator.domain.status.condition import Problem
from pagefleet_operator.domain.status.observation import Observation, RecordReading
from pagefleet_operator.domain.status.stage import MAX_REJECTIONS, all_traffic_to, begin_phase
from pagefleet_operator.domain.status.status import Phase, PreviousRecord, RevisionRecord, RolloutRecord, Status
from pagefleet_operator.domain.status.stored import snapshot_of
from pagefleet_operator.domain.status.turn import Journal, SpecTurn

GRACE_SECONDS = 2.0  # a service that has just been created waits so long for records that are applied after it
LATE_SECONDS = 3600.0  # after the creation of a service that has a status: later records are written over, and not read
SKEW_SECONDS = 60.0  # by which the clocks of API server and operator may differ


def pause(observation: Observation, now: float) -> float:
    """Seconds that a new service without records still waits for them; 0 when it does not."""
    if observation.records or observation.status != Status() or not observation.created:
        return 0.0
    age = now - observation.created
    return GRACE_SECONDS - age if 0 <= age < GRACE_SECONDS else 0.0


def restored(observation: Observation, now: float, journal: Journal) -> Observation:
    """The observation with the status that follows from the records, where they are read; else the same."""
    status = observation.status
    read = [one for one in observation.records if one.uid != observation.uid or not status.stable]
    over = bool(status.stable) and now - observation.created > LATE_SECONDS
    if not read or over or _is_older_than_its_object(observation):
        return observation
    refused = [one for one in read if not is_usable(observation, one)]
    for one in refused:
        text = f"the spec in the record of revision {one.revision} cannot be used, or what it names is not allowed here"
        if text not in {entry.message for entry in status.decisions}:
            journal.note("RecordRefused", text, warning=True)
    usable = [replace(one, spec={}) if one in refused else one for one in read]
    return replace(observation, status=_changed_course(observation, _remembering(status, usable), usable, now, journal))


def is_usable(observation: Observation, record: RecordReading) -> bool:
    """Whether a record has no spec, or one that pods can be built from and whose names the operator's policy allows.

    Whoever may write ControllerRevisions could have written it: it has passed no validation of the API server.
    """
    return not record.spec or (bool(snapshot_of(record.spec)) and not refusals(observation.policy, record.spec))


def problem(turn: SpecTurn, retried: bool) -> Problem | None:
    """Why nothing may be started: the exported records are not all there, or the spec's revision was rejected and no record has
    a stable one. `retried`: a person asks to try it again."""
    observation, status = turn.observation, turn.observation.status
    count = len(observation.records)
    if status.stable:
        return None
    if count < observation.announced_records:
        return Problem(
            "AwaitingRecords",
            f"{count} of the {observation.announced_records} records that were exported with this service are here "
            "(annotation pagefleet.io/records): apply the others, or remove the annotation to start without them",
        )
    rejection = next((one for one in status.rejected if one.hash == turn.target), None)
    if rejection is None or retried:
        return None
    return Problem(
        "NoStableRevision",
        f"revision {turn.target} was rejected ({rejection.reason}: {rejection.message}), and no record has a stable "
        f"revision: apply that record or another spec, or `{turn.command('retry')}`",
    )


def _remembering(status: Status, records: Iterable[RecordReading]) -> Status:
    """The status with the rejections and the history of the records beside its own."""
    rejected = {one.hash for one in status.rejected}
    rejections = [one.rejection for one in records if one.rejection is not None and one.revision not in rejected]
    known = {one.hash for one in status.revisions}
    revisions = [
        RevisionRecord(one.revision, one.created, one.spec) for one in records if one.spec and one.revision not in known
    ]
    return replace(
        status,
        rejected=tuple(sorted((*status.rejected, *rejections), key=lambda one: one.time))[-MAX_REJECTIONS:],
        revisions=tuple(sorted((*status.revisions, *revisions), key=lambda one: one.created)),
    )


def _changed_course(
    observation: Observation, status: Status, records: list[RecordReading], now: float, journal: Journal
) -> Status:
    """Go back to the recorded stable revision, unless another one that was never rejected serves already."""
    rejected = {one.hash: one for one in status.rejected}
    stable = _with_role(records, STABLE, rejected)
    previous = _with_role(records, PREVIOUS, rejected)
    if previous is not None and status.previous is None:
        status = replace(status, previous=PreviousRecord(previous.revision, previous.since))
    bad = rejected.get(status.stable)
    if status.traffic and (bad is None or stable is None or status.rollout.phase is Phase.ROLLING_BACK):
        return status
    if stable is None:  # the rejected revision that was just started must not serve
        return replace(status, stable="") if bad is not None else status
    if stable.revision == status.stable:
        return status
    _note(journal, stable, status)
    if not status.traffic:
        record = replace(begin_phase(RolloutRecord(Phase.RESTORING), Phase.RESTORING, now), started=now)
        return _with_replica(replace(status, stable=stable.revision, canary="", rollout=record), stable.revision)
    serving = observation.revisions.get(status.stable)
    record = begin_phase(RolloutRecord(Phase.ROLLING_BACK), Phase.ROLLING_BACK, now)
    return replace(
        status,
        stable=stable.revision,
        canary=status.stable,
        traffic=all_traffic_to(status.stable),
        rollout=replace(record, needed=max(1, serving.ready if serving else 1)),
        mirror=None,
    )


def _is_older_than_its_object(observation: Observation) -> bool:
    """Whether the status was restored with the object: what it reports happened before the object was created."""
    latest = observation.created - SKEW_SECONDS
    return any(0 < one.last_transition_time < latest for one in observation.status.conditions)


def _with_role(records: Iterable[RecordReading], role: str, rejected: Container[str]) -> RecordReading | None:
    """The latest record of a role that can be started and was not rejected."""
    usable = [one for one in records if one.role == role and one.spec and one.revision not in rejected]
    return max(usable, key=lambda one: one.created, default=None)


def _with_replica(status: Status, revision: str) -> Status:
    """Return the status with one replica of the revision, from which the scaler continues."""
    return replace(
        status, revisions=tuple(replace(one, desired=1) if one.hash == revision else one for one in status.revisions)
    )


def _note(journal: Journal, stable: RecordReading, status: Status) -> None:
    rejections = ", ".join(f"{one.hash} ({one.reason})" for one in status.rejected)
    tried = f"; rejected and not tried again: {rejections}" if rejections else ""
    journal.note(
        "Restored",
        f"revision {stable.revision} is made stable again: its record has it as the stable one{tried}. To start without "
        "what was recorded, delete the ControllerRevisions of the service before the service is applied",
    )
