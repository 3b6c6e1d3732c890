"""The conditions people and `kubectl wait` look at. lastTransitionTime moves if and only if the status does."""

from __future__ import annotations

from pagefleet_operator.domain.status.condition import FALSE, TRUE, UNKNOWN, Problem, Stated, dated
from pagefleet_operator.domain.status.observation import Observation, PodFault
from pagefleet_operator.domain.status.stage import Stage, reading_of
from pagefleet_operator.domain.status.status import Condition, Phase


def problem_of(stage: Stage, seen: Observation) -> Problem | None:
    """The first fault of a pod of the revisions in use, naming the field of the spec to mend."""
    for revision in (stage.canary, stage.stable):
        for pod in reading_of(seen.revisions, revision).pods if revision else ():
            if pod.fault is not None and not pod.ready and not pod.terminating:
                return Problem(pod.fault.reason, f"revision {revision}: {named(pod.fault)}")
    return None


def named(fault: PodFault) -> str:
    return f"{fault.field}: {fault.message}" if fault.field else fault.message


def state(
    stage: Stage,
    seen: Observation,
    replicas: dict[str, int],
    invalid: Problem | None,
    problem: Problem | None,
    now: float,
    limit: tuple[str, str] | None = None,
) -> tuple[Condition, ...]:
    """All conditions, in the order they are shown."""
    stated = [
        _ready(stage, seen, replicas, invalid, problem),
        _progressing(stage, invalid),
        _analysed(stage),
        _rolled_back(stage),
        _scaling(seen, replicas, limit),
        _degraded(invalid, problem),
    ]
    before = {condition.type: condition for condition in seen.status.conditions}
    return tuple(dated(entry, before.get(entry[0]), seen.generation, now) for entry in stated)


def _ready(
    stage: Stage, seen: Observation, replicas: dict[str, int], invalid: Problem | None, problem: Problem | None
) -> Stated:
    ready = reading_of(seen.revisions, stage.stable).ready
    if stage.traffic and replicas.get(stage.stable) == 0:
        return ("Ready", TRUE, "Idle", f"revision {stage.stable} is scaled to zero; the next request wakes it")
    if stage.traffic and ready:
        return ("Ready", TRUE, "Serving", f"revision {stage.stable} serves with {ready} ready replicas")
    cause = invalid or problem
    if cause is not None:
        return ("Ready", FALSE, cause.reason, cause.message)
    return ("Ready", FALSE, "Starting" if not stage.traffic else "NoReadyReplicas", "no replica is ready")


def _progressing(stage: Stage, invalid: Problem | None) -> Stated:
    if invalid is not None:
        return ("Progressing", FALSE, invalid.reason, invalid.message)
    phase, paused = stage.record.phase, stage.record.paused
    if phase is Phase.ROLLING_BACK:
        message = f"revision {stage.canary} is being rolled back to {stage.stable}"
        return ("Progressing", TRUE, phase.value, message)
    if stage.canary:
        held = f"; it is held by {paused}" if paused else ""
        reason = "Paused" if paused else phase.value
        return ("Progressing", TRUE, reason, f"revision {stage.canary} is being rolled out{held}")
    if phase is Phase.WATCHING:
        return ("Progressing", TRUE, phase.value, f"revision {stage.stable} is promoted and still watched")
    if not stage.traffic:
        return ("Progressing", TRUE, "Starting", f"revision {stage.stable} is starting")
    if phase is Phase.ROLLED_BACK:
        return (
            "Progressing",
            FALSE,
            "Rejected",
            "the spec's revision was rolled back and is not tried again",
        )
    return ("Progressing", FALSE, "Idle", "nothing is being rolled out")


def _analysed(stage: Stage) -> Stated:
    verdict = stage.record.verdict
    if verdict is None:
        return ("Analysed", UNKNOWN, "NoVerdict", "no canary has been judged")
    status = {"Passed": TRUE, "Regressed": FALSE}.get(verdict.outcome, UNKNOWN)
    return ("Analysed", status, verdict.outcome or "NoVerdict", verdict.message)


def _rolled_back(stage: Stage) -> Stated:
    if stage.record.phase in (Phase.ROLLED_BACK, Phase.ROLLING_BACK) and stage.rejected:
        last = stage.rejected[-1]
        return ("RolledBack", TRUE, last.reason, f"revision {last.hash}: {last.message}")
    return ("RolledBack", FALSE, "NotRolledBack", "the last rollout was not rolled back")


def _scaling(seen: Observation, replicas: dict[str, int], limit: tuple[str, str] | None) -> Stated:
    """`limit` (reason, message): why there are not the replicas that the load asks for."""
    moving = [
        f"{name}: {reading_of(seen.revisions, name).own_ready} of {count} ready"
        for name, count in replicas.items()
        if reading_of(seen.revisions, name).own_ready != count
    ]
    status = TRUE if moving else FALSE
    if limit is not None:
        return ("Scaling", status, limit[0], "; ".join([limit[1], *moving]))
    if moving:
        return ("Scaling", TRUE, "ReplicasChanging", ", ".join(moving))
    if replicas and not any(replicas.values()):
        return ("Scaling", FALSE, "Idle", "scaled to zero")
    return ("Scaling", FALSE, "Stable", "every revision has the replicas it should have")


def _degraded(invalid: Problem | None, problem: Problem | None) -> Stated:
    cause = invalid or problem
    if cause is None:
        return ("Degraded", FALSE, "AsExpected", "nothing is wrong")
    return ("Degraded", TRUE, cause.reason, cause.message)
