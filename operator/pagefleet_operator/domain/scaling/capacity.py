"""Replicas of every revision that is kept: the stable by its load, the canary by its share, both so that weights are
affordable. The stable never shrinks while a canary is there: it must be able to carry everything again; and neither
sleeps then, because a canary is judged on requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pagefleet_operator.domain.rollout.machine import Stage, reading, weight_of
from pagefleet_operator.domain.runtimes.catalog import slots_of
from pagefleet_operator.domain.scaling import autoscale
from pagefleet_operator.domain.scaling.autoscale import Wish
from pagefleet_operator.domain.scaling.policies import bounded
from pagefleet_operator.domain.spec.rollout import Rollout
from pagefleet_operator.domain.spec.scaling import Scaling, in_force
from pagefleet_operator.domain.status.journal import Journal
from pagefleet_operator.domain.status.observation import RevisionReading
from pagefleet_operator.domain.status.sample import ServiceLoad
from pagefleet_operator.domain.status.status import Phase, ScalingRecord, Status


@dataclass(frozen=True)
class Capacity:
    """`limit` (reason, message) is what stands in the stable's way, if anything; `needed` the load's need in replicas
    by revision, where it is known."""

    replicas: Mapping[str, int]
    records: tuple[ScalingRecord, ...]
    limit: tuple[str, str] | None = None
    needed: Mapping[str, float] | None = None


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
    last = {record.hash: record for record in before.revisions}
    allowed = in_force(scaling, now)

    def wish(revision: str, within: Scaling, share: float) -> Wish:
        record, kept = known.get(revision, ScalingRecord(revision)), last.get(revision)
        desired = kept.desired if kept is not None and (kept.desired or revision == before.stable) else None
        if within.external:
            message = reading(revisions, revision).refused
            return Wish(bounded(within.min, within), record, limit="Refused" if message else "", limit_message=message)
        found = replace(reading(revisions, revision), slots=slots_of(kept.spec) if kept is not None else None)
        return autoscale.wish(found, _part(load, share), desired, record, within, now)

    weights = {entry.revision: entry.weight / 100 for entry in stage.traffic}
    asleep = stage.stable in last and last[stage.stable].desired == 0 and before.stable == stage.stable
    may_sleep = bool(stage.traffic) and not stage.canary
    wished = wish(stage.stable, allowed if may_sleep else awake(allowed), weights.get(stage.stable, 1.0))
    current = last[stage.stable].desired if stage.stable in last else wished.replicas
    stable = max(wished.replicas, min(current, allowed.max)) if stage.canary else wished.replicas
    if (current or asleep) and stable != current:
        journal.note(_kind(current, stable), f"revision {stage.stable}: {wished.message or _bounds(allowed)}")
    kept, replicas = [wished.record], {stage.stable: stable}
    needed = {} if wished.needed is None else {stage.stable: wished.needed}
    if stage.canary:
        # spec.scaling.min is for who serves everybody; a canary's floor is its share.
        own = wish(stage.canary, awake(replace(allowed, min=1, external=False)), weights.get(stage.canary, 0.0))
        share = _share(stage, rollout, stable)
        count = share if scaling.external else max(share, own.replicas)
        if scaling.affordable is not None:
            count = max(1, min(count, scaling.affordable - stable))
        replicas[stage.canary] = count
        needed |= {} if own.needed is None else {stage.canary: own.needed}
        kept.append(own.record)
    records = tuple(record for record in kept if record != ScalingRecord(record.revision))
    fixed = wished.limit == "SignalsMissing" and wished.replicas <= allowed.min  # nothing could shrink anyway
    limit = (wished.limit, wished.limit_message) if wished.limit and not fixed else None
    return Capacity(replicas, records, limit, needed)


def awake(scaling: Scaling) -> Scaling:
    """At least one replica: somebody waits for it, or it is being judged."""
    return replace(scaling, idle_to_zero=None, min=max(1, scaling.min))


def _part(load: ServiceLoad | None, share: float) -> ServiceLoad | None:
    """A revision's part of what arrives at the service."""
    if load is None or share >= 1.0:
        return load
    return replace(load, arrivals=tuple(rate * share for rate in load.arrivals), held=math.ceil(load.held * share))


def _kind(current: int, replicas: int) -> str:
    if not replicas:
        return "ScaledToZero"
    return "Woken" if not current else "ScaledUp" if replicas > current else "ScaledDown"


def _bounds(scaling: Scaling) -> str:
    if scaling.external:
        return f"spec.scaling.min is {scaling.min}"
    return scaling.capped or f"spec.scaling asks for {scaling.min} to {scaling.max} now"


def _share(stage: Stage, rollout: Rollout, stable: int) -> int:
    """What the canary needs for the present weight; as much as the stable when it is being promoted."""
    if stage.record.phase is Phase.PROMOTING:
        return stable
    step = stage.record.step if stage.record.phase is not Phase.STARTING else 0
    return max(1, math.ceil(stable * weight_of(rollout, step) / 100))
