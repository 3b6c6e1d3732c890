"""Replicas of every revision that is kept: the stable by its load, the canary by its share, both so that weights are
affordable. The stable never shrinks while a canary is there: it must be able to carry everything again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pagefleet_operator.domain import autoscale
from pagefleet_operator.domain.journal import Journal
from pagefleet_operator.domain.observation import RevisionReading
from pagefleet_operator.domain.rollout import Stage, reading, weight_of
from pagefleet_operator.domain.sample import ServiceLoad
from pagefleet_operator.domain.spec_rollout import Rollout
from pagefleet_operator.domain.spec_scaling import Scaling
from pagefleet_operator.domain.status import Phase, ScalingRecord, Status


@dataclass(frozen=True)
class Capacity:
    replicas: Mapping[str, int]
    records: tuple[ScalingRecord, ...]


def decide(
    stage: Stage,
    revisions: Mapping[str, RevisionReading],
    before: Status,
    scaling: Scaling,
    rollout: Rollout,
    now: float,
    journal: Journal,
    load: ServiceLoad | None = None,
) -> Capacity:
    known = {record.revision: record for record in before.scaling}
    desired = {record.hash: record.desired for record in before.revisions if record.desired}

    def wish(revision: str, within: Scaling) -> autoscale.Wish:
        record = known.get(revision, ScalingRecord(revision))
        return autoscale.wish(reading(revisions, revision), load, desired.get(revision), record, within, now)

    wished = wish(stage.stable, scaling)
    current = desired.get(stage.stable, wished.replicas)
    stable = max(wished.replicas, min(current, scaling.max)) if stage.canary else wished.replicas
    if stage.stable in desired and stable != current:
        kind = "ScaledUp" if stable > current else "ScaledDown"
        journal.note(kind, f"revision {stage.stable}: {wished.message or 'within the bounds of spec.scaling'}")
    kept, replicas = [wished.record], {stage.stable: stable}
    if stage.canary:
        # spec.scaling.min is for who serves everybody; a canary's floor is its share.
        own = wish(stage.canary, replace(scaling, min=1))
        replicas[stage.canary] = max(_share(stage, rollout, stable), own.replicas)
        kept.append(own.record)
    return Capacity(replicas, tuple(record for record in kept if record != ScalingRecord(record.revision)))


def _share(stage: Stage, rollout: Rollout, stable: int) -> int:
    """What the canary needs for the present weight; as much as the stable when it is being promoted."""
    if stage.record.phase is Phase.PROMOTING:
        return stable
    step = stage.record.step if stage.record.phase is not Phase.STARTING else 0
    return max(1, math.ceil(stable * weight_of(rollout, step) / 100))
