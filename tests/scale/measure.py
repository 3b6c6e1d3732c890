"""One figure, and the limit it is held to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    name: str
    value: float
    unit: str
    limit: float | None = None

    @property
    def broken(self) -> bool:
        return self.limit is not None and self.value > self.limit


def median(sorted_values: list[float]) -> float:
    return sorted_values[len(sorted_values) // 2]


def p99(sorted_values: list[float]) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(0.99 * len(sorted_values)))]
