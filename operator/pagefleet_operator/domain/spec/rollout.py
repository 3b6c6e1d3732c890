"""`.spec.rollout` as typed values: durations in seconds, percentages as fractions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagefleet_contract.quantity import fraction, seconds
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.spec.schema import step_kinds
from pagefleet_operator.domain.spec.schema.guard_signals import ERRORS, Source, source_of
from pagefleet_operator.domain.spec.schema.rollout import OnInconclusive
from pagefleet_operator.domain.spec.schema.step_kinds import RolloutStep, StepKind

DEFAULT_STEPS: Sequence[Mapping[str, Any]] = ({"weight": 10, "hold": "5m"}, {"weight": 50, "hold": "5m"})
DEFAULT_MAX_ERROR_RATE = "1%"
# The API server does not fill these in: `guard: {}` must stay as it is written, because it means no guard.
DEFAULT_GUARD: Mapping[str, Any] = {
    "latency": [{"signal": "ttft"}],
    "errors": {"maxRate": DEFAULT_MAX_ERROR_RATE},
    "warmupRequests": 5,
    "onInconclusive": "hold",
    "deadline": "2h",
}
GUARD_SETTINGS = ("warmupRequests", "onInconclusive", "deadline")  # the others are what it judges
JUDGED_STEPS = (StepKind.WEIGHT, StepKind.MIRROR, StepKind.LOAD_TEST)  # the canary gets requests to be judged by


@dataclass(frozen=True)
class LatencyGuard:
    """`histogram` (source Prometheus) is a metric with its matchers, "": the engines' own.

    `max_seconds` is an absolute bound of the quantile, None for none.
    """

    signal: str
    quantile: float
    max_increase: float
    confidence: float
    min_requests: int
    given: str | None = None
    histogram: str = ""
    max_seconds: float | None = None

    @property
    def source(self) -> Source:
        return source_of(self.signal, self.given)

    @property
    def quantile_name(self) -> str:
        """The quantile for people, such as "p95"."""
        return f"p{round(100 * self.quantile, 1):g}"

    @property
    def title(self) -> str:
        """The signal and its quantile for people, such as "ttft p95"."""
        return f"{self.signal} {self.quantile_name}"

    @property
    def by_load(self) -> bool:
        """Whether gateways can adjust the signal by load: it is their own time to first token."""
        return self.signal == "ttft" and self.source is Source.GATEWAY


DEFAULT_WATCH = LatencyGuard("ttft", quantile=0.95, max_increase=0.15, confidence=0.99, min_requests=200)


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
    """`whole_answers`: the spec names no latency, and where clients do not stream whole answers are judged in the place of TTFT."""

    latency: tuple[LatencyGuard, ...]
    max_error_rate: float | None
    warmup_requests: int
    on_inconclusive: OnInconclusive
    deadline: float
    free_pages: FreePages | None = None
    gates: tuple[Gate, ...] = ()
    error_source: Source = Source.GATEWAY
    max_throughput_decrease: float | None = None
    max_fallback_rate: float | None = None
    max_cost_increase: float | None = None
    whole_answers: bool = False

    @property
    def empty(self) -> bool:
        """Whether it judges nothing."""
        rates = self.max_error_rate, self.max_fallback_rate, self.max_throughput_decrease, self.max_cost_increase
        limits = *rates, self.free_pages
        return not self.latency and all(limit is None for limit in limits) and not self.gates


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
    alerts_without_revision: bool = False  # whether an alert that names no revision counts against any canary
    watch: float = 0.0
    history: int = 10
    route: Route = Route()
    watch_limits: LatencyGuard | None = None  # of the watch in normal operation; None: there is none

    @property
    def measured(self) -> bool:
        """Whether the canary gets requests to be judged by before it gets all traffic."""
        return any(step.kind in JUDGED_STEPS for step in self.steps)


def with_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """The block with the default of each field that it leaves out.

    A guard keeps the default of each signal that it does not name. Only `steps: []`, `guard: {}`, `latency: []` and
    `errors: {}` switch something off.
    """
    guard = given.get("guard", DEFAULT_GUARD)
    filled = {**DEFAULT_GUARD, **guard} if guard else {name: DEFAULT_GUARD[name] for name in GUARD_SETTINGS}
    if errors := filled.get("errors"):
        filled["errors"] = {"maxRate": DEFAULT_MAX_ERROR_RATE, **errors}
    return {"steps": list(DEFAULT_STEPS), **given, "guard": filled}


def rollout(raw: Mapping[str, Any], given: Mapping[str, Any]) -> Rollout:
    """The typed values of a block whose defaults are filled in; `given` is the block as it was."""
    after, alerts, route = raw.get("afterPromotion", {}), raw.get("alerts"), raw.get("route", {})
    guard = _guard(raw["guard"])
    guard = replace(guard, whole_answers=bool(guard.latency) and "latency" not in given.get("guard", {}))
    return Rollout(
        steps=tuple(step_kinds.read(step) for step in raw["steps"]),
        guard=guard,
        keep_previous=seconds(after["keepPrevious"]) if "keepPrevious" in after else 0.0,
        alert_labels=alerts["matchLabels"] if alerts else None,
        alerts_pause=(alerts or {}).get("onAlert") == "pause",
        alerts_without_revision=(alerts or {}).get("withoutRevision") == "act",
        watch=seconds(after["watch"]) if "watch" in after else 0.0,
        history=raw.get("historyLimit", 10),
        route=Route(route.get("header"), route.get("stickyBy")),
        watch_limits=_watch_limits(raw.get("watch"), guard),
    )


def _watch_limits(given: Mapping[str, Any] | None, guard: Guard) -> LatencyGuard | None:
    """The limits of the watch: those of the guard on the gateways' TTFT where the block leaves them out. {}: no watch."""
    if given is not None and not given:
        return None
    own = [one for one in guard.latency if one.by_load]
    limits, given = own[0] if own else DEFAULT_WATCH, given or {}
    return replace(
        limits,
        quantile=float(given.get("quantile", limits.quantile)),
        max_increase=fraction(given["maxIncrease"]) if "maxIncrease" in given else limits.max_increase,
        confidence=fraction(given["confidence"]) if "confidence" in given else limits.confidence,
    )


def _guard(raw: Mapping[str, Any]) -> Guard:
    errors, pages, throughput = raw.get("errors"), raw.get("freePages"), raw.get("throughput")
    fallbacks, cost = raw.get("fallbacks"), raw.get("cost")
    return Guard(
        latency=tuple(_latency(entry) for entry in raw.get("latency") or ()),
        max_error_rate=fraction(errors["maxRate"]) if errors else None,
        warmup_requests=raw["warmupRequests"],
        on_inconclusive=OnInconclusive(raw["onInconclusive"]),
        deadline=seconds(raw["deadline"]),
        free_pages=FreePages(fraction(pages["min"]), seconds(pages["for"])) if pages else None,
        gates=tuple(_gate(gate) for gate in raw.get("promql") or ()),
        error_source=source_of(ERRORS, (errors or {}).get("source")),
        max_throughput_decrease=fraction(throughput["maxDecrease"]) if throughput else None,
        max_fallback_rate=fraction(fallbacks["maxRate"]) if fallbacks else None,
        max_cost_increase=fraction(cost["maxIncrease"]) if cost else None,
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
        max_seconds=raw.get("maxSeconds"),
    )
