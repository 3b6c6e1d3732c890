"""The batches server's Prometheus metrics. Counts, and decides nothing."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from pagefleet_batches.jobs.batch import ENDED, Status
from pagefleet_batches.jobs.lines import ENDPOINTS


class Metrics:
    """One registry per server. No label has a value that a client made up."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.lines = Counter(
            "pagefleet_batches_lines",
            "Lines that ended; outcome is completed or failed",
            ("endpoint", "outcome"),
            registry=self.registry,
        )
        self.sent = Counter(
            "pagefleet_batches_requests",
            "Requests to the gateway, by the answer's status code; 0: none came",
            ("code",),
            registry=self.registry,
        )
        self.ended = Counter(
            "pagefleet_batches_ended", "Batches that ended, by their status", ("status",), registry=self.registry
        )
        for endpoint in ENDPOINTS:
            for outcome in ("completed", "failed"):
                self.lines.labels(endpoint, outcome)
        for status in Status:
            if status in ENDED:
                self.ended.labels(status.value)
        self.active = self._gauge("pagefleet_batches_active", "Batches that have not ended")
        self.pending = self._gauge("pagefleet_batches_lines_pending", "Lines without an answer, of batches in progress")
        self.in_flight = self._gauge("pagefleet_batches_in_flight", "Lines that the gateway has")
        self.limit = self._gauge(
            "pagefleet_batches_concurrency_limit", "Lines that the gateway may have now, of all models"
        )
        self.next_expiry = self._gauge(
            "pagefleet_batches_next_expiry_seconds", "Seconds until the next batch expires; a day where there is none"
        )
        self.stored = self._gauge("pagefleet_batches_stored_bytes", "Bytes of all files")
        self.free = self._gauge("pagefleet_batches_free_bytes", "Bytes that uploads may still take")
        self.ready = self._gauge("pagefleet_batches_ready", "1 while the gateway lets this server send lines")
        self.keys_valid = self._gauge(
            "pagefleet_batches_api_keys_valid", "1 while the content of the API keys file is in force"
        )

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)
