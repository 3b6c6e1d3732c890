"""Time windows over the readings of a scaler: means and largest values. Pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """`value` held from `since` to `time`."""

    since: float
    time: float
    value: float


Readings = tuple[Reading, ...]


def add(readings: Readings, reading: Reading, keep: float) -> Readings:
    """Add a reading; drop the readings that ended more than `keep` seconds before it."""
    return (*(one for one in readings if one.time > reading.time - keep), reading)


def mean(readings: Readings, now: float, window: float) -> float:
    """The mean over the window, weighted by time; 0 without a reading in the window."""
    total = weight = 0.0
    for one in readings:
        span = one.time - max(one.since, now - window)
        if span > 0:
            total += one.value * span
            weight += span
    return total / weight if weight else 0.0


def largest(readings: Readings, now: float, window: float) -> float:
    return max((one.value for one in readings if one.time >= now - window), default=0.0)
