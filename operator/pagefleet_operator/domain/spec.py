"""`.spec` as typed values: durations in seconds, percentages as fractions, defaults filled in.

`parse` is total: any JSON value gives a Spec or SpecErrors that name each field; nothing is silently ignored.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_operator.domain import rules, schema, structure, support
from pagefleet_operator.domain.quantity import fraction, seconds
from pagefleet_operator.domain.structure import SpecError

DEFAULT_ROLLOUT: Mapping[str, Any] = {
    "steps": [{"weight": 10, "hold": "5m"}, {"weight": 50, "hold": "5m"}],
    "guard": {"latency": [{"signal": "ttft"}], "errors": {"maxRate": "1%"}},
}


@dataclass(frozen=True)
class SpecErrors:
    errors: tuple[SpecError, ...]

    @property
    def message(self) -> str:
        return "; ".join(f"{error.field}: {error.message}" for error in self.errors)


@dataclass(frozen=True)
class Scaling:
    min: int
    max: int
    queue_depth: float
    free_pages: float
    panic_threshold: float
    panic_window: float
    stabilization: float


@dataclass(frozen=True)
class Step:
    """`weight` for at least `hold` seconds; weight None is a timed pause of `hold` seconds at the weight before."""

    weight: int | None
    hold: float


@dataclass(frozen=True)
class LatencyGuard:
    signal: str
    quantile: float
    max_increase: float
    confidence: float
    min_requests: int


@dataclass(frozen=True)
class Guard:
    latency: tuple[LatencyGuard, ...]
    max_error_rate: float | None
    warmup_requests: int
    rollback_when_inconclusive: bool
    deadline: float

    @property
    def empty(self) -> bool:
        return not self.latency and self.max_error_rate is None


@dataclass(frozen=True)
class Rollout:
    steps: tuple[Step, ...]
    guard: Guard
    keep_previous: float
    alert_labels: Mapping[str, str] | None


@dataclass(frozen=True)
class Spec:
    """`raw` has the defaults filled in; what affects pods is read from it by `revision` and `build`."""

    raw: Mapping[str, Any]
    scaling: Scaling
    rollout: Rollout


def parse(raw: object) -> Spec | SpecErrors:
    errors = structure.check(raw, schema.SPEC, "spec")
    if errors or not isinstance(raw, Mapping):
        return SpecErrors(tuple(errors))
    filled = structure.filled(copy.deepcopy(dict(raw)), schema.SPEC)
    if "rollout" not in raw:
        filled["rollout"] = structure.filled(copy.deepcopy(dict(DEFAULT_ROLLOUT)), schema.ROLLOUT)
    errors = [*rules.check(filled), *support.check(raw)]
    if errors:
        return SpecErrors(tuple(errors))
    return Spec(filled, _scaling(filled["scaling"]), _rollout(filled["rollout"]))


def _scaling(raw: Mapping[str, Any]) -> Scaling:
    return Scaling(
        min=raw["min"],
        max=raw["max"],
        queue_depth=float(raw["target"]["queueDepth"]),
        free_pages=fraction(raw["target"]["freeKVPages"]),
        panic_threshold=float(raw["panic"]["threshold"]),
        panic_window=seconds(raw["panic"]["window"]),
        stabilization=seconds(raw["scaleDown"]["stabilization"]),
    )


def _rollout(raw: Mapping[str, Any]) -> Rollout:
    guard = raw.get("guard") or {}
    errors = guard.get("errors")
    after = raw.get("afterPromotion") or {}
    return Rollout(
        steps=tuple(_step(step) for step in raw.get("steps") or ()),
        guard=Guard(
            latency=tuple(_latency(entry) for entry in guard.get("latency") or ()),
            max_error_rate=fraction(errors["maxRate"]) if errors else None,
            warmup_requests=guard.get("warmupRequests", 0),
            rollback_when_inconclusive=guard.get("onInconclusive") == "rollback",
            deadline=seconds(guard.get("deadline", "2h")),
        ),
        keep_previous=seconds(after["keepPrevious"]) if "keepPrevious" in after else 0.0,
        alert_labels=raw["alerts"]["matchLabels"] if raw.get("alerts") else None,
    )


def _step(raw: Mapping[str, Any]) -> Step:
    if "weight" in raw:
        return Step(raw["weight"], seconds(raw.get("hold", "0s")))
    return Step(None, seconds(raw["pause"]["duration"]))


def _latency(raw: Mapping[str, Any]) -> LatencyGuard:
    return LatencyGuard(
        signal=raw["signal"],
        quantile=float(raw["quantile"]),
        max_increase=fraction(raw["maxIncrease"]),
        confidence=fraction(raw["confidence"]),
        min_requests=raw["minRequests"],
    )
