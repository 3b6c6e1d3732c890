"""`.spec.rollout` as typed values: durations in seconds, percentages as fractions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_contract.quantity import fraction, seconds
from pagefleet_operator.domain.spec.schema import step_kinds
from pagefleet_operator.domain.spec.schema.guard_signals import ERRORS, Source, source_of
from pagefleet_operator.domain.spec.schema.step_kinds import RolloutStep

DEFAULT_ROLLOUT: Mapping[str, Any] = {
    "steps": [{"weight": 10, "hold": "5m"}, {"weight": 50, "hold": "5m"}],
    "guard": {"latency": [{"signal": "ttft"}], "errors": {"maxRate": "1%"}},
}


@dataclass(frozen=True)
class LatencyGuard:
    """`histogram` (source Prometheus) is a metric with its matchers, "": the engines' own."""

    signal: str
    quantile: float
    max_increase: float
    confidence: float
    min_requests: int
    given: str | None = None
    histogram: str = ""

    @property
    def source(self) -> Source:
        return source_of(self.signal, self.given)


@dataclass(frozen=True)
class FreePages:
    """At least the share `least` of KV pages must be free; fewer are accepted for `grace` seconds."""

    least: float
    grace: float


@dataclass(frozen=True)
class Gate:
    """A PromQL value that must lie within [low, high]; asked every `interval` seconds."""

    name: str
    query: str
    low: float | None
    high: float | None
    interval: float


@dataclass(frozen=True)
class Guard:
    latency: tuple[LatencyGuard, ...]
    max_error_rate: float | None
    warmup_requests: int
    rollback_when_inconclusive: bool
    deadline: float
    free_pages: FreePages | None = None
    gates: tuple[Gate, ...] = ()
    error_source: Source = Source.GATEWAY

    @property
    def empty(self) -> bool:
        return not self.latency and self.max_error_rate is None and self.free_pages is None and not self.gates


@dataclass(frozen=True)
class Route:
    """Which requests get the canary, whatever its weight, and by which header requests stay with one revision."""

    header: Mapping[str, str] | None = None
    sticky_by: str | None = None


@dataclass(frozen=True)
class Rollout:
    steps: tuple[RolloutStep, ...]
    guard: Guard
    keep_previous: float
    alert_labels: Mapping[str, str] | None
    alerts_pause: bool = False
    watch: float = 0.0
    history: int = 10
    route: Route = Route()


def rollout(raw: Mapping[str, Any]) -> Rollout:
    after, alerts, route = raw.get("afterPromotion", {}), raw.get("alerts"), raw.get("route", {})
    return Rollout(
        steps=tuple(step_kinds.read(step) for step in raw.get("steps") or ()),
        guard=_guard(raw.get("guard", {})),
        keep_previous=seconds(after["keepPrevious"]) if "keepPrevious" in after else 0.0,
        alert_labels=alerts["matchLabels"] if alerts else None,
        alerts_pause=(alerts or {}).get("onAlert") == "pause",
        watch=seconds(after["watch"]) if "watch" in after else 0.0,
        history=raw.get("historyLimit", 10),
        route=Route(route.get("header"), route.get("stickyBy")),
    )


def _guard(raw: Mapping[str, Any]) -> Guard:
    errors, pages = raw.get("errors"), raw.get("freePages")
    return Guard(
        latency=tuple(_latency(entry) for entry in raw.get("latency") or ()),
        max_error_rate=fraction(errors["maxRate"]) if errors else None,
        warmup_requests=raw.get("warmupRequests", 0),
        rollback_when_inconclusive=raw.get("onInconclusive") == "rollback",
        deadline=seconds(raw.get("deadline", "2h")),
        free_pages=FreePages(fraction(pages["min"]), seconds(pages["for"])) if pages else None,
        gates=tuple(_gate(gate) for gate in raw.get("promql") or ()),
        error_source=source_of(ERRORS, (errors or {}).get("source")),
    )


def _gate(raw: Mapping[str, Any]) -> Gate:
    return Gate(raw["name"], raw["query"], raw.get("min"), raw.get("max"), seconds(raw["interval"]))


def _latency(raw: Mapping[str, Any]) -> LatencyGuard:
    return LatencyGuard(
        signal=raw["signal"],
        quantile=float(raw["quantile"]),
        max_increase=fraction(raw["maxIncrease"]),
        confidence=fraction(raw["confidence"]),
        min_requests=raw["minRequests"],
        given=raw.get("source"),
        histogram=raw.get("histogram", ""),
    )
