"""The replicas of every revision in use. The stable revision follows its load, the canary its share of the requests.

The stable revision never shrinks while there is a canary, because it must be able to carry everything again. Neither of
them sleeps then, because a canary is judged on requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.base.revision_spec import RevisionSpec, revision_spec
from pagefleet_operator.domain.cost.spending import capped
from pagefleet_operator.domain.rollout.steps import weight_of
from pagefleet_operator.domain.runtimes.catalog import slots_of
from pagefleet_operator.domain.scaling import autoscale
from pagefleet_operator.domain.scaling.autoscale import Recommendation
from pagefleet_operator.domain.scaling.policies import bounded
from pagefleet_operator.domain.spec.rollout import Rollout
from pagefleet_operator.domain.spec.scaling import Scaling, in_force
from pagefleet_operator.domain.spec.traffic import Backend, Provider
from pagefleet_operator.domain.status.observation import Observation, RevisionReading
from pagefleet_operator.domain.status.sample import ServiceLoad
from pagefleet_operator.domain.status.stage import Stage, reading_of
from pagefleet_operator.domain.status.status import Phase, RevisionRecord, ScalingRecord, Status
from pagefleet_operator.domain.status.turn import SpecTurn


@dataclass(frozen=True)
class Capacity:
    """`replicas` by revision. `limit` (reason, message) is the obstacle of the stable revision, None without one.

    `needed` is the need of the load in replicas, by revision, where it is known.
    """

    replicas: Mapping[str, int]
    records: tuple[ScalingRecord, ...]
    limit: tuple[str, str] | None = None
    needed: Mapping[str, float] | None = None


def decide(turn: SpecTurn, stage: Stage) -> Capacity:
    """The replicas of the stable revision and of the canary, with the records for the next decision."""
    observation, scaling, now = turn.observation, turn.spec.scaling, turn.now
    before = {record.hash: record for record in observation.status.revisions}
    known = before.get(stage.stable)
    spending = observation.status.spending
    allowed = capped(in_force(replace(scaling, affordable=_affordable(turn, known)), now), spending)
    may_sleep = bool(stage.traffic) and not stage.canary and (allowed.external or not _unheld(turn))
    own = allowed if may_sleep else awake(allowed)
    if stage.canary and known is not None:
        own = replace(own, min=max(own.min, min(known.desired, own.max)))
    stable = _recommended(stage.stable, stage, observation, own, now)
    count = stable.replicas
    current = known.desired if known is not None else count
    asleep = current == 0 and known is not None and observation.status.stable == stage.stable
    if (current or asleep) and count != current:
        turn.journal.note(_kind(current, count), f"revision {stage.stable}: {stable.message or _bounds(allowed)}")
    if stable.limit == autoscale.UNREACHABLE and _record(observation.status, stage.stable).floor is None:
        turn.journal.note(autoscale.UNREACHABLE, stable.limit_message, warning=True)
    recommended, replicas = {stage.stable: stable}, {stage.stable: count}
    if stage.canary:
        tried = before.get(stage.canary)
        left = in_force(replace(scaling, affordable=_affordable(turn, tried, known, count)), now)
        beside = count + _pods(turn, tried).prefill_replicas  # the canary has prefill pods of its own
        bounds = _canary_bounds(capped(left, spending), _share(stage, turn.rollout, count), beside)
        recommended[stage.canary] = _recommended(stage.canary, stage, observation, bounds, now)
        replicas[stage.canary] = recommended[stage.canary].replicas
    records = (entry.record for entry in recommended.values())
    nothing_to_shrink = stable.limit == "SignalsMissing" and stable.replicas <= allowed.min
    return Capacity(
        replicas,
        tuple(record for record in records if record != ScalingRecord(record.revision)),
        (stable.limit, stable.limit_message)
        if stable.limit and not nothing_to_shrink
        else _met_lately(stable, observation, allowed),
        {name: entry.needed for name, entry in recommended.items() if entry.needed is not None},
    )


def _unheld(turn: SpecTurn) -> bool:
    """Whether clients come by a route to Services: nobody counts their requests, and nobody holds the one that would wake a service."""
    route = turn.observation.status.route
    routed = turn.spec.traffic.provider is Provider.GATEWAY_API
    return routed and route is not None and route.backend == Backend.SERVICE.value


def _met_lately(stable: Recommendation, observation: Observation, allowed: Scaling) -> tuple[str, str] | None:
    """The maximum that the last decision met, as long as its burst counts (`panic.window`); None without one.

    Bursts that come again and again are one shortage: the condition does not change between them, and an alert can wait for it.
    """
    told = any(
        one.type == "Scaling" and one.reason in (autoscale.AT_MAXIMUM, autoscale.COST_CEILING)
        for one in observation.status.conditions
    )
    if stable.limit or not told or stable.record.panic_since is None or stable.replicas < allowed.max:
        return None
    return autoscale.at_most(stable.replicas, allowed)


def awake(scaling: Scaling) -> Scaling:
    """At least one replica: a request waits for it, or it is being judged."""
    return replace(scaling, idle_to_zero=None, min=max(1, scaling.min))


def _pods(turn: SpecTurn, record: RevisionRecord | None) -> RevisionSpec:
    """What affects the pods of a revision: of the one that is new now, as the spec has it."""
    return revision_spec(record.spec) if record is not None and record.spec else turn.spec.pods


def _affordable(
    turn: SpecTurn, revision: RevisionRecord | None, stable: RevisionRecord | None = None, count: int = 0
) -> int | None:
    """The replicas that `spec.cost.ceilingPerHour` pays for, by what a replica of the revision costs; None without a ceiling.

    A canary has what the stable revision leaves, with its `count` replicas. Its replicas may cost more or less than the stable's, which
    must not lose replicas because an edit of the spec makes later ones dearer.
    """
    cost, spares = turn.spec.cost, turn.spec.scaling.spares
    own = _pods(turn, revision)
    if not count:
        paid = cost.affords(own)
        return None if paid is None else paid - spares - own.prefill_replicas
    serving = _pods(turn, stable)
    left = cost.affords(own, spent=(count + spares + serving.prefill_replicas) * (cost.of_replica(serving) or 0.0))
    return None if left is None else count + left


def _canary_bounds(scaling: Scaling, share: int, beside: int) -> Scaling:
    """The canary's bounds: at least its share, because spec.scaling.min is for the revision that serves everybody.

    Together with `beside` replicas of the stable they are within the cost ceiling. In mode external the canary has its share.
    """
    most = scaling.max if scaling.affordable is None else max(1, min(scaling.max, scaling.affordable - beside))
    least = min(share, most)
    return replace(scaling, min=least, max=most, idle_to_zero=None)


def _record(status: Status, revision: str) -> ScalingRecord:
    """What is stored of a revision's scaling; a new record where nothing is."""
    return {one.revision: one for one in status.scaling}.get(revision, ScalingRecord(revision))


