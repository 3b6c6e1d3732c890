"""Accelerator-hours at equal attainment: the front of a scaler's settings, and the value between two of them.

Between two settings of the front the hours are interpolated over the logarithm of the share of missed requests. On that scale a front is
nearly straight (each halving of what is missed takes about as many replicas more), and the line is below the one over the share itself:
it favours the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

LEAST_MISSED = 1e-5


@dataclass(frozen=True)
class Point:
    """`label` names the scaler and its setting."""

    attainment: float
    hours: float
    label: str = ""


def front(points: Iterable[Point]) -> list[Point]:
    """The points that no other one beats in both, the cheapest first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda one: (one.hours, -one.attainment)):
        if not kept or point.attainment > kept[-1].attainment:
            kept.append(point)
    return kept


def at(kept: Sequence[Point], attainment: float) -> Point | None:
    """The cheapest way of a front to attain this, interpolated; None where no setting of it attains it."""
    if not kept or attainment > kept[-1].attainment:
        return None
    if attainment <= kept[0].attainment:
        return Point(attainment, kept[0].hours, kept[0].label)
    for low, high in pairwise(kept):
        if low.attainment < attainment <= high.attainment:
            share = (_missed(low) - _log(attainment)) / max(1e-9, _missed(low) - _missed(high))
            label = low.label if low.label == high.label else f"{low.label} .. {high.label}"
            return Point(attainment, low.hours + share * (high.hours - low.hours), label)
    raise ValueError("the front is not sorted")


def near(kept: Sequence[Point], attainment: float, each: int) -> list[Point]:
    """`each` points of a front on both sides of an attainment, and the one that attains most."""
    below = [one for one in kept if one.attainment < attainment][-each:]
    above = [one for one in kept if one.attainment >= attainment][:each]
    return list(dict.fromkeys([*below, *above, *kept[-1:]]))


def thinned(kept: Sequence[Point], count: int) -> list[Point]:
    """At most `count` points of a front, its ends among them."""
    if len(kept) <= count:
        return list(kept)
    return [kept[round(i * (len(kept) - 1) / (count - 1))] for i in range(count)]


def _missed(point: Point) -> float:
    return _log(point.attainment)


def _log(attainment: float) -> float:
    return math.log(max(LEAST_MISSED, 1 - attainment))
