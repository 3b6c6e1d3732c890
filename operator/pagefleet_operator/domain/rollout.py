"""The rollout automaton: which revision is stable, which is the canary, and how traffic is split between them.

One step of it is `advance`. Weight moves to a revision only when it has a ready pod; the stable keeps its replicas
until the canary is promoted; a rejected revision is not tried again until the spec names another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pagefleet_operator.domain import alerts, guard
from pagefleet_operator.domain.guard import Judged, Outcome
from pagefleet_operator.domain.journal import Journal
from pagefleet_operator.domain.observation import Observation, RevisionReading
from pagefleet_operator.domain.spec_rollout import Rollout
from pagefleet_operator.domain.status import Phase, Rejection, RolloutRecord, Weight

MOST_REJECTIONS = 10


@dataclass(frozen=True)
class Stage:
    """Where the rollout stands after a decision. `canary` is "" when there is none."""

    stable: str
    canary: str
    traffic: tuple[Weight, ...]
    record: RolloutRecord
    rejected: tuple[Rejection, ...]


def advance(seen: Observation, rollout: Rollout, wanted: str, now: float, journal: Journal) -> Stage:
    status = seen.status
    stage = Stage(status.stable, status.canary, status.traffic, status.rollout, status.rejected)
    if not stage.stable or not stage.traffic:
        return _first(stage, wanted, reading(seen.revisions, wanted), now, journal)
    if wanted == stage.stable:
        return _settle(stage, now, journal)
    if any(rejection.hash == wanted for rejection in stage.rejected):
        record = (
            stage.record if stage.record.phase is Phase.ROLLED_BACK else RolloutRecord(Phase.ROLLED_BACK, since=now)
        )
        return replace(stage, canary="", traffic=_all(stage.stable), record=record)
    if stage.canary != wanted:
        old = f" instead of {stage.canary}" if stage.canary else ""
        journal.note("CanaryStarted", f"revision {wanted} is started beside stable {stage.stable}{old}")
        record = RolloutRecord(Phase.STARTING, since=now, started=now)
        return replace(stage, canary=wanted, traffic=_all(stage.stable), record=record)
    return _progress(stage, seen, rollout, now, journal)


def reading(revisions: Mapping[str, RevisionReading], name: str) -> RevisionReading:
    return revisions.get(name) or RevisionReading(name, None)


def weight_of(rollout: Rollout, step: int) -> int:
    """The canary's weight in a step; a pause keeps the weight before it."""
    weights = [entry.weight for entry in rollout.steps[: step + 1] if entry.weight is not None]
    return weights[-1] if weights else 0


def _first(stage: Stage, wanted: str, found: RevisionReading, now: float, journal: Journal) -> Stage:
    """Nothing serves yet: the wanted revision is the stable, and gets all traffic once it has a ready pod."""
    if found.ready:
        journal.note("Serving", f"revision {wanted} is ready and gets all traffic")
        return replace(
            stage, stable=wanted, canary="", traffic=_all(wanted), record=RolloutRecord(Phase.IDLE, since=now)
        )
    if stage.stable == wanted:
        return stage
    journal.note("RevisionStarted", f"revision {wanted} is started; it is the first")
    return replace(
        stage,
        stable=wanted,
        canary="",
        traffic=(),
        record=RolloutRecord(Phase.STARTING, since=now, started=now),
    )


def _settle(stage: Stage, now: float, journal: Journal) -> Stage:
    """The spec asks for what is stable already."""
    if stage.canary:
        journal.note("RolloutEnded", f"the spec is back at stable {stage.stable}; canary {stage.canary} is removed")
    elif stage.record.phase is Phase.IDLE:
        return stage
    return replace(stage, canary="", traffic=_all(stage.stable), record=RolloutRecord(Phase.IDLE, since=now))


def _progress(stage: Stage, seen: Observation, rollout: Rollout, now: float, journal: Journal) -> Stage:
    record, canary = stage.record, reading(seen.revisions, stage.canary)
    alert = alerts.against(stage.canary, seen.status.alerts, rollout.alert_labels, record.started)
    if alert is not None:
        return _reject(stage, "Alert", f"alert {alert.name} fires for revision {stage.canary}", now, journal)
    if record.phase is Phase.STARTING:
        return _starting(stage, canary, rollout, now, journal)
    judged = None
    if record.traffic_since is not None:
        judged = guard.assess(
            seen.slices,
            rollout.guard,
            stable=stage.stable,
            canary=stage.canary,
            since=record.traffic_since,
            now=now,
        )
    if judged is not None:
        stage = replace(stage, record=replace(record, verdict=judged.record))
        if judged.outcome is Outcome.REGRESSED:
            reason = "ErrorRate" if judged.record.signal == "errors" else "LatencyRegression"
            return _reject(stage, reason, judged.record.message, now, journal)
    if record.phase is Phase.PROMOTING:
        return _promoting(stage, seen, now, journal)
    return _step(stage, canary, rollout, judged, now, journal)


