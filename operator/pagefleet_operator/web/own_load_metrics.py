"""Metrics of load, need and cost by service: what people see, and what an HPA or KEDA scales on in mode external."""

from __future__ import annotations

import math
import time

from prometheus_client import CollectorRegistry, Counter, Gauge

from pagefleet_operator.domain.scaling.load import sample
from pagefleet_operator.domain.status.engine_load import total
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.plan import Plan

SERVICE = ("namespace", "service")
LONGEST_GAP = 60.0  # seconds between two decisions that are billed: not what passed while nobody looked
Key = tuple[str, str]


class LoadMetrics:
    """A service's series exist while its load is known."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *more: str) -> Gauge:
            return Gauge(name, text, [*SERVICE, *more], registry=registry)

        self.needed = gauge("pagefleet_replicas_needed", "Replicas that the load needs, not rounded", "revision")
        self._gauges = {
            "running": gauge("pagefleet_requests_running", "Requests that replicas work on"),
            "waiting": gauge("pagefleet_requests_waiting", "Requests queued in replicas and held in gateways"),
            "free": gauge("pagefleet_kv_pages_free_ratio", "Free share of the replicas' KV pages, 0 to 1"),
            "arrivals": gauge("pagefleet_arrivals_per_second", "Requests that come in, of the last minute"),
            "tokens": gauge("pagefleet_tokens_per_second", "Tokens that replicas generate"),
            "spares": gauge("pagefleet_spares", "Warm spares that are loaded, asleep or not"),
            "awake": gauge("pagefleet_spares_awake", "Warm spares that stand in for replicas"),
            "hour": gauge("pagefleet_cost_per_hour", "What the ready replicas and the warm spares cost"),
            "thousand": gauge("pagefleet_cost_per_1k_tokens", "What 1000 generated tokens cost now"),
        }
        self.cost = Counter(
            "pagefleet_cost",
            "What ready replicas and warm spares have cost since the operator began to look",
            SERVICE,
            registry=registry,
        )
        self._shown: dict[Key, set[str]] = {}
        self._revisions: dict[Key, set[str]] = {}
        self._billed: dict[Key, float] = {}
        self._costing: set[Key] = set()

    def planned(self, seen: Observation, plan: Plan) -> None:
        key = (seen.namespace, seen.name)
        values = _values(seen, plan)
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
        if "hour" in values and before is not None and now - before < LONGEST_GAP:
            self._costing.add(key)
            self.cost.labels(*key).inc(values["hour"] * (now - before) / 3600)
        self._billed[key] = now

    def forget(self, namespace: str, service: str) -> None:
        key = (namespace, service)
        self._drop(key, self._shown.pop(key, set()))
        for revision in self._revisions.pop(key, set()):
            self.needed.remove(*key, revision)
        self._billed.pop(key, None)
        if key in self._costing:
            self._costing.discard(key)
            self.cost.remove(*key)

    def _drop(self, key: Key, names: set[str]) -> None:
        for name in names:
            self._gauges[name].remove(*key)


def _values(seen: Observation, plan: Plan) -> dict[str, float]:
    samples = [sample(found, 0.0) for found in seen.revisions.values()]
    ready, fresh = sum(s.serving for s in samples), sum(s.fresh for s in samples)
    engines, load = total(s.load for s in samples), seen.load
    spares = [spare for found in seen.revisions.values() for spare in found.spares]
    resting = sum(1 for spare in spares if not spare.pod.ready and (spare.loaded or spare.asleep))
    values: dict[str, float] = {}
    if spares:
        values["awake"] = sum(1 for spare in spares if spare.pod.ready)
        values["spares"] = values["awake"] + resting
    if fresh == ready:
        held = load.held if load is not None else 0
        values["running"] = engines.running
        values["waiting"] = engines.waiting + held
        if not ready or _counts_tokens(seen):
            values["tokens"] = engines.tokens or 0.0
        if engines.kv_share_free is not None:
            values["free"] = engines.kv_share_free
    if load is not None and math.isfinite(load.age) and load.arrivals:
        newest = load.arrivals[-6:]
        values["arrivals"] = sum(newest) / len(newest)
    if plan.replica_cost is not None:
        values["hour"] = (ready + resting) * plan.replica_cost
        if values.get("tokens"):
            values["thousand"] = values["hour"] / 3.6 / values["tokens"]
    return values


def _counts_tokens(seen: Observation) -> bool:
    """Whether an engine reports how many tokens it generates."""
    loads = (pod.load for found in seen.revisions.values() for pod in found.pods)
    return any(load is not None and load.tokens is not None for load in loads)
