"""The rollout automaton: which revision is stable, which is the canary, and how traffic is split between them.

One step of it is `advance`. Weight moves to a revision only when it has the ready pods for it; the stable keeps its
replicas until the canary is promoted; a rejected revision is not tried again until the spec names another one or a
person asks for it.
"""

from __future__ import annotations

from dataclasses import replace

from pagefleet_operator.domain.analysis import judging
from pagefleet_operator.domain.analysis.guard import Outcome
from pagefleet_operator.domain.rollout import actions, alerts, promotion, rollback, steps
from pagefleet_operator.domain.spec.rollout import Rollout
from pagefleet_operator.domain.status.journal import Journal
from pagefleet_operator.domain.status.observation import Observation, RevisionReading
from pagefleet_operator.domain.status.stage import (
    Stage,
    advance_timer,
    all_traffic_to,
    begin_phase,
    reading_of,
    stage_of,
    watched_seconds,
)
from pagefleet_operator.domain.status.status import AlertRecord, Phase, RolloutRecord

UNTIMED = (Phase.IDLE, Phase.ROLLED_BACK)


def advance(seen: Observation, rollout: Rollout, wanted: str, now: float, journal: Journal) -> Stage:
    stage = stage_of(seen.status)
    if _timed(stage.record, rollout):
        stage = replace(stage, record=advance_timer(stage.record, now))
    stage = actions.act(stage, seen, rollout, wanted, now, journal)
    if not stage.stable or not stage.traffic:
        return _first(stage, wanted, reading_of(seen.revisions, wanted), now, journal)
    if stage.record.phase is Phase.ROLLING_BACK:
        return rollback.retreat(stage, seen, now, journal)
    if wanted == stage.stable:
        if stage.record.phase is Phase.WATCHING:
            return promotion.watch(stage, seen, rollout, now, journal)
        return _settle(stage, now, journal)
    if wanted in stage.rejected_hashes:
        record = stage.record
        if record.phase is not Phase.ROLLED_BACK:
            record = begin_phase(RolloutRecord(Phase.ROLLED_BACK), Phase.ROLLED_BACK, now)
        return replace(stage, canary="", traffic=all_traffic_to(stage.stable), record=record, mirror=None)
    if stage.canary != wanted:
        return _start(stage, wanted, now, journal)
    return _progress(stage, seen, rollout, now, journal)


def _timed(record: RolloutRecord, rollout: Rollout) -> bool:
    """Whether something becomes due by the phase's timer alone: bringing it forward is a write, and who waits for a
    person, perhaps for days, must not write. (A pause ends with a new timer.)"""
    if record.phase in UNTIMED:
        return False
    if record.phase is Phase.STARTING or record.low_since is not None:
        return True
    if record.paused:
        return False
    held_up = record.phase in steps.PHASES.values() and record.step < len(rollout.steps)
    return not held_up or rollout.steps[record.step].hold is not None


def _first(stage: Stage, wanted: str, found: RevisionReading, now: float, journal: Journal) -> Stage:
    """Nothing serves yet: the wanted revision is the stable, and gets all traffic once it has a ready pod."""
    if found.ready:
        journal.note("Serving", f"revision {wanted} is ready and gets all traffic")
        return replace(
            stage, stable=wanted, canary="", traffic=all_traffic_to(wanted), record=RolloutRecord(Phase.IDLE, since=now)
        )
    if stage.stable == wanted:
        return stage
    journal.note("RevisionStarted", f"revision {wanted} is started; it is the first")
    record = replace(begin_phase(RolloutRecord(Phase.STARTING), Phase.STARTING, now), started=now)
    return replace(stage, stable=wanted, canary="", traffic=(), record=record)


def _settle(stage: Stage, now: float, journal: Journal) -> Stage:
    """The spec asks for what is stable already."""
    if stage.canary:
        journal.note("RolloutEnded", f"the spec is back at stable {stage.stable}; canary {stage.canary} is removed")
    elif stage.record.phase is Phase.IDLE:
        return stage
    record = RolloutRecord(Phase.IDLE, since=now)
    return replace(stage, canary="", traffic=all_traffic_to(stage.stable), record=record, mirror=None)


def _start(stage: Stage, wanted: str, now: float, journal: Journal) -> Stage:
    old = f" instead of {stage.canary}" if stage.canary else ""
    journal.note("CanaryStarted", f"revision {wanted} is started beside stable {stage.stable}{old}")
    record = replace(begin_phase(RolloutRecord(Phase.STARTING), Phase.STARTING, now), started=now)
    return replace(stage, canary=wanted, traffic=all_traffic_to(stage.stable), record=record, mirror=None, baseline=())


def _progress(stage: Stage, seen: Observation, rollout: Rollout, now: float, journal: Journal) -> Stage:
    record, canary = stage.record, reading_of(seen.revisions, stage.canary)
    alert = alerts.against(stage.canary, seen.status.alerts, rollout.alert_labels, record.started)
    if alert is not None and not rollout.alerts_pause:
        return rollback.reject(stage, seen, "Alert", _fires(alert, stage.canary), now, journal)
    stage = _held_up(stage, alert, now, journal)
    if stage.record.phase is Phase.STARTING:
        return _starting(stage, seen, canary, rollout, now, journal)
    stage, judged = judging.judged(stage, seen, rollout, now)
    if judged is not None and judged.outcome is Outcome.REGRESSED:
        return rollback.reject(stage, seen, judged.reason, judged.record.message, now, journal)
    if stage.record.paused:
        return stage
    if stage.record.phase is Phase.PROMOTING:
        return promotion.promote(stage, seen, rollout, now, journal)
    return steps.step(stage, seen, rollout, judged, now, journal)


def _held_up(stage: Stage, alert: AlertRecord | None, now: float, journal: Journal) -> Stage:
    """With onAlert pause: a firing alert holds the step up, and lets go when it is resolved. A person's pause stays."""
    record = stage.record
    if alert is not None and not record.paused:
        journal.note("AlertPaused", f"{_fires(alert, stage.canary)}; the rollout is held", warning=True)
        return replace(stage, record=replace(record, paused=f"alert {alert.name}"))
    if alert is None and record.paused.startswith("alert "):
        journal.note("AlertResolved", f"{record.paused} is resolved; the step begins again")
        return replace(stage, record=begin_phase(record, record.phase, now))
    return stage


def _fires(alert: AlertRecord, revision: str) -> str:
    return f"alert {alert.name} fires for revision {revision}"


def _starting(
    stage: Stage, seen: Observation, canary: RevisionReading, rollout: Rollout, now: float, journal: Journal
) -> Stage:
    if canary.ready:
        return stage if stage.record.paused else steps.enter(stage, seen, rollout, 0, now, journal)
    if watched_seconds(stage.record, now) > rollout.guard.deadline:
        fault = next((pod.fault.message for pod in canary.pods if pod.fault), "no pod became ready")
        message = f"revision {stage.canary} did not start: {fault}"
        return rollback.reject(stage, seen, "StartFailed", message, now, journal)
    return stage
