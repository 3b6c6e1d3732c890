"""Promotion, capacity first, and the watch after it: the new stable is judged against what the previous one was like."""

from __future__ import annotations

from dataclasses import replace

from pagefleet_operator.domain.analysis import judging
from pagefleet_operator.domain.analysis.baseline import recorded
from pagefleet_operator.domain.analysis.guard import Outcome
from pagefleet_operator.domain.rollout import alerts, rollback
from pagefleet_operator.domain.spec.rollout import Rollout
from pagefleet_operator.domain.status.journal import Journal
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.stage import Stage, all_traffic_to, begin_phase, reading_of, watched_seconds
from pagefleet_operator.domain.status.status import Phase, PreviousRecord, RolloutRecord


def promote(stage: Stage, seen: Observation, rollout: Rollout, now: float, journal: Journal) -> Stage:
    """All traffic moves when the canary has as many ready pods as the stable has."""
    canary, stable = reading_of(seen.revisions, stage.canary), reading_of(seen.revisions, stage.stable)
    if canary.ready < max(1, stable.ready):
        return stage
    journal.note("Promoted", f"revision {stage.canary} is stable now and gets all traffic; it was {stage.stable}")
    verdict, verdicts = stage.record.verdict, stage.record.verdicts
    if rollout.watch > 0:
        record = begin_phase(RolloutRecord(Phase.WATCHING, started=now, traffic_since=now), Phase.WATCHING, now)
    else:
        record = RolloutRecord(Phase.IDLE, since=now)
    return replace(
        stage,
        stable=stage.canary,
        canary="",
        traffic=all_traffic_to(stage.canary),
        record=replace(record, verdict=verdict, verdicts=verdicts),
        mirror=None,
        previous=PreviousRecord(stage.stable, now),
        baseline=recorded(seen, rollout.guard, stage.stable) if rollout.watch > 0 else (),
    )


def watch(stage: Stage, seen: Observation, rollout: Rollout, now: float, journal: Journal) -> Stage:
    """Go on judging the new stable; the way back is to the previous revision."""
    record, previous = stage.record, stage.previous
    known = {entry.hash for entry in seen.status.revisions if entry.spec}
    if previous is None or previous.revision not in known or previous.revision in stage.rejected_hashes:
        return _over(stage, "there is no revision to go back to", now, journal)
    alert = alerts.against(stage.stable, seen.status.alerts, rollout.alert_labels, record.started)
    if alert is not None and not rollout.alerts_pause:
        message = f"alert {alert.name} fires for revision {stage.stable} after its promotion"
        return rollback.give_up(stage, seen, stage.stable, previous.revision, "Alert", message, now, journal)
    stage, judged = judging.judged_after(stage, seen, rollout, now)
    if judged is not None and judged.outcome is Outcome.REGRESSED:
        message = f"after promotion: {judged.record.message}"
        return rollback.give_up(stage, seen, stage.stable, previous.revision, judged.reason, message, now, journal)
    # An alert that only pauses keeps the watch, and with it the way back, from ending.
    if alert is None and watched_seconds(stage.record, now) >= rollout.watch:
        return _over(stage, f"watched for {rollout.watch:g} s", now, journal)
    return stage


def _over(stage: Stage, why: str, now: float, journal: Journal) -> Stage:
    journal.note("WatchEnded", f"revision {stage.stable} stays: {why}")
    record = RolloutRecord(Phase.IDLE, since=now, verdict=stage.record.verdict, verdicts=stage.record.verdicts)
    return replace(stage, record=record, baseline=())
