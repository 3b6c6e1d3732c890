"""Gives a revision up: remembers it as rejected, and moves its traffic to the last good one as fast as that can carry it."""

from __future__ import annotations

from pagefleet_operator.domain.analysis.watching import load_records
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.rollout import carrying_capacity
from pagefleet_operator.domain.status.stage import MAX_REJECTIONS, Stage, all_traffic_to, begin_phase, split_traffic
from pagefleet_operator.domain.status.status import Phase, Rejection
from pagefleet_operator.domain.status.turn import Turn

MEASURED_REASONS = (
    "LatencyRegression",
    "LatencyBound",
    "Throughput",
    "Cost",
    "ErrorRate",
    "ClientErrors",
    "Timeouts",
    "Fallbacks",
    "FreePages",
    "Gate",
    "LoadTest",
    "DeadlineExceeded",
)


def reject(turn: Turn, stage: Stage, reason: str, message: str) -> Stage:
    """Roll the canary back to the stable."""
    return give_up(turn, stage, stage.canary, stage.stable, reason, message)


def give_up(turn: Turn, stage: Stage, bad: str, good: str, reason: str, message: str) -> Stage:
    """Reject `bad`, whatever its weight, and make `good` the stable; capacity goes before traffic."""
    evidence = stage.record.verdict if reason in MEASURED_REASONS else None
    needed = carrying_capacity.replicas_to_carry_all(turn, stage, bad, good)
    rejecting = replace(
        remember_rejection(stage, Rejection(bad, reason, message, turn.now, evidence)),
        stable=good,
        canary=bad,
        # The stable's own record stays with it. One that a given-up stable was held to does not.
        baseline=tuple(
            one for one in load_records.only(stage.baseline) if good == stage.stable or one.revision == good
        ),
        watch=stage.watch if good == stage.stable else None,
        record=replace(begin_phase(stage.record, Phase.ROLLING_BACK, turn.now), needed=needed, low_since=None),
        mirror=None,
    )
    moved = move_traffic_back(turn, rejecting)
    if moved.canary:
        turn.journal.note(
            "RollingBack",
            f"Rolling back {bad} -> {good} ({reason}: {message}). Revision {good} has {turn.reading(good).ready} of the "
            f"{needed} ready replicas that it needs for all traffic; it gets traffic as they become ready.",
            warning=True,
        )
    return moved


def remember_rejection(stage: Stage, rejection: Rejection) -> Stage:
    """Add a revision to the rejected ones; the oldest are forgotten."""
    others = tuple(other for other in stage.rejected if other.hash != rejection.hash)
    return replace(stage, rejected=(*others, rejection)[-MAX_REJECTIONS:])


def move_traffic_back(turn: Turn, stage: Stage) -> Stage:
    """Go on with a rollback: give the stable as much traffic as it can carry, never less than it has."""
    carried = carrying_capacity.percent_carried(turn.reading(stage.stable), stage.record.needed)
    percent = max(carried, stage.weight(stage.stable))
    if percent < 100:
        traffic = split_traffic(stage.stable, stage.canary, 100 - percent) if percent else stage.traffic
        return replace(stage, traffic=traffic)
    rejection = next((one for one in stage.rejected if one.hash == stage.canary), None)
    cause = f" ({rejection.reason}: {rejection.message})" if rejection else ""
    turn.journal.note(
        "RolledBack",
        f"Rolled back {stage.canary} -> {stage.stable}{cause}. Not retried until the spec changes or "
        f"`{turn.command('retry')}`.",
        warning=True,
    )
    return replace(
        stage,
        canary="",
        traffic=all_traffic_to(stage.stable),
        record=begin_phase(stage.record, Phase.ROLLED_BACK, turn.now),
        previous=None if stage.previous and stage.previous.revision == stage.stable else stage.previous,
    )
