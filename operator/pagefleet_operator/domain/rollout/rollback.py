"""Giving a revision up: it is remembered, and its traffic goes to the last good one as fast as that can carry it."""

from __future__ import annotations

from dataclasses import replace

from pagefleet_operator.domain.rollout import affordable
from pagefleet_operator.domain.status.journal import Journal
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.stage import (
    MAX_REJECTIONS,
    Stage,
    all_traffic_to,
    begin_phase,
    reading_of,
    split_traffic,
)
from pagefleet_operator.domain.status.status import Phase, Rejection, VerdictRecord


def reject(stage: Stage, seen: Observation, reason: str, message: str, now: float, journal: Journal) -> Stage:
    """Roll the canary back to the stable."""
    return give_up(stage, seen, stage.canary, stage.stable, reason, message, now, journal)


def give_up(
    stage: Stage, seen: Observation, bad: str, good: str, reason: str, message: str, now: float, journal: Journal
) -> Stage:
    """Reject `bad`, whatever its weight, and make `good` the stable; capacity goes before traffic."""
    measured = reason in ("LatencyRegression", "ErrorRate", "FreePages", "Gate", "LoadTest", "DeadlineExceeded")
    evidence = stage.record.verdict if measured else None
    wanted = affordable.needed(stage, seen, bad, good)
    left = replace(
        remembered(stage, bad, reason, message, now, evidence),
        stable=good,
        canary=bad,
        record=replace(begin_phase(stage.record, Phase.ROLLING_BACK, now), needed=wanted, low_since=None),
        mirror=None,
    )
    gone = retreat(left, seen, now, journal)
    if gone.canary:
        found = reading_of(seen.revisions, good)
        journal.note(
            "RollingBack",
            f"{reason}: {message}; revision {good} has {found.ready} of the {wanted} ready replicas it needs, "
            f"and gets traffic as they come",
            warning=True,
        )
    return gone


def remembered(
    stage: Stage, revision: str, reason: str, message: str, now: float, evidence: VerdictRecord | None = None
) -> Stage:
    """`revision` among the rejected ones; the oldest are forgotten."""
    others = tuple(one for one in stage.rejected if one.hash != revision)
    return replace(stage, rejected=(*others, Rejection(revision, reason, message, now, evidence))[-MAX_REJECTIONS:])


def retreat(stage: Stage, seen: Observation, now: float, journal: Journal) -> Stage:
    """Go on with a rollback: as much to the stable as it can carry, never less than it has."""
    found = reading_of(seen.revisions, stage.stable)
    share = max(affordable.weight(found, stage.record.needed), stage.weight(stage.stable))
    if affordable.weight(found, stage.record.needed) < 100:
        return replace(
            stage, traffic=split_traffic(stage.stable, stage.canary, 100 - share) if share else stage.traffic
        )
    last = next((one for one in stage.rejected if one.hash == stage.canary), None)
    why = f"{last.reason}: {last.message}; " if last else ""
    journal.note("RolledBack", f"{why}all traffic is back on {stage.stable}", warning=True)
    return replace(
        stage,
        canary="",
        traffic=all_traffic_to(stage.stable),
        record=begin_phase(stage.record, Phase.ROLLED_BACK, now),
        previous=None if stage.previous and stage.previous.revision == stage.stable else stage.previous,
        baseline=(),
    )
