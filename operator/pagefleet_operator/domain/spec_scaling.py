"""`.spec.scaling` as typed values: durations in seconds, percentages as fractions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_operator.domain.quantity import fraction, seconds


@dataclass(frozen=True)
class Scaling:
    min: int
    max: int
    queue_depth: float
    free_pages: float
    panic_threshold: float
    panic_window: float
    stabilization: float


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
