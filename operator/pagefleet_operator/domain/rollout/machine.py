"""The rollout's state machine: which revision is stable, which is the canary, and how traffic is split between them.

`advance` takes one turn of it: it asks the policies in POLICIES one after the other, and the first one that applies
decides. Weight moves to a revision only when it has the ready pods for it. The stable keeps its replicas until the
canary is promoted. A rejected revision is not tried again until the spec names another one or a person retries it.
"""

from __future__ import annotations

from collections.abc import Callable

from pagefleet_operator.domain.analysis import judging
from pagefleet_operator.domain.analysis.verdict import Outcome
from pagefleet_operator.domain.analysis.watching import load_records
from pagefleet_operator.domain.base.absence import tolerated_unready
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.rollout import actions, alerts, normal_operation, promotion, rollback, steps
from pagefleet_operator.domain.spec.rollout import Rollout
from pagefleet_operator.domain.status.stage import (
    Stage,
    advance_timer,
    all_traffic_to,
    begin_phase,
    begun_before,
    stage_of,
    watched_seconds,
)
from pagefleet_operator.domain.status.status import AlertRecord, Phase, PreviousRecord, RolloutRecord
from pagefleet_operator.domain.status.turn import SpecTurn

UNTIMED = (Phase.IDLE, Phase.ROLLED_BACK)


def advance(turn: SpecTurn) -> Stage:
    """Take one turn: bring the timer forward, do what a person asks for, then let the policies decide."""
    stage = stage_of(turn.observation.status)
    stage = replace(stage, record=begun_before(stage.record, turn.now))
    if _is_timed(stage.record, turn.rollout):
        stage = replace(stage, record=advance_timer(stage.record, turn.now))
    stage = actions.act(turn, stage)
    decisions = (policy(turn, stage) for policy in POLICIES)
    decided = next((decision for decision in decisions if decision is not None), None)
    return normal_operation.keep(turn, progress(turn, stage) if decided is None else decided)


def serve_restored_revision(turn: SpecTurn, stage: Stage) -> Stage | None:
    """The stable revision comes from a record: give it all traffic once it has a ready pod, before anything else.

    Where it does not start within the guard's deadline, the target is started in its place, unless that one was rejected.
    """
    if stage.record.phase is not Phase.RESTORING:
        return None
    if turn.reading(stage.stable).ready:
        turn.journal.note("Serving", f"restored revision {stage.stable} is ready and gets all traffic")
        return replace(stage, traffic=all_traffic_to(stage.stable), record=RolloutRecord(Phase.IDLE, since=turn.now))
    deadline = turn.rollout.guard.deadline
    overdue = watched_seconds(stage.record, turn.now) > deadline
    if not overdue or turn.target == stage.stable or turn.target in stage.rejected_hashes:
        return stage
    text = (
        f"restored revision {stage.stable} did not start within {deadline:g} s (spec.rollout.guard.deadline); "
        f"revision {turn.target} of the spec is started instead"
    )
    turn.journal.note("RestoreFailed", text, warning=True)
    previous = PreviousRecord(stage.stable, turn.now)
    return replace(stage, stable=turn.target, record=_starting_record(turn.now), previous=previous)


def serve_first_revision(turn: SpecTurn, stage: Stage) -> Stage | None:
    """Nothing serves yet: make the target the stable, and give it all traffic once it has a ready pod."""
    target = turn.target
    undone = stage.record.phase is Phase.ROLLING_BACK and target in stage.rejected_hashes
    if stage.stable and (stage.traffic or undone):
        return None
    if turn.reading(target).ready:
        turn.journal.note("Serving", f"revision {target} is ready and gets all traffic")
        record = RolloutRecord(Phase.IDLE, since=turn.now)
        return replace(stage, stable=target, canary="", traffic=all_traffic_to(target), record=record)
    if stage.stable == target:
        return stage
    turn.journal.note("RevisionStarted", f"revision {target} is started; it is the first")
    return replace(stage, stable=target, canary="", traffic=(), record=_starting_record(turn.now))


