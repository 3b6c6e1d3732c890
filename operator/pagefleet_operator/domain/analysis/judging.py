"""Asks the guard about the present step, and keeps what it says in the rollout's record."""

from __future__ import annotations

from dataclasses import replace

from pagefleet_operator.domain.analysis import guard, limits, sources
from pagefleet_operator.domain.analysis.guard import Judged, Question
from pagefleet_operator.domain.spec.rollout import Rollout
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.stage import Stage
from pagefleet_operator.domain.status.status import Phase

MOST_SIGNALS = 32


def judged(stage: Stage, seen: Observation, rollout: Rollout, now: float) -> tuple[Stage, Judged | None]:
    """The stage with the verdict in its record, and the verdict; None when there is nothing to ask."""
    record = stage.record
    copies = record.phase is Phase.MIRRORING and not stage.weight(stage.canary)
    low = limits.low_since(seen, rollout.guard.free_pages, stage.canary, record.low_since, now)
    seen_now = sources.requests(seen, rollout.guard, stage.canary, record.since, copies)
    record = replace(record, low_since=low, requests=max(record.requests, seen_now))
    question = Question(
        stable=stage.stable,
        canary=stage.canary,
        since=record.since if copies else record.traffic_since,
        now=now,
        copies=copies,
        low_since=low,
    )
    return _kept(replace(stage, record=record), guard.assess(seen, rollout.guard, question))


def judged_after(stage: Stage, seen: Observation, rollout: Rollout, now: float) -> tuple[Stage, Judged | None]:
    """The same after promotion: the stable is judged, by the record of the previous revision."""
    record = stage.record
    low = limits.low_since(seen, rollout.guard.free_pages, stage.stable, record.low_since, now)
    question = Question(
        stable=stage.previous.revision if stage.previous else "",
        canary=stage.stable,
        since=record.traffic_since,
        now=now,
        baseline=stage.baseline,
        after=True,
        low_since=low,
    )
    return _kept(replace(stage, record=replace(record, low_since=low)), guard.assess(seen, rollout.guard, question))


def _kept(stage: Stage, found: Judged | None) -> tuple[Stage, Judged | None]:
    if found is None:
        return stage, None
    record = replace(stage.record, verdict=found.record, verdicts=found.signals[:MOST_SIGNALS])
    return replace(stage, record=record), found
