"""The conditions that people and `kubectl wait` look at. lastTransitionTime changes if and only if the status does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pagefleet_contract.names import REVISION_LABEL
from pagefleet_operator.domain import model_fetch
from pagefleet_operator.domain.analysis.watching import load_records
from pagefleet_operator.domain.cost import report as cost_report
from pagefleet_operator.domain.slo import report as slo_report
from pagefleet_operator.domain.status.codec import time_to_the_second
from pagefleet_operator.domain.status.condition import (
    FALSE,
    REFUSED,
    TRUE,
    UNKNOWN,
    NewCondition,
    Problem,
    with_transition_time,
)
from pagefleet_operator.domain.status.observation import PodFault
from pagefleet_operator.domain.status.records.slo import SLORecord
from pagefleet_operator.domain.status.records.spending import SpendingRecord
from pagefleet_operator.domain.status.stage import Stage, watched_seconds
from pagefleet_operator.domain.status.status import Condition, Phase, Rejection
from pagefleet_operator.domain.status.turn import SpecTurn, Turn


@dataclass(frozen=True)
class Report:
    """The decisions that the conditions report.

    `limit` (reason, message) is why the load's replicas are not there. `older` (revision, field) is the stable revision
    when it runs with the defaults of an earlier operator, and a field that differs. `prefill` are the prefill pods of each
    revision in use.
    """

    stage: Stage
    replicas: Mapping[str, int]
    invalid: Problem | None
    problem: Problem | None
    limit: tuple[str, str] | None = None
    older: tuple[str, str] | None = None
    slo: SLORecord | None = None
    spending: SpendingRecord | None = None
    capacity: Sequence[NewCondition] = ()  # of the capacity plan
    prefill: Mapping[str, int] = field(default_factory=dict)

    @property
    def cause(self) -> Problem | None:
        """The problem that comes first: a spec that cannot be used, then a revision that cannot run."""
        return self.invalid or self.problem


def problem_of(turn: Turn, stage: Stage) -> Problem | None:
    """The first fault of a pod of the revisions in use, with the field of the spec to fix."""
    for revision in filter(None, (stage.canary, stage.stable)):
        reading = turn.reading(revision)
        for pod in (*reading.pods, *reading.prefill):
            if pod.fault is not None and not pod.ready and not pod.terminating:
                kind = "prefill pods: " if pod in reading.prefill else ""
                return Problem(pod.fault.reason, f"revision {revision}: {kind}{describe_fault(pod.fault)}")
        if reading.prefill_refused:
            message = f"revision {revision}: prefill pods: {reading.prefill_refused}"
            return Problem("PrefillPodsRefused", message)
    return None


def with_refusals(turn: Turn, problem: Problem | None) -> Problem | None:
    """The problem, and behind it the children that the API server refuses, whose Events are written where they are applied.

    An operator that has applied none yet leaves a stored refusal as it is.
    """
    known = turn.observation.refused
    stored = (one for one in turn.observation.status.conditions if one.type == "Degraded" and one.reason == REFUSED)
    refused = [one.message for one in stored] if known is None else [*known.values()]
    messages = [problem.message, *refused] if problem else refused
    return Problem(problem.reason if problem else REFUSED, "; ".join(messages)) if messages else None


def describe_fault(fault: PodFault) -> str:
    """The fault after the field of the spec to fix, where that is known."""
    return f"{fault.field}: {fault.message}" if fault.field else fault.message


def state(turn: Turn, report: Report) -> tuple[Condition, ...]:
    """All conditions, in the order in which they are shown."""
    conditions = [
        _ready(turn, report),
        _progressing(turn, report),
        _analysed(report.stage),
        _rolled_back(turn, report.stage),
        _regressed(turn, report.stage),
        _guarded(turn, report),
        _scaling(turn, report),
        _degraded(report),
        *_fetched(turn, report.stage),
        *slo_report.conditions(report.slo),
        *cost_report.conditions(report.spending),
        *report.capacity,
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
    if record.phase is Phase.WATCHING and _is_judged(turn, stage):
        return ("Progressing", TRUE, record.phase.value, f"revision {stage.stable} is promoted and still watched")
    if record.phase is Phase.RESTORING:
        message = f"revision {stage.stable} is starting again: its record has it as the stable one"
        return ("Progressing", TRUE, record.phase.value, message)
    if not stage.traffic:
        return ("Progressing", TRUE, "Starting", f"revision {stage.stable} is starting")
    if record.phase is Phase.ROLLED_BACK:
        return ("Progressing", FALSE, "Rejected", _rejection(turn, stage))
    return ("Progressing", FALSE, "Idle", f"nothing is being rolled out: revision {stage.stable} gets all traffic")


def _is_judged(turn: Turn, stage: Stage) -> bool:
    """Whether the time of spec.rollout.afterPromotion.watch is not over."""
    return not isinstance(turn, SpecTurn) or watched_seconds(stage.record, turn.now) < turn.rollout.watch


def _last_rejection(turn: Turn, stage: Stage) -> Rejection | None:
    """The rejection of the spec's revision, else the latest one."""
    target = turn.target if isinstance(turn, SpecTurn) else ""
    rejections = [one for one in stage.rejected if one.hash == target] or list(stage.rejected)
    return rejections[-1] if rejections else None


