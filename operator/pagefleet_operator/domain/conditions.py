"""The conditions that people and `kubectl wait` look at. lastTransitionTime changes if and only if the status does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_contract.names import REVISION_LABEL
from pagefleet_operator.domain.status.codec import time_to_the_second
from pagefleet_operator.domain.status.condition import FALSE, TRUE, UNKNOWN, NewCondition, Problem, with_transition_time
from pagefleet_operator.domain.status.observation import PodFault
from pagefleet_operator.domain.status.stage import Stage
from pagefleet_operator.domain.status.status import Condition, Phase
from pagefleet_operator.domain.status.turn import SpecTurn, Turn


@dataclass(frozen=True)
class Report:
    """The decisions that the conditions report.

    `limit` (reason, message) is why the load's replicas are not there. `older` (revision, field) is the stable revision
    when it runs with the defaults of an earlier operator, and a field that differs.
    """

    stage: Stage
    replicas: Mapping[str, int]
    invalid: Problem | None
    problem: Problem | None
    limit: tuple[str, str] | None = None
    older: tuple[str, str] | None = None

    @property
    def cause(self) -> Problem | None:
        """The problem that comes first: a spec that cannot be used, then a revision that cannot run."""
        return self.invalid or self.problem


def problem_of(turn: Turn, stage: Stage) -> Problem | None:
    """The first fault of a pod of the revisions in use, with the field of the spec to fix."""
    for revision in (stage.canary, stage.stable):
        for pod in turn.reading(revision).pods if revision else ():
            if pod.fault is not None and not pod.ready and not pod.terminating:
                return Problem(pod.fault.reason, f"revision {revision}: {describe_fault(pod.fault)}")
    return None


def describe_fault(fault: PodFault) -> str:
    """The fault after the field of the spec to fix, where that is known."""
    return f"{fault.field}: {fault.message}" if fault.field else fault.message


def state(turn: Turn, report: Report) -> tuple[Condition, ...]:
    """All conditions, in the order in which they are shown."""
    conditions = [
        _ready(turn, report),
        _progressing(turn, report),
        _analysed(report.stage),
        _rolled_back(report.stage),
        _scaling(turn, report),
        _degraded(report),
        *_defaults(report),
    ]
    observation = turn.observation
    before = {condition.type: condition for condition in observation.status.conditions}
    return tuple(
        with_transition_time(entry, before.get(entry[0]), observation.generation, turn.now) for entry in conditions
    )


def _ready(turn: Turn, report: Report) -> NewCondition:
    stage, reading = report.stage, turn.reading(report.stage.stable)
    if stage.traffic and report.replicas.get(stage.stable) == 0:
        return ("Ready", TRUE, "Idle", f"revision {stage.stable} is scaled to zero; the next request wakes it")
    if stage.traffic and reading.ready:
        return ("Ready", TRUE, "Serving", f"revision {stage.stable} serves with {reading.ready} ready replicas")
    if report.cause is not None:
        return ("Ready", FALSE, report.cause.reason, report.cause.message)
    reason = "NoReadyReplicas" if stage.traffic else "Starting"
    replicas = f"revision {stage.stable}: 0 of {report.replicas.get(stage.stable, 0)} replicas are ready"
    since = time_to_the_second(_not_ready_since(turn))
    return ("Ready", FALSE, reason, f"{replicas} since {since}; look at `{_pods_command(turn, stage.stable)}`")


def _not_ready_since(turn: Turn) -> float:
    """The time since which Ready is not True: as long as it stays so, the message must not change."""
    before = next((one for one in turn.observation.status.conditions if one.type == "Ready"), None)
    return before.last_transition_time if before is not None and before.status == FALSE else turn.now


def _pods_command(turn: Turn, revision: str) -> str:
    return f"kubectl get pods -n {turn.observation.namespace} -l {REVISION_LABEL}={revision}"


def _progressing(turn: Turn, report: Report) -> NewCondition:
    stage, record = report.stage, report.stage.record
    if report.invalid is not None:
        return ("Progressing", FALSE, report.invalid.reason, report.invalid.message)
    if record.phase is Phase.ROLLING_BACK:
        message = f"revision {stage.canary} is being rolled back to {stage.stable}"
        return ("Progressing", TRUE, record.phase.value, message)
    if stage.canary:
        pause = f"; it is paused by {record.paused}" if record.paused else ""
        reason = "Paused" if record.paused else record.phase.value
        return ("Progressing", TRUE, reason, f"revision {stage.canary} is being rolled out{pause}")
    if record.phase is Phase.WATCHING:
        return ("Progressing", TRUE, record.phase.value, f"revision {stage.stable} is promoted and still watched")
    if not stage.traffic:
        return ("Progressing", TRUE, "Starting", f"revision {stage.stable} is starting")
    if record.phase is Phase.ROLLED_BACK:
        return ("Progressing", FALSE, "Rejected", _rejection(turn, stage))
    return ("Progressing", FALSE, "Idle", f"nothing is being rolled out: revision {stage.stable} gets all traffic")


def _rejection(turn: Turn, stage: Stage) -> str:
    """The rejection of the spec's revision: its hash, the reason, the time, and the way to try it again."""
    target = turn.target if isinstance(turn, SpecTurn) else ""
    rejections = [one for one in stage.rejected if one.hash == target] or list(stage.rejected)
    if not rejections:
        return "the spec's revision was rolled back and is not tried again until the spec changes"
    last = rejections[-1]
    return (
        f"revision {last.hash} was rolled back at {time_to_the_second(last.time)} ({last.reason}: {last.message}); "
        f"it is not tried again until the spec changes or `{turn.command('retry')}`"
    )


