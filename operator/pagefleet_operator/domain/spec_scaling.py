"""`.spec.scaling` as typed values: durations in seconds, percentages as fractions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_operator.domain.quantity import fraction, seconds


@dataclass(frozen=True)
class Policy:
    """A limit on one direction: at most `pods` and `percent` of the replicas there were within `period` seconds."""

    period: float
    pods: int | None = None
    percent: float | None = None


@dataclass(frozen=True)
class Scaling:
    """`queue_depth`: waiting requests per replica; `free_pages`: least free share of KV pages; times in seconds.

    `ttft` is None without `target.ttft`. With several policies of a direction the one that allows most counts.
    """

    min: int
    max: int
    queue_depth: float = 4.0
    free_pages: float = 0.2
    panic_threshold: float = 2.0
    panic_window: float = 60.0
    stabilization: float | None = None  # None: from the start-up time
    ttft: float | None = None
    ttft_quantile: float = 0.95
    up_stabilization: float = 0.0
    up_policies: tuple[Policy, ...] = ()
    down_policies: tuple[Policy, ...] = ()
    tolerance: float = 0.1
    idle_to_zero: float | None = None
    startup: float = 60.0  # assumed until one was seen
    wake: bool = False  # a schedule asks for replicas: no sleep now
    capped: str = ""  # why `max` is below spec.scaling.max


def scaling(raw: Mapping[str, Any]) -> Scaling:
    return Scaling(
        min=raw["min"],
        max=raw["max"],
        queue_depth=float(raw["target"]["queueDepth"]),
        free_pages=fraction(raw["target"]["freeKVPages"]),
        panic_threshold=float(raw["panic"]["threshold"]),
        panic_window=seconds(raw["panic"]["window"]),
        stabilization=seconds(raw["scaleDown"]["stabilization"]),
    )
