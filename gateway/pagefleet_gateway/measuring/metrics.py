"""The gateway's Prometheus metrics. Counts, and decides nothing.

The label sets of a service or a revision that is gone are removed GONE_SECONDS later, so that every scraper has read
their last values. Revisions that come and go therefore take no memory for ever.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pagefleet_contract.disaggregation import OUTCOMES
from pagefleet_contract.slo import Objective
from pagefleet_gateway.cluster.service import Service, ServiceKey
from pagefleet_gateway.cluster.state import RevisionKey
from pagefleet_gateway.cluster.steps import Steps, parts
from pagefleet_gateway.holding.holding import Holding
from pagefleet_gateway.limits.budgets import Budgets
from pagefleet_gateway.limits.charges import Used
from pagefleet_gateway.measuring.access_log import Completion
from pagefleet_gateway.measuring.exposition import Exposition, pieces
from pagefleet_gateway.measuring.objectives import ObjectiveCounters
from pagefleet_gateway.measuring.slices import End
from pagefleet_gateway.picking.ledger import Ledger, Ticket

_LABELS = ("namespace", "service", "revision")
GONE_SECONDS = 300.0
STEP_REMOVED = 20  # revisions whose label sets are removed in one step: two milliseconds
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """One registry per gateway. The names are part of the contract."""

    def __init__(self, ledger: Ledger, holding: Holding, budgets: Budgets | None = None) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_InFlight(ledger, holding))
        self.registry.register(_Months(budgets or Budgets()))
        self.page = Exposition(self.registry).page
        self._ledger = ledger
        self._codes: dict[RevisionKey, set[str]] = {}  # the label sets that there are
        self._gone: dict[RevisionKey, float] = {}  # since when
        self._wakeups = Counter(
            "pagefleet_gateway_wakeups",
            "Wake-ups: a request had to wait for a pod of a service that had none",
            _LABELS[:2],
            registry=self.registry,
        )
        self._requests = Counter(
            "pagefleet_gateway_requests",
            "Requests that ended, by the answer's status code; 0: the client went away before an answer",
            (*_LABELS, "code"),
            registry=self.registry,
        )
        self._ttft = self._times(
            "pagefleet_gateway_ttft_seconds",
            "Time from a request's last byte to the first token, streamed answers only",
        )
        self._e2e = self._times(
            "pagefleet_gateway_e2e_seconds", "Time from a request's last byte to its answer's last byte"
        )
        self._prefills = Counter(
            "pagefleet_gateway_prefills",
            "Requests for which a prefill pod was named, by what their decode pod says became of the prefill leg",
            (*_LABELS, "outcome"),
            registry=self.registry,
        )
        self._outcomes: dict[RevisionKey, set[str]] = {}  # of the label sets that there are
        self.objectives = ObjectiveCounters(self.registry)
        self._key_requests = Counter(
            "pagefleet_gateway_key_requests",
            "Requests that ended, by the API key's name and the answer's status code",
            ("key", "code"),
            registry=self.registry,
        )
        self._key_tokens = Counter(
            "pagefleet_gateway_key_tokens",
            "Tokens by the API key's name, the service that answered or was asked, and their kind (prompt, output): the engine's"
            " numbers, else estimates",
            ("key", *_LABELS[:2], "kind"),
            registry=self.registry,
        )
        self._keys_of: dict[ServiceKey, set[str]] = {}  # of the label sets that there are
        self.keys_valid = Gauge(
            "pagefleet_gateway_api_keys_valid",
            "1 while the API keys of the file are in force, 0 when the file is invalid or not configured",
            registry=self.registry,
        )
        self._ejected = Gauge(
            "pagefleet_gateway_pods_ejected",
            "Pods that get no requests for a while because they failed",
            registry=self.registry,
        )
        self._ejected.set_function(lambda: ledger.outliers.count(time.monotonic()))
        self.outcomes_dropped = Counter(
            "pagefleet_gateway_picker_outcomes_dropped",
            "Answers of requests from other gateways that came from no picked pod, or from one that was not named",
            registry=self.registry,
        )
        self.log_lines_dropped = Counter(
            "pagefleet_gateway_log_lines_dropped",
            "Lines of the access log and of the gateway's own log that were dropped because their reader was too slow",
            registry=self.registry,
        )
        self.watch_synced = Gauge(
            "pagefleet_gateway_watch_synced",
            "1 once all objects of a kind were listed",
            ("kind",),
            registry=self.registry,
        )
        self.watch_restarts = Counter(
            "pagefleet_gateway_watch_restarts",
            "Watches of the API server that began again after an error",
            ("kind",),
            registry=self.registry,
        )

    def _times(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, _LABELS, registry=self.registry, buckets=_BUCKETS)

    def record_completion(self, completion: Completion) -> None:
        key, outcome = (completion.namespace, completion.service, completion.revision), completion.outcome
        self._count(key, completion.code)
        if completion.prefilled in OUTCOMES:
            self._outcomes.setdefault(key, set()).add(completion.prefilled)
            self._prefills.labels(*key, completion.prefilled).inc()
        if outcome.end is End.ANSWERED and outcome.e2e is not None:
            self._e2e.labels(*key).observe(outcome.e2e)
        if outcome.ttft is not None and not outcome.booked:
            self._ttft.labels(*key).observe(outcome.ttft)

    def record_first_token(self, ticket: Ticket) -> None:
        if ticket.first_token is not None:
            key = (ticket.service.namespace, ticket.service.name, ticket.revision)
            self._codes.setdefault(key, set())
            self._ttft.labels(*key).observe(ticket.first_token)

    def record_wakeup(self, key: ServiceKey) -> None:
        self._codes.setdefault((*key, ""), set())
        self._wakeups.labels(*key).inc()

    def record_key_request(self, key: str, code: int, completion: Completion | None, used: Used | None) -> None:
        """Count a request of a key. `completion` None: it reached no service. `used`: what it cost, None where nothing was charged."""
        self._key_requests.labels(key, str(code)).inc()
        if used is not None and completion is not None:
            service = (completion.namespace, completion.service)
            self._keys_of.setdefault(service, set()).add(key)
            self._codes.setdefault((*service, ""), set())
            for kind, tokens in (("prompt", used.prompt), ("output", used.output)):
                self._key_tokens.labels(key, *service, kind).inc(tokens)

    def record_refusal(self, namespace: str, service: str, code: int) -> None:
        """Count a request that the picker refused; it was sent to no revision."""
        self._count((namespace, service, ""), code)

    def record_objective(self, key: RevisionKey, objective: Objective, missed: bool) -> None:
        """Count a request that kept or missed an objective; revision "" for one that was sent to none."""
        self._codes.setdefault(key, set())
        self.objectives.count(key, objective, missed)

    def retain(self, services: Mapping[ServiceKey, Service], revisions: Container[RevisionKey], now: float) -> Steps:
        """Remove the label sets of services and revisions that have been gone for GONE_SECONDS.

        A revision is there while it has a pod (then it is one of `revisions`), a weight or a request in flight.
        """
        yield from self.objectives.declare(services)
        in_flight: Container[RevisionKey] | None = None  # counted where a revision has neither pod nor weight
        gone: list[RevisionKey] = []
        for part in parts(self._codes):
            for key in part:
                if key in revisions or _is_named(key, services):
                    self._gone.pop(key, None)
                    continue
                in_flight = self._ledger.by_revision() if in_flight is None else in_flight
                if key in in_flight:
                    self._gone.pop(key, None)
                elif now - self._gone.setdefault(key, now) >= GONE_SECONDS:
                    gone.append(key)
            yield
        for some in parts(gone, STEP_REMOVED):
            for key in some:
                self._remove(key)
            yield

    def _remove(self, key: RevisionKey) -> None:
        """Remove the label sets of a revision, with "" those of its service."""
        for code in self._codes.pop(key):
            self._requests.remove(*key, code)
        for outcome in self._outcomes.pop(key, ()):
            self._prefills.remove(*key, outcome)
        for family in (self._ttft, self._e2e):
            family.remove(*key)
        self.objectives.remove(key)
        if not key[2]:
            self._wakeups.remove(*key[:2])
            for name in self._keys_of.pop(key[:2], ()):
                for kind in ("prompt", "output"):
                    self._key_tokens.remove(name, *key[:2], kind)
        del self._gone[key]

    def _count(self, key: RevisionKey, code: int) -> None:
        self._codes.setdefault(key, set()).add(str(code))
        self._requests.labels(*key, str(code)).inc()

    def text(self) -> bytes:
        """Return the whole page in one step. A scrape gets `page`."""
        return "".join(pieces(self.registry)).encode()


def _is_named(key: RevisionKey, services: Mapping[ServiceKey, Service]) -> bool:
    """Whether a service names the revision: by a weight, or "" by being there. Requests of no service have no names at all."""
    service = services.get(key[:2])
    if service is None:
        return key == ("", "", "")
    return not key[2] or any(name == key[2] for name, _ in service.weights)


class _InFlight(Collector):
    def __init__(self, ledger: Ledger, holding: Holding) -> None:
        self._ledger, self._holding = ledger, holding

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "pagefleet_gateway_in_flight", "Requests that were sent to a revision and have not ended", labels=_LABELS
        )
        for key, count in self._ledger.by_revision().items():
            family.add_metric(key, count)
        yield family
        held = GaugeMetricFamily(
            "pagefleet_gateway_held", "Requests that wait in the gateway for a pod", labels=_LABELS[:2]
        )
        for service, count in self._holding.queued_by_service().items():
            held.add_metric(service, count)
        yield held


class _Months(Collector):
    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "pagefleet_gateway_key_month_tokens",
            "Tokens that an API key has used in the calendar month (UTC), in all gateway pods: every one states the same",
            labels=("key",),
        )
        for key, tokens in self._budgets.totals().items():
            family.add_metric((key,), tokens)
        yield family
