"""Replicas of every revision that is kept: the stable by its load, the canary by its share, both so that weights are
affordable. The stable never shrinks while a canary is there: it must be able to carry everything again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_operator.domain import autoscale
from pagefleet_operator.domain.journal import Journal
from pagefleet_operator.domain.observation import RevisionReading
from pagefleet_operator.domain.rollout import Stage, reading, weight_of
from pagefleet_operator.domain.spec import Rollout, Scaling
from pagefleet_operator.domain.status import Phase, ScalingRecord


@dataclass(frozen=True)
class Capacity:
    replicas: Mapping[str, int]
    records: tuple[ScalingRecord, ...]


def decide(
    stage: Stage,
    revisions: Mapping[str, RevisionReading],
    records: tuple[ScalingRecord, ...],
    scaling: Scaling,
    rollout: Rollout,
    now: float,
    journal: Journal,
) -> Capacity:
    known = {record.revision: record for record in records}
    found = reading(revisions, stage.stable)
    wish = autoscale.wish(found, known.get(stage.stable, ScalingRecord(stage.stable)), scaling, now)
    current = found.replicas if found.replicas is not None else wish.replicas
    stable = max(wish.replicas, min(current, scaling.max)) if stage.canary else wish.replicas
    if found.replicas is not None and stable != found.replicas:
        kind = "ScaledUp" if stable > found.replicas else "ScaledDown"
        journal.note(kind, f"revision {stage.stable}: {wish.message or 'within the bounds of spec.scaling'}")
    kept = [wish.record]
    replicas = {stage.stable: stable}
    if stage.canary:
        own = autoscale.wish(
            reading(revisions, stage.canary),
            known.get(stage.canary, ScalingRecord(stage.canary)),
            scaling,
            now,
        )
        replicas[stage.canary] = max(
            _share(stage, rollout, stable), _grown(own.replicas, scaling, revisions, stage.canary)
        )
        kept.append(own.record)
    return Capacity(replicas, tuple(record for record in kept if record != ScalingRecord(record.revision)))


def _share(stage: Stage, rollout: Rollout, stable: int) -> int:
    """What the canary needs for the present weight; as much as the stable when it is being promoted."""
    if stage.record.phase is Phase.PROMOTING:
        return stable
    step = stage.record.step if stage.record.phase is not Phase.STARTING else 0
    return max(1, math.ceil(stable * weight_of(rollout, step) / 100))


def _grown(wished: int, scaling: Scaling, revisions: Mapping[str, RevisionReading], canary: str) -> int:
    """A canary grows by its own load only when that asks for more than the floor every revision gets."""
    current = reading(revisions, canary).replicas
    return wished if current is not None and wished > max(current, scaling.min) else 0
