"""The operator's own Prometheus metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pagefleet_operator.domain.status.plan import Plan
from pagefleet_operator.web.own_llm_cost_metrics import LLMCostMetrics
from pagefleet_operator.web.own_load_metrics import LoadMetrics
from pagefleet_operator.web.own_rollout_metrics import RolloutMetrics


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Histogram(
            "pagefleet_operator_reconcile_seconds", "Time of one reconcile", registry=self.registry
        )
        self.errors = Counter(
            "pagefleet_operator_reconcile_errors", "Reconciles that failed", ["kind"], registry=self.registry
        )
        self.queue = Gauge("pagefleet_operator_queue_depth", "Services due for a decision", registry=self.registry)
        self.lag = Gauge("pagefleet_operator_loop_lag_seconds", "Event loop lag, last measured", registry=self.registry)
        self.leader = Gauge("pagefleet_operator_leader", "1 when this replica decides", registry=self.registry)
        self.watch_restarts = Counter(
            "pagefleet_operator_watch_restarts",
            "Restarts of kopf because a watch of the API server had ended",
            registry=self.registry,
        )
        self.alerts = Counter(
            "pagefleet_operator_alerts",
            "Alerts of the webhook by outcome: accepted, refused (a label is no name), unmatched, failed",
            ["outcome"],
            registry=self.registry,
        )
        service = ["namespace", "service"]
        self.decisions = Counter(
            "pagefleet_operator_decisions", "Decisions taken", [*service, "kind"], registry=self.registry
        )
        self.replicas = Gauge(
            "pagefleet_replicas", "Replicas of a revision", [*service, "revision", "state"], registry=self.registry
        )
        self.prefill = Gauge(
            "pagefleet_prefill_replicas",
            "Prefill pods of a revision",
            [*service, "revision", "state"],
            registry=self.registry,
        )
        self.weight = Gauge("pagefleet_weight", "Percent of requests", [*service, "revision"], registry=self.registry)
        self.load = LoadMetrics(self.registry)
        self.llm_cost = LLMCostMetrics(self.registry)
        self._rollout = RolloutMetrics(self.registry)
        self._kinds: dict[tuple[str, str], set[str]] = {}  # of the decisions that were counted
        self._series: dict[tuple[str, str], set[str]] = {}
        self._prefill_series: dict[tuple[str, str], set[str]] = {}

    def planned(self, namespace: str, service: str, plan: Plan) -> None:
        """Export a plan's numbers, and remove the series of revisions that no longer exist."""
        self._rollout.planned(namespace, service, plan)
        for event in plan.events:
            self._kinds.setdefault((namespace, service), set()).add(event.reason)
            self.decisions.labels(namespace, service, event.reason).inc()
        weights = {entry.revision: entry.weight for entry in plan.status.traffic}
        # A revision that sleeps has traffic and no pods. Its zeros show alerts that a wake-up is no outage.
        names = {
            record.hash for record in plan.status.revisions if record.desired or record.ready or record.hash in weights
        }
        for record in plan.status.revisions:
            if record.hash in names:
                self.replicas.labels(namespace, service, record.hash, "ready").set(record.ready)
                self.replicas.labels(namespace, service, record.hash, "desired").set(record.desired)
                self.weight.labels(namespace, service, record.hash).set(weights.get(record.hash, 0))
        self._drop(namespace, service, self._series.get((namespace, service), set()) - names)
        self._series[namespace, service] = names
        having = {record.hash: record.prefill for record in plan.status.revisions if record.prefill is not None}
        for revision, prefill in having.items():
            self.prefill.labels(namespace, service, revision, "ready").set(prefill.ready)
            self.prefill.labels(namespace, service, revision, "desired").set(prefill.desired)
        self._drop_prefill(namespace, service, self._prefill_series.pop((namespace, service), set()) - set(having))
        if having:
            self._prefill_series[namespace, service] = set(having)

    def forget(self, namespace: str, service: str) -> None:
        """Remove the series of a deleted service."""
        for kind in self._kinds.pop((namespace, service), set()):
            self.decisions.remove(namespace, service, kind)
        self.load.forget(namespace, service)
        self.llm_cost.forget(namespace, service)
        self._rollout.forget(namespace, service)
        self._drop(namespace, service, self._series.pop((namespace, service), set()))
        self._drop_prefill(namespace, service, self._prefill_series.pop((namespace, service), set()))

    def _drop(self, namespace: str, service: str, revisions: set[str]) -> None:
        for revision in revisions:
            for state in ("ready", "desired"):
                self.replicas.remove(namespace, service, revision, state)
            self.weight.remove(namespace, service, revision)

    def _drop_prefill(self, namespace: str, service: str, revisions: set[str]) -> None:
        for revision in revisions:
            for state in ("ready", "desired"):
                self.prefill.remove(namespace, service, revision, state)

    def text(self) -> bytes:
        return generate_latest(self.registry)
