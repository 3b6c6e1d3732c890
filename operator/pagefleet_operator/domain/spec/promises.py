"""What `.spec.slo` adds to the rest of the spec: bounds of the guard and a target of the scaler that the user left out."""

from __future__ import annotations

from pagefleet_contract.slo import Objective
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard, Rollout
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.spec.schema.guard_signals import Source
from pagefleet_operator.domain.spec.schema.slo import SLO

TARGET_QUANTILE = 0.95  # of the times of spec.scaling.target


def to_rollout(given: Rollout, slo: SLO) -> Rollout:
    """The rollout whose guard holds a canary to the promises as well."""
    return replace(given, guard=to_guard(given.guard, slo)) if slo.objectives else given


def to_guard(guard: Guard, slo: SLO) -> Guard:
    """The guard with an absolute bound on each latency that it judges without one and that an objective promises."""
    return replace(guard, latency=tuple(_bounded(entry, slo) for entry in guard.latency))


def to_scaling(given: Scaling, slo: SLO) -> Scaling:
    """The scaling with the promised times to the first token and per token as its targets, where the spec has no others."""
    target = given.target
    ttft = target.ttft if target.ttft is not None else bound(slo, "ttft", TARGET_QUANTILE)
    tpot = target.tpot if target.tpot is not None else bound(slo, "tpot", TARGET_QUANTILE)
    return replace(given, target=replace(target, ttft=ttft, tpot=tpot))


def bound(slo: SLO, signal: str, quantile: float) -> float | None:
    """The seconds that are promised to a quantile of all requests; None where nothing is."""
    found = [one.seconds for one in slo.objectives if one.seconds is not None and _about(one, signal, quantile)]
    return min(found, default=None)


def _about(objective: Objective, signal: str, quantile: float) -> bool:
    same_quantile = abs(1 - objective.allowed - quantile) < 1e-6
    return objective.signal == signal and not objective.priority and same_quantile


def _bounded(entry: LatencyGuard, slo: SLO) -> LatencyGuard:
    if entry.max_seconds is not None or entry.source is not Source.GATEWAY:
        return entry
    return replace(entry, max_seconds=bound(slo, entry.signal, entry.quantile))
