"""The gateway's Prometheus metrics. Counts what it is told; decides nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pagefleet_gateway.holding.holding import Holding
from pagefleet_gateway.measuring.access_log import Ended
from pagefleet_gateway.picking.ledger import Ledger

_LABELS = ("namespace", "service", "revision")
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """One registry per gateway; names are the contract's."""

    def __init__(self, ledger: Ledger, holding: Holding) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_InFlight(ledger, holding))
        self.wakeups = Counter(
            "pagefleet_gateway_wakeups",
            "Times a service without a pod got a request that waits for one",
            _LABELS[:2],
            registry=self.registry,
        )
        self._requests = Counter(
            "pagefleet_gateway_requests",
            "Requests that ended, by the answer's code; 0: the client went away before one",
            (*_LABELS, "code"),
            registry=self.registry,
        )
        self._ttft = self._times(
            "pagefleet_gateway_ttft_seconds",
            "Time from a request's first byte to its answer's first byte, streamed answers only",
        )
        self._e2e = self._times(
            "pagefleet_gateway_e2e_seconds", "Time from a request's first byte to its answer's last byte"
        )
        self._by_key = Counter(
            "pagefleet_gateway_key_requests",
            "Requests by the API key's name, and the answer's code",
            ("key", "code"),
            registry=self.registry,
        )
        self._key_tokens = Counter(
            "pagefleet_gateway_key_output_tokens",
            "Output tokens by the API key's name, where the engine says them",
            ("key",),
            registry=self.registry,
        )
        self.keys_valid = Gauge(
            "pagefleet_gateway_api_keys_valid",
            "1 while the API keys in force are those of the file, 0 when it cannot be used or there is none",
            registry=self.registry,
        )
        self._ejected = Gauge(
            "pagefleet_gateway_pods_ejected", "Pods left alone after failures", registry=self.registry
        )
        self._ejected.set_function(lambda: ledger.outliers.count(time.monotonic()))
        self.watch_synced = Gauge(
            "pagefleet_gateway_watch_synced",
            "1 once the objects of a kind were listed",
            ("kind",),
            registry=self.registry,
        )
        self.watch_restarts = Counter(
            "pagefleet_gateway_watch_restarts",
            "Watches that had to start again after an error",
            ("kind",),
            registry=self.registry,
        )

    def _times(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, _LABELS, registry=self.registry, buckets=_BUCKETS)

    def ended(self, ended: Ended) -> None:
        labels = (ended.namespace, ended.service, ended.revision)
        self._requests.labels(*labels, str(ended.code)).inc()
        if ended.outcome is not None and not ended.outcome.failed:
            self._e2e.labels(*labels).observe(ended.outcome.e2e)
            if ended.outcome.ttft is not None:
                self._ttft.labels(*labels).observe(ended.outcome.ttft)

    def key_asked(self, key: str, code: int, tokens: int | None) -> None:
        self._by_key.labels(key, str(code)).inc()
        if tokens is not None:
            self._key_tokens.labels(key).inc(tokens)

    def refused(self, namespace: str, service: str, code: int) -> None:
        """A request the picker answered itself; it met no revision."""
        self._requests.labels(namespace, service, "", str(code)).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _InFlight(Collector):
    def __init__(self, ledger: Ledger, holding: Holding) -> None:
        self._ledger, self._holding = ledger, holding

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "pagefleet_gateway_in_flight", "Requests sent to a revision and not over yet", labels=_LABELS
        )
        for key, count in self._ledger.by_revision().items():
            family.add_metric(key, count)
        yield family
        held = GaugeMetricFamily("pagefleet_gateway_held", "Requests that wait in the gateway", labels=_LABELS[:2])
        for service, waiting in self._holding.by_service().items():
            held.add_metric(service, waiting)
        yield held
