"""Promotion, capacity first, and the watch after it: the new stable is judged by the record of the previous one."""

from __future__ import annotations

from dataclasses import replace

from pagefleet_operator.domain.analysis import judging
from pagefleet_operator.domain.analysis.baseline import record_baseline
from pagefleet_operator.domain.analysis.verdict import Outcome
from pagefleet_operator.domain.rollout import alerts, carrying_capacity, rollback
from pagefleet_operator.domain.status.stage import Stage, all_traffic_to, begin_phase, watched_seconds
from pagefleet_operator.domain.status.status import Phase, PreviousRecord, RolloutRecord
from pagefleet_operator.domain.status.turn import SpecTurn


def promote(turn: SpecTurn, stage: Stage) -> Stage:
    """Move all traffic to the canary when it has as many ready pods as the stable should have."""
    if not carrying_capacity.canary_can_carry(turn, stage, 100):
        shortage = carrying_capacity.shortage(turn, stage, 100)
        return rollback.reject(turn, stage, "CapacityShortage", shortage) if shortage else stage
    text = f"revision {stage.canary} is promoted: it is stable now and gets all traffic instead of {stage.stable}"
    turn.journal.note("Promoted", text)
    watched = turn.rollout.watch > 0
    record = RolloutRecord(Phase.IDLE, since=turn.now)
    if watched:
        record = RolloutRecord(Phase.WATCHING, started=turn.now, traffic_since=turn.now)
        record = begin_phase(record, Phase.WATCHING, turn.now)
    return replace(
        stage,
        stable=stage.canary,
        canary="",
        traffic=all_traffic_to(stage.canary),
        record=replace(record, verdict=stage.record.verdict, verdicts=stage.record.verdicts),
        mirror=None,
        previous=PreviousRecord(stage.stable, turn.now),
        baseline=record_baseline(turn.observation, turn.rollout.guard, stage.stable) if watched else (),
    )


def watch(turn: SpecTurn, stage: Stage) -> Stage:
    """Go on judging the new stable; the way back is to the previous revision."""
    previous, rollout, status = stage.previous, turn.rollout, turn.observation.status
    stored = {entry.hash for entry in status.revisions if entry.spec}
    if previous is None or previous.revision not in stored or previous.revision in stage.rejected_hashes:
        return _end_watch(turn, stage, "there is no revision to go back to")
    alert = alerts.firing_against(stage.stable, status.alerts, rollout.alert_labels, stage.record.started)
    if alert is not None and not rollout.alerts_pause:
        message = f"{alerts.sentence(alert, stage.stable)} after its promotion"
        return rollback.give_up(turn, stage, stage.stable, previous.revision, "Alert", message)
    stage, verdict = judging.judge_promoted(turn, stage)
    if verdict is not None and verdict.outcome is Outcome.REGRESSED:
        message = f"after promotion: {verdict.record.message}"
        return rollback.give_up(turn, stage, stage.stable, previous.revision, verdict.reason, message)
    # An alert that only pauses keeps the watch, and with it the way back, from ending.
    if alert is None and watched_seconds(stage.record, turn.now) >= rollout.watch:
        return _end_watch(turn, stage, f"it was watched for {rollout.watch:g} s after its promotion")
    return stage


def _end_watch(turn: SpecTurn, stage: Stage, cause: str) -> Stage:
    turn.journal.note("WatchEnded", f"revision {stage.stable} stays stable: {cause}")
    record = RolloutRecord(Phase.IDLE, since=turn.now, verdict=stage.record.verdict, verdicts=stage.record.verdicts)
    return replace(stage, record=record, baseline=())