def _recommended(revision: str, stage: Stage, observation: Observation, scaling: Scaling, now: float) -> Recommendation:
    status = observation.status
    record = _record(status, revision)
    last = {one.hash: one for one in status.revisions}.get(revision)
    reading = reading_of(observation.revisions, revision)
    if scaling.external:
        limit = "Refused" if reading.refused else ""
        return Recommendation(bounded(scaling.min, scaling), record, limit=limit, limit_message=reading.refused)
    desired = last.desired if last is not None and (last.desired or revision == status.stable) else None
    reading = replace(reading, slots=slots(reading, last.spec if last is not None else None))
    return autoscale.recommend(reading, _share_of_load(stage, observation, revision), desired, record, scaling, now)


def slots(reading: RevisionReading, snapshot: Mapping[str, object] | None) -> int | None:
    """The sequences that a replica runs at once: as its engines report them, else by the spec or the runtime's default.

    The engines' own number comes first, because an image may have another default than the runtime's table.
    """
    reported = [pod.load.slots for pod in reading.pods if pod.load is not None and pod.load.slots]
    if reported:
        return min(reported)
    return None if snapshot is None else slots_of(revision_spec(snapshot))


def _share_of_load(stage: Stage, observation: Observation, revision: str) -> ServiceLoad | None:
    """A revision's part of the service's load, by its weight. The stable revision counts as whole without weights."""
    weights = {entry.revision: entry.weight / 100 for entry in stage.traffic}
    return part(observation.load, weights.get(revision, 1.0 if revision == stage.stable else 0.0))


def part(load: ServiceLoad | None, share: float) -> ServiceLoad | None:
    """The share of a service's arrivals and held requests."""
    if load is None or share >= 1.0:
        return load
    return replace(load, arrivals=tuple([rate * share for rate in load.arrivals]), held=math.ceil(load.held * share))


def _kind(current: int, replicas: int) -> str:
    if not replicas:
        return "ScaledToZero"
    return "Woken" if not current else "ScaledUp" if replicas > current else "ScaledDown"


def _bounds(scaling: Scaling) -> str:
    if scaling.external:
        return f"spec.scaling.min is {scaling.min}"
    return scaling.capped or f"spec.scaling allows {scaling.min} to {scaling.max} replicas now"


def _share(stage: Stage, rollout: Rollout, stable: int) -> int:
    """The replicas that the canary needs for its present weight; as many as the stable's while it is promoted."""
    if stage.record.phase is Phase.PROMOTING:
        return stable
    step = stage.record.step if stage.record.phase is not Phase.STARTING else 0
    return max(1, math.ceil(stable * weight_of(rollout, step) / 100))
