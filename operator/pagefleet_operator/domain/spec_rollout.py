"""`.spec.rollout` as typed values: durations in seconds, percentages as fractions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_operator.domain.quantity import fraction, seconds

DEFAULT_ROLLOUT: Mapping[str, Any] = {
    "steps": [{"weight": 10, "hold": "5m"}, {"weight": 50, "hold": "5m"}],
    "guard": {"latency": [{"signal": "ttft"}], "errors": {"maxRate": "1%"}},
}


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


def rollout(raw: Mapping[str, Any]) -> Rollout:
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
