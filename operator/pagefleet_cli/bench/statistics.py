"""Distributions in the form of guidellm's report: of values with weights, of rates and of concurrency over time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

SHARES = {
    "p001": 0.001, "p01": 0.01, "p05": 0.05, "p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99,
    "p999": 0.999,
}  # fmt: skip
ZERO = dict.fromkeys(("mean", "median", "mode", "variance", "std_dev", "min", "max", "total_sum"), 0.0)


def distribution(values: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """`values`: (value, weight). Zeros when there is none of a positive weight, as guidellm writes it."""
    weights: dict[float, float] = {}
    for value, weight in values:
        if weight > 0:
            weights[float(value)] = weights.get(float(value), 0.0) + weight
    total = sum(weights.values())
    if not total:
        return {**ZERO, "count": 0, "percentiles": dict.fromkeys(SHARES, 0.0), "pdf": None}
    ordered, reached = sorted(weights.items()), 0.0
    steps = [(value, reached := reached + weight / total) for value, weight in ordered]
    shares = {name: next((v for v, sum_ in steps if sum_ >= q - 1e-12), steps[-1][0]) for name, q in SHARES.items()}
    mean = sum(value * weight for value, weight in ordered) / total
    variance = sum((value - mean) ** 2 * weight for value, weight in ordered) / total
    return {
        "mean": mean, "median": shares["p50"], "mode": max(ordered, key=lambda pair: pair[1])[0], "variance": variance,
        "std_dev": math.sqrt(variance), "min": ordered[0][0], "max": ordered[-1][0], "count": len(values),
        "total_sum": mean * len(values), "percentiles": shares, "pdf": None,
    }  # fmt: skip


def rates(events: Sequence[tuple[float, float]], seconds: float) -> list[tuple[float, float]]:
    """(amount per second, 1) in each of the pieces of time, about a second each. `events`: (seconds after the start, amount)."""
    if not events or seconds <= 0:
        return []
    pieces = [0.0] * max(1, round(seconds))
    for at, amount in events:
        pieces[min(len(pieces) - 1, int(at / seconds * len(pieces)))] += amount * len(pieces) / seconds
    return [(amount, 1.0) for amount in pieces]


def concurrency(spans: Sequence[tuple[float, float]], seconds: float) -> list[tuple[float, float]]:
    """(spans at one time, how long). `spans`: (start, end) in seconds."""
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    found, last, now = [], 0.0, 0
    for at, change in changes:
        found.append((float(now), at - last))
        last, now = at, now + change
    return [*found, (0.0, seconds - last)] if found else []