def _rejection(turn: Turn, stage: Stage) -> str:
    """The last rejection: the revision's hash, the reason, the time, and the way to try it again."""
    last = _last_rejection(turn, stage)
    if last is None:
        return "the spec's revision was rolled back and is not tried again until the spec changes"
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


def _rolled_back(turn: Turn, stage: Stage) -> NewCondition:
    last = _last_rejection(turn, stage)
    if stage.record.phase in (Phase.ROLLED_BACK, Phase.ROLLING_BACK) and last is not None:
        return ("RolledBack", TRUE, last.reason, f"revision {last.hash}: {last.message}")
    return ("RolledBack", FALSE, "NotRolledBack", "the last rollout was not rolled back")


def _guarded(turn: Turn, report: Report) -> NewCondition:
    """Whether a new revision is judged before it gets all traffic. A spec has to ask for it not to be."""
    if not isinstance(turn, SpecTurn):
        reason, message = (report.invalid.reason, report.invalid.message) if report.invalid else ("InvalidSpec", "")
        return ("Guarded", UNKNOWN, reason, message)
    rollout = turn.rollout
    if rollout.guard.empty:
        others = "alerts and people roll" if rollout.alert_labels is not None else "only people roll"
        message = (
            f"spec.rollout.guard judges nothing: {others} a new revision back; remove the field for the default guard"
        )
        return ("Guarded", FALSE, "NoGuard", message)
    if not rollout.measured:
        message = (
            "spec.rollout.steps has no step that brings a new revision a part of the requests: it takes all traffic "
            "unjudged; remove the field for the default steps"
        )
        return ("Guarded", FALSE, "NoSteps", message)
    return ("Guarded", TRUE, "Guarded", "a new revision is judged in its steps before it gets all traffic")


def _regressed(turn: Turn, stage: Stage) -> NewCondition:
    if isinstance(turn, SpecTurn) and turn.rollout.watch_limits is None:
        return ("Regressed", FALSE, "NotWatched", "spec.rollout.watch is {}: the stable revision is not watched")
    if stage.watch is not None and stage.watch.regressed:
        return ("Regressed", TRUE, "LatencyRegression", stage.watch.message)
    if not any(load_records.is_load_record(record) for record in stage.baseline):
        message = (
            "no times are recorded by load yet: the gateways have reported none to first token, and none of whole answers "
            "without output tokens"
        )
        return ("Regressed", UNKNOWN, "NoRecord", message)
    return ("Regressed", FALSE, "AsRecorded", "the stable revision is as quick as recorded at the same load")


def _scaling(turn: Turn, report: Report) -> NewCondition:
    ready = {name: turn.reading(name).own_ready for name in report.replicas}
    moving = [
        f"{name}: {ready[name]} of {count} ready" for name, count in report.replicas.items() if ready[name] != count
    ]
    moving += [
        f"{name}: {turn.reading(name).prefill_ready} of {count} prefill pods ready"
        for name, count in report.prefill.items()
        if turn.reading(name).prefill_ready != count
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


def _fetched(turn: Turn, stage: Stage) -> list[NewCondition]:
    """Only of a service whose model is fetched, or was."""
    read = [turn.reading(name) for name in (stage.canary, stage.stable) if name]
    pods = [(one.hash, pod) for one in read for pod in (*one.pods, *one.prefill)]
    return model_fetch.condition(pods, model_fetch.of_type(turn.observation.status.conditions))


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
