"""What the sidecar counts, as Prometheus text that stands after the engine's own page."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from pagefleet_contract.disaggregation import OUTCOMES

_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._prefills = Counter(
            "pagefleet_sidecar_prefills",
            "Requests for which the gateway named a prefill pod, by what became of the prefill leg",
            ("outcome",),
            registry=self.registry,
        )
        for outcome in OUTCOMES:
            self._prefills.labels(outcome)
        self._seconds = Histogram(
            "pagefleet_sidecar_prefill_seconds",
            "Time of prefill legs that prefill pods have computed, as the decode pod sees it",
            registry=self.registry,
            buckets=_BUCKETS,
        )

    def record(self, outcome: str, seconds: float | None) -> None:
        """Count a prefill leg; `seconds` is None where no prompt was computed."""
        self._prefills.labels(outcome).inc()
        if seconds is not None:
            self._seconds.observe(seconds)

    def page(self) -> bytes:
        return generate_latest(self.registry)