def _analysed(stage: Stage) -> NewCondition:
    verdict = stage.record.verdict
    if verdict is None:
        return ("Analysed", UNKNOWN, "NoVerdict", "no canary has been judged")
    status = {"Passed": TRUE, "Regressed": FALSE}.get(verdict.outcome, UNKNOWN)
    return ("Analysed", status, verdict.outcome or "NoVerdict", verdict.message)


def _rolled_back(stage: Stage) -> NewCondition:
    if stage.record.phase in (Phase.ROLLED_BACK, Phase.ROLLING_BACK) and stage.rejected:
        last = stage.rejected[-1]
        return ("RolledBack", TRUE, last.reason, f"revision {last.hash}: {last.message}")
    return ("RolledBack", FALSE, "NotRolledBack", "the last rollout was not rolled back")


def _scaling(turn: Turn, report: Report) -> NewCondition:
    ready = {name: turn.reading(name).own_ready for name in report.replicas}
    moving = [
        f"{name}: {ready[name]} of {count} ready" for name, count in report.replicas.items() if ready[name] != count
    ]
    status = TRUE if moving else FALSE
    if report.limit is not None:
        reason, message = report.limit
        return ("Scaling", status, reason, "; ".join([message, *moving]))
    if moving:
        return ("Scaling", TRUE, "ReplicasChanging", ", ".join(moving))
    if report.replicas and not any(report.replicas.values()):
        return ("Scaling", FALSE, "Idle", "scaled to zero")
    return ("Scaling", FALSE, "Stable", "every revision has the replicas it should have")


def _defaults(report: Report) -> list[NewCondition]:
    """Only where it applies: an operator's new defaults reach a service with its next revision."""
    if report.older is None:
        return []
    revision, field = report.older
    message = (
        f"revision {revision} keeps the defaults of the operator that made it ({field}); to roll the present ones out as "
        "a canary, change spec.engine.refresh"
    )
    return [("DefaultsCurrent", FALSE, "OlderDefaults", message)]


def _degraded(report: Report) -> NewCondition:
    if report.cause is None:
        return ("Degraded", FALSE, "AsExpected", "nothing is wrong")
    return ("Degraded", TRUE, report.cause.reason, report.cause.message)