def continue_rollback(turn: SpecTurn, stage: Stage) -> Stage | None:
    """A rollback is under way: finish it before anything else. It waits for no more replicas than there may be."""
    if stage.record.phase is not Phase.ROLLING_BACK:
        return None
    needed = min(stage.record.needed, turn.spec.scaling.max)
    return rollback.move_traffic_back(turn, replace(stage, record=replace(stage.record, needed=needed)))


def leave_failed_rollback(turn: SpecTurn, stage: Stage) -> Stage | None:
    """The last good revision has no ready pod, for longer than the guard's deadline, and the spec asks for a new one: start that
    one beside the revision that has most of the traffic, because otherwise no edit could ever help."""
    record, deadline = stage.record, turn.rollout.guard.deadline
    if record.phase is not Phase.ROLLING_BACK or turn.reading(stage.stable).ready:
        return None
    known = turn.target in (stage.stable, stage.canary) or turn.target in stage.rejected_hashes
    if known or watched_seconds(record, turn.now) <= deadline:
        return None
    text = (
        f"revision {stage.stable} has had no ready pod for {deadline:g} s (spec.rollout.guard.deadline) to roll "
        f"{stage.canary} back to; revision {turn.target} of the spec is started instead"
    )
    turn.journal.note("RollbackFailed", text, warning=True)
    serving = max((stage.stable, stage.canary), key=stage.weight)
    return start_canary(turn, replace(stage, stable=serving, canary=""))


def watch_promoted(turn: SpecTurn, stage: Stage) -> Stage | None:
    """The stable is what the spec asks for, and is still watched after its promotion."""
    watching = turn.target == stage.stable and stage.record.phase is Phase.WATCHING
    return promotion.watch(turn, stage) if watching else None


def settle(turn: SpecTurn, stage: Stage) -> Stage | None:
    """The stable is what the spec asks for: end a rollout that is left over."""
    if turn.target != stage.stable:
        return None
    if _only_canary_serves(turn, stage):
        return stage
    if stage.canary:
        text = f"the spec asks for stable {stage.stable} again; canary {stage.canary} is removed"
        turn.journal.note("RolloutEnded", text)
    elif stage.record.phase is Phase.IDLE:
        return stage
    record = RolloutRecord(Phase.IDLE, since=turn.now)
    return replace(stage, canary="", traffic=all_traffic_to(stage.stable), record=record, mirror=None)


def _only_canary_serves(turn: SpecTurn, stage: Stage) -> bool:
    """Whether taking the canary's traffic away now would leave its requests without a pod."""
    ready = turn.reading(stage.stable).ready
    return bool(stage.canary and stage.weight(stage.canary) and not ready and turn.reading(stage.canary).ready)


def refuse_rejected(turn: SpecTurn, stage: Stage) -> Stage | None:
    """The target was rolled back before: leave all traffic on the stable."""
    if turn.target not in stage.rejected_hashes:
        return None
    if _only_canary_serves(turn, stage):
        return stage
    record = stage.record
    if record.phase is not Phase.ROLLED_BACK:
        record = begin_phase(RolloutRecord(Phase.ROLLED_BACK), Phase.ROLLED_BACK, turn.now)
    return replace(stage, canary="", traffic=all_traffic_to(stage.stable), record=record, mirror=None)


def start_canary(turn: SpecTurn, stage: Stage) -> Stage | None:
    """The target is new: start it beside the stable, instead of a canary that the spec no longer asks for."""
    if stage.canary == turn.target:
        return None
    replaced = f" instead of {stage.canary}" if stage.canary else ""
    turn.journal.note("CanaryStarted", f"revision {turn.target} is started beside stable {stage.stable}{replaced}")
    traffic, record = all_traffic_to(stage.stable), _starting_record(turn.now)
    baseline = load_records.only(stage.baseline)  # the others were for a watch that ends here
    return replace(stage, canary=turn.target, traffic=traffic, record=record, mirror=None, baseline=baseline)