def _starting(stage: Stage, canary: RevisionReading, rollout: Rollout, now: float, journal: Journal) -> Stage:
    if canary.ready:
        return _enter(stage, rollout, 0, now, journal)
    if now - stage.record.started > rollout.guard.deadline:
        fault = next((pod.fault.message for pod in canary.pods if pod.fault), "no pod became ready")
        return _reject(stage, "StartFailed", f"revision {stage.canary} did not start: {fault}", now, journal)
    return stage


def _step(
    stage: Stage,
    canary: RevisionReading,
    rollout: Rollout,
    judged: Judged | None,
    now: float,
    journal: Journal,
) -> Stage:
    record = stage.record
    if record.step >= len(rollout.steps):
        return _enter(stage, rollout, record.step, now, journal)
    hold, held = rollout.steps[record.step].hold, now - record.since
    passed = judged is None or judged.outcome is Outcome.PASSED
    if held >= hold and passed and canary.ready:
        return _enter(stage, rollout, record.step + 1, now, journal)
    if (
        judged is not None
        and not passed
        and held >= hold + rollout.guard.deadline
        and rollout.guard.rollback_when_inconclusive
    ):
        message = f"no verdict within {rollout.guard.deadline:g} s: {judged.record.message}"
        return _reject(stage, "DeadlineExceeded", message, now, journal)
    # The steps' weights may have been edited while this one is held.
    return replace(stage, traffic=_split(stage.stable, stage.canary, weight_of(rollout, record.step)))


def _enter(stage: Stage, rollout: Rollout, step: int, now: float, journal: Journal) -> Stage:
    """Begin a step, or the promotion after the last one."""
    record = stage.record
    if step >= len(rollout.steps):
        journal.note("Promoting", f"revision {stage.canary} has passed every step; its replicas are raised first")
        return replace(stage, record=replace(record, phase=Phase.PROMOTING, step=len(rollout.steps), since=now))
    weight, pause = weight_of(rollout, step), rollout.steps[step].weight is None
    verdict = f" ({record.verdict.message})" if record.verdict else ""
    what = f"paused for {rollout.steps[step].hold:g} s at {weight} %" if pause else f"gets {weight} % of requests"
    journal.note("StepAdvanced", f"step {step + 1} of {len(rollout.steps)}: revision {stage.canary} {what}{verdict}")
    entered = replace(
        record,
        phase=Phase.PAUSED if pause else Phase.STEP,
        step=step,
        since=now,
        traffic_since=record.traffic_since if record.traffic_since is not None or not weight else now,
    )
    return replace(stage, traffic=_split(stage.stable, stage.canary, weight), record=entered)


def _promoting(stage: Stage, seen: Observation, now: float, journal: Journal) -> Stage:
    """All traffic moves when the canary has as many ready pods as the stable has."""
    canary, stable = reading(seen.revisions, stage.canary), reading(seen.revisions, stage.stable)
    if canary.ready < max(1, stable.ready):
        return stage
    journal.note("Promoted", f"revision {stage.canary} is stable now and gets all traffic; it was {stage.stable}")
    record = RolloutRecord(Phase.IDLE, since=now, verdict=stage.record.verdict)
    return replace(stage, stable=stage.canary, canary="", traffic=_all(stage.canary), record=record)


def _reject(stage: Stage, reason: str, message: str, now: float, journal: Journal) -> Stage:
    journal.note("RolledBack", f"{reason}: {message}; all traffic is back on {stage.stable}", warning=True)
    rejection = Rejection(stage.canary, reason, message, now)
    record = replace(stage.record, phase=Phase.ROLLED_BACK, since=now)
    rejected = (*stage.rejected, rejection)[-MOST_REJECTIONS:]
    return replace(stage, canary="", traffic=_all(stage.stable), record=record, rejected=rejected)


def _all(revision: str) -> tuple[Weight, ...]:
    return (Weight(revision, 100),)


def _split(stable: str, canary: str, weight: int) -> tuple[Weight, ...]:
    return (Weight(stable, 100 - weight), Weight(canary, weight)) if weight < 100 else _all(canary)
