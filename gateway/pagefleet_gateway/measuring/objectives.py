"""Which of a service's objectives (`spec.slo`) a request kept or missed, and the metrics that count it.

A request counts when it has ended. Its times are those that the client saw, so the time in the gateway's queue is part of them.
A client that leaves before the bound counts nowhere. One that leaves later was kept waiting for longer than promised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from pagefleet_contract.slo import ERRORS, Objective
from pagefleet_gateway.cluster.service import Service, ServiceKey
from pagefleet_gateway.cluster.state import RevisionKey
from pagefleet_gateway.cluster.steps import Steps, parts
from pagefleet_gateway.measuring.slices import End, Outcome

Judged = tuple[Objective, bool]  # an objective, and whether the request missed it
LABELS = ("namespace", "service", "revision", "objective")
SHED_FROM = 500  # the status from which a refusal of the gateway itself is an error


def judge(service: Service, outcome: Outcome) -> Iterator[Judged]:
    """Yield the objectives in which a request counts. One that a header has sent to the canary, or that this service answered
    in another's place, counts in none."""
    if outcome.forced or outcome.fallback:
        return
    for objective in service.objectives:
        if service.is_of(objective, outcome.priority):
            missed = _missed(objective, outcome)
            if missed is not None:
                yield objective, missed


def judge_refusal(service: Service, status: int, priority: int) -> Iterator[Judged]:
    """Yield the objectives that a request missed because the gateway itself answered it with 5xx."""
    if status >= SHED_FROM:
        yield from ((one, True) for one in service.objectives if one.signal == ERRORS and service.is_of(one, priority))


def _missed(objective: Objective, outcome: Outcome) -> bool | None:
    """Whether a request missed an objective; None when it does not count."""
    if objective.seconds is None:
        return outcome.failed if outcome.end in (End.ANSWERED, End.FAILED, End.ELSEWHERE) else None
    match objective.signal:
        case "ttft":
            measured, waiting = outcome.ttft, outcome.waiting
        case "e2e":
            measured, waiting = outcome.e2e if outcome.end is End.ANSWERED else None, True
        case _:
            return (
                outcome.tpot > objective.seconds if outcome.end is End.ANSWERED and outcome.tpot is not None else None
            )
    if measured is not None:
        return measured + outcome.held > objective.seconds
    if not waiting:
        return None
    if outcome.end is End.LEFT:
        return True if outcome.age + outcome.held > objective.seconds else None
    return True if outcome.failed else None


class ObjectiveCounters:
    """The counters of kept and missed objectives by revision; revision "" for requests that were sent to none."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "pagefleet_gateway_slo_requests",
            "Requests that count in an objective of spec.slo",
            LABELS,
            registry=registry,
        )
        self._missed = Counter(
            "pagefleet_gateway_slo_missed",
            "Requests that missed an objective of spec.slo",
            LABELS,
            registry=registry,
        )
        self._allowed = Gauge(
            "pagefleet_gateway_slo_allowed_ratio",
            "Share of requests that may miss an objective of spec.slo",
            (*LABELS[:2], LABELS[3]),
            registry=registry,
        )
        self._names: dict[RevisionKey, set[str]] = {}  # the label sets that there are
        self._declared: dict[ServiceKey, tuple[Objective, ...]] = {}

    def count(self, key: RevisionKey, objective: Objective, missed: bool) -> None:
        self._names.setdefault(key, set()).add(objective.name)
        self._requests.labels(*key, objective.name).inc()
        self._missed.labels(*key, objective.name).inc(missed)

    def declare(self, services: Mapping[ServiceKey, Service]) -> Steps:
        """Export the allowed share of each objective that there is now."""
        for part in parts(services):
            for key in part:
                self._declare(key, services[key].objectives if key in services else ())
            yield
        for some in parts(self._declared):
            for key in some:
                if key not in services:
                    self._declare(key, ())
            yield

    def _declare(self, key: ServiceKey, objectives: tuple[Objective, ...]) -> None:
        before = self._declared.get(key, ())
        if before == objectives:
            return
        for objective in before:
            self._allowed.remove(*key, objective.name)
        for objective in objectives:
            self._allowed.labels(*key, objective.name).set(objective.allowed)
        self._declared.pop(key, None)
        if objectives:
            self._declared[key] = objectives

    def remove(self, key: RevisionKey) -> None:
        """Remove the label sets of a revision."""
        for name in self._names.pop(key, ()):
            self._requests.remove(*key, name)
            self._missed.remove(*key, name)