Policy = Callable[[SpecTurn, Stage], Stage | None]
POLICIES: tuple[Policy, ...] = (
    serve_restored_revision,
    serve_first_revision,
    leave_failed_rollback,
    continue_rollback,
    watch_promoted,
    settle,
    refuse_rejected,
    start_canary,
)


def progress(turn: SpecTurn, stage: Stage) -> Stage:
    """Go on with the canary: alerts first, then its start, the verdict, a pause, and at last its step or promotion."""
    rollout = turn.rollout
    firing, any_revision = turn.observation.status.alerts, rollout.alerts_without_revision
    alert = alerts.firing_against(stage.canary, firing, rollout.alert_labels, stage.record.started, any_revision)
    if alert is not None and not rollout.alerts_pause:
        return rollback.reject(turn, stage, "Alert", alerts.sentence(alert, stage.canary))
    stage = _pause_by_alert(turn, stage, alert)
    if stage.record.phase is Phase.STARTING:
        return _await_start(turn, stage)
    stage, verdict = judging.judge_canary(turn, stage)
    if verdict is not None and verdict.outcome is Outcome.REGRESSED:
        return rollback.reject(turn, stage, verdict.reason, verdict.record.message)
    if stage.record.paused:
        return stage
    if stage.record.phase is Phase.PROMOTING:
        return promotion.promote(turn, stage)
    return steps.advance(turn, stage, verdict)


def _is_timed(record: RolloutRecord, rollout: Rollout) -> bool:
    """Whether something becomes due by the phase's timer alone.

    Only then is the timer brought forward, because that is a write: a rollout that waits for a person, perhaps for
    days, must not write. (The end of a pause starts the timer again.)
    """
    if record.phase in UNTIMED:
        return False
    if record.phase is Phase.WATCHING and record.low_since is None:
        return record.held < rollout.watch
    if record.phase is Phase.STARTING or record.low_since is not None:
        return True
    if record.paused:
        return False
    in_step = record.phase in steps.PHASES.values() and record.step < len(rollout.steps)
    return not in_step or rollout.steps[record.step].hold is not None


def _starting_record(now: float) -> RolloutRecord:
    return replace(begin_phase(RolloutRecord(Phase.STARTING), Phase.STARTING, now), started=now)


def _pause_by_alert(turn: SpecTurn, stage: Stage, alert: AlertRecord | None) -> Stage:
    """With onAlert pause: hold the step while an alert fires, and begin it again afterwards. A person's pause stays."""
    record = stage.record
    if alert is not None and not record.paused:
        text = f"{alerts.sentence(alert, stage.canary)}; the rollout is paused until the alert is resolved"
        turn.journal.note("AlertPaused", text, warning=True)
        return replace(stage, record=replace(record, paused=f"alert {alert.name}"))
    if alert is None and record.paused.startswith("alert "):
        turn.journal.note("AlertResolved", f"{record.paused} is resolved; the step begins again")
        return replace(stage, record=begin_phase(record, record.phase, turn.now))
    return stage


def _await_start(turn: SpecTurn, stage: Stage) -> Stage:
    """Enter the first step when a pod of the canary and its prefill pods are ready; give the canary up after the guard's deadline.

    Without its prefill pods a canary would compute every prompt in its decode pods, and the guard would judge those times.
    """
    canary, deadline = turn.reading(stage.canary), turn.rollout.guard.deadline
    prefill = turn.spec.pods.prefill_replicas
    if canary.ready and canary.prefill_ready >= prefill - tolerated_unready(prefill):
        return stage if stage.record.paused else steps.enter(turn, stage, 0)
    if watched_seconds(stage.record, turn.now) > deadline:
        cause = "its prefill pods did not become ready" if canary.ready else "no pod became ready"
        fault = next((pod.fault.message for pod in (*canary.pods, *canary.prefill) if pod.fault), cause)
        message = f"revision {stage.canary} did not start within {deadline:g} s (spec.rollout.guard.deadline): {fault}"
        return rollback.reject(turn, stage, "StartFailed", message)
    return stage
