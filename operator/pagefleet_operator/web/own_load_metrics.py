"""Metrics of load, need and cost by service: for people, and for an HPA or KEDA that scales a service in mode external.

The load's metrics are those that `domain.scaling.signals` lists.
"""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge

from pagefleet_operator.domain.scaling.load import sample
from pagefleet_operator.domain.scaling.signals import EXPORTED, ServiceReadings
from pagefleet_operator.domain.status.engine_load import total
from pagefleet_operator.domain.status.observation import Observation, RevisionReading
from pagefleet_operator.domain.status.plan import Plan

SERVICE = ("namespace", "service")
MAX_GAP_SECONDS = 60.0  # between two decisions that are billed; a longer time passed without an operator
TOKENS, COST = "pagefleet_tokens_per_second", "pagefleet_cost_per_hour"
PRICE = "pagefleet_cost_per_1k_tokens"
SPARES, AWAKE = "pagefleet_spares", "pagefleet_spares_awake"
# By name; the series of a service exist while its number is known.
GAUGES = {exported.name: exported.text for exported in EXPORTED} | {
    SPARES: "Warm spares that are loaded, asleep or not",
    AWAKE: "Warm spares that stand in for replicas",
    COST: "What the ready replicas, the warm spares and the prefill pods cost",
    PRICE: "What 1000 generated tokens cost now",
}
ServiceKey = tuple[str, str]


class LoadMetrics:
    """The gauges of every service, and the counter of its cost."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.needed = Gauge(
            "pagefleet_replicas_needed",
            "Replicas that the load needs, not rounded",
            [*SERVICE, "revision"],
            registry=registry,
        )
        self._gauges = {name: Gauge(name, text, SERVICE, registry=registry) for name, text in GAUGES.items()}
        self.cost = Counter(
            "pagefleet_cost",
            "What ready replicas, warm spares and prefill pods have cost since the operator began to look",
            SERVICE,
            registry=registry,
        )
        self._shown: dict[ServiceKey, set[str]] = {}
        self._revisions: dict[ServiceKey, set[str]] = {}
        self._billed: dict[ServiceKey, float] = {}
        self._costing: set[ServiceKey] = set()

    def planned(self, observation: Observation, plan: Plan) -> None:
        """Export the numbers of a decision."""
        key = (observation.namespace, observation.name)
        values = _values(observation, plan)
        for name, value in values.items():
            self._gauges[name].labels(*key).set(value)
        self._drop(key, self._shown.get(key, set()) - set(values))
        self._shown[key] = set(values)
        for revision, need in plan.needed.items():
            self.needed.labels(*key, revision).set(need)
        for revision in self._revisions.get(key, set()) - set(plan.needed):
            self.needed.remove(*key, revision)
        self._revisions[key] = set(plan.needed)
        now, before = time.monotonic(), self._billed.get(key)
        if COST in values and before is not None and now - before < MAX_GAP_SECONDS:
            self._costing.add(key)
            self.cost.labels(*key).inc(values[COST] * (now - before) / 3600)
        self._billed[key] = now

    def forget(self, namespace: str, service: str) -> None:
        """Remove the series of a deleted service."""
        key = (namespace, service)
        self._drop(key, self._shown.pop(key, set()))
        for revision in self._revisions.pop(key, set()):
            self.needed.remove(*key, revision)
        self._billed.pop(key, None)
        if key in self._costing:
            self._costing.discard(key)
            self.cost.remove(*key)

    def _drop(self, key: ServiceKey, names: set[str]) -> None:
        for name in names:
            self._gauges[name].remove(*key)


def _values(observation: Observation, plan: Plan) -> dict[str, float]:
    """The numbers that are known, by the name of their gauge."""
    samples = [sample(reading, 0.0) for reading in observation.revisions.values()]
    ready, fresh = sum(one.serving for one in samples), sum(one.fresh for one in samples)
    service = ServiceReadings(ready, total(one.load for one in samples) if fresh == ready else None, observation.load)
    values = {one.name: value for one in EXPORTED if (value := one.value(service)) is not None}
    spares = [spare for reading in observation.revisions.values() for spare in reading.spares]
    if spares:
        values[AWAKE] = sum(1 for spare in spares if spare.pod.ready)
        values[SPARES] = values[AWAKE] + sum(map(_loaded, observation.revisions.values()))
    if plan.replica_cost is not None:
        prices, usual = plan.replica_costs, plan.replica_cost  # a revision's replicas have its own accelerators
        held = {name: one.ready + _loaded(one) + one.prefill_ready for name, one in observation.revisions.items()}
        values[COST] = sum(count * prices.get(name, usual) for name, count in held.items())
        if values.get(TOKENS):
            values[PRICE] = values[COST] / 3.6 / values[TOKENS]
    return values


def _loaded(reading: RevisionReading) -> int:
    """The warm spares that are asleep, or will be."""
    return sum(1 for spare in reading.spares if not spare.pod.ready and (spare.loaded or spare.asleep))
