"""Promotion, capacity first, and the watch after it: the new stable is judged by the record of the previous one.

The watch lasts for spec.rollout.afterPromotion.watch, and as long as the previous revision's replicas are retained.
"""

from __future__ import annotations

from pagefleet_operator.domain.analysis import failures, judging, latency
from pagefleet_operator.domain.analysis.verdict import Outcome
from pagefleet_operator.domain.analysis.watching import load_records
from pagefleet_operator.domain.analysis.watching.baseline import record_baseline
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.rollout import alerts, carrying_capacity, normal_operation, rollback
from pagefleet_operator.domain.status.stage import Stage, all_traffic_to, begin_phase, watched_seconds
from pagefleet_operator.domain.status.status import Phase, PreviousRecord, RolloutRecord
from pagefleet_operator.domain.status.turn import SpecTurn, Turn


def promote(turn: SpecTurn, stage: Stage) -> Stage:
    """Move all traffic to the canary when it has the ready pods for it."""
    if not carrying_capacity.canary_can_carry(turn, stage, 100):
        shortage = carrying_capacity.shortage(turn, stage, 100)
        return rollback.reject(turn, stage, "CapacityShortage", shortage) if shortage else stage
    text = f"revision {stage.canary} is promoted: it is stable now and gets all traffic instead of {stage.stable}"
    turn.journal.note("Promoted", text)
    rollout, measured = turn.rollout, record_baseline(turn.observation, turn.rollout.guard, stage.stable)
    watched = rollout.watch > 0 or (rollout.watch_limits is not None and rollout.keep_previous > 0)
    record = RolloutRecord(Phase.IDLE, since=turn.now)
    if watched:
        earlier = failures.handed_over(stage.record.failures, stage.stable, turn.now)
        record = RolloutRecord(Phase.WATCHING, started=turn.now, traffic_since=turn.now, failures=earlier)
        record = begin_phase(record, Phase.WATCHING, turn.now)
    return replace(
        stage,
        stable=stage.canary,
        canary="",
        traffic=all_traffic_to(stage.canary),
        record=replace(record, verdict=stage.record.verdict, verdicts=stage.record.verdicts),
        mirror=None,
        previous=PreviousRecord(stage.stable, turn.now),
        baseline=(*normal_operation.handed_over(turn, stage), *(measured if rollout.watch > 0 else ())),
        watch=None,
    )


def way_back(turn: Turn, stage: Stage) -> PreviousRecord | None:
    """The previous revision, where it can be gone back to."""
    previous, stored = stage.previous, {entry.hash for entry in turn.observation.status.revisions if entry.spec}
    if previous is None or previous.revision not in stored or previous.revision in stage.rejected_hashes:
        return None
    return previous


def watch(turn: SpecTurn, stage: Stage) -> Stage:
    """Go on judging the new stable; the way back is to the previous revision."""
    previous, rollout, status = way_back(turn, stage), turn.rollout, turn.observation.status
    if previous is None:
        return _end_watch(turn, stage, "there is no revision to go back to")
    alert = alerts.firing_against(
        stage.stable, status.alerts, rollout.alert_labels, stage.record.started, rollout.alerts_without_revision
    )
    if alert is not None and not rollout.alerts_pause:
        message = f"{alerts.sentence(alert, stage.stable)} after its promotion"
        return rollback.give_up(turn, stage, stage.stable, previous.revision, "Alert", message)
    judged = watched_seconds(stage.record, turn.now) < rollout.watch
    if judged:
        baseline = tuple(one for one in stage.baseline if not load_records.is_load_record(one))
        stage, verdict = judging.judge_promoted(turn, stage, rollout.guard, baseline)
        if verdict is not None and verdict.outcome is Outcome.REGRESSED:
            message = f"after promotion: {verdict.record.message}"
            return rollback.give_up(turn, stage, stage.stable, previous.revision, verdict.reason, message)
    if rollout.watch_limits is not None:
        answer = normal_operation.judge(turn, stage, rollout.watch_limits)
        if answer.convicted:
            numbers = normal_operation.verdict_of(rollout.watch_limits, answer)
            message = f"after promotion: {numbers.message if numbers else ''}"
            slow = replace(stage, record=replace(stage.record, verdict=numbers))
            return rollback.give_up(turn, slow, stage.stable, previous.revision, latency.REGRESSION, message)
        stage = replace(stage, watch=answer.record)
    # An alert that only pauses keeps the watch, and with it the way back, from ending.
    if alert is None and not judged and not _is_retained(turn, previous):
        seconds = max(rollout.watch, turn.now - previous.since if rollout.keep_previous else 0.0)
        return _end_watch(turn, stage, f"it was watched for {seconds:.0f} s after its promotion")
    return stage


def _is_retained(turn: SpecTurn, previous: PreviousRecord) -> bool:
    """Whether the previous revision's replicas are retained, so that an alert or a regression rolls back to it."""
    return turn.rollout.watch_limits is not None and turn.now - previous.since < turn.rollout.keep_previous


def _end_watch(turn: SpecTurn, stage: Stage, cause: str) -> Stage:
    turn.journal.note("WatchEnded", f"revision {stage.stable} stays stable: {cause}")
    record = RolloutRecord(Phase.IDLE, since=turn.now, verdict=stage.record.verdict, verdicts=stage.record.verdicts)
    return replace(stage, record=record, baseline=load_records.only(stage.baseline))
