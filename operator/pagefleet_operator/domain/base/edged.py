"""Latencies in another's buckets: an engine's, whose edges are its own and may lie far apart. Counts only, no judgement.

Of a count in a bucket it is known that it lies above its lower edge and not above its upper one, and no more. So that
nobody is convicted by where the edges lie, the canary's side counts what is certainly above a bound, and the stable's
what may be: a threshold b is an edge of the stable's, and the canary is held to the first of its edges that is not
below (1 + increase) x b. With identical revisions a canary's hit is then no likelier than a stable's, wherever the edges
are. What it costs is power: what is accepted is edge / b - 1 instead of the increase (16 % for 15 % with edges 5 % apart,
50 % between edges at 0.5 and 0.75 s), and above the last edge nothing can be told at all.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pagefleet_contract import sketch

Buckets = Mapping[tuple[float, float], int]  # (above, at most) in seconds


@dataclass(frozen=True)
class Edged:
    """`bounds` are upper ends in seconds, ascending, the last one infinite; `counts` by place in them, without zeros."""

    bounds: tuple[float, ...]
    counts: Mapping[int, int]

    def buckets(self) -> dict[tuple[float, float], int]:
        return {(self.lower(place), self.bounds[place]): count for place, count in self.counts.items()}

    def lower(self, place: int) -> float:
        return self.bounds[place - 1] if place else 0.0

    def above(self, bound: float) -> int:
        """How many lie certainly above `bound` seconds."""
        return sum(count for place, count in self.counts.items() if self.lower(place) >= bound)

    def ends_below(self, bound: float) -> bool:
        """Whether the last finite edge lies below `bound` seconds, so that no count can be shown to lie above it."""
        return len(self.bounds) < 2 or self.bounds[-2] < bound


@lru_cache(maxsize=256)
def shared(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """The same bounds as one object: thousands of slices have them."""
    return bounds


@dataclass(frozen=True)
class Pair:
    """A block's latencies of both revisions. `edges` are the canary's finite ones; None: those of the sketch."""

    stable: Buckets
    canary: Buckets
    edges: tuple[float, ...] | None

    def edge(self, bound: float) -> float | None:
        """The first edge of the canary's that is not below `bound`; None above the last."""
        if not math.isfinite(bound):
            return None
        if self.edges is None:
            return bound
        place = bisect_left(self.edges, bound)
        return self.edges[place] if place < len(self.edges) else None

    def stable_above(self, bound: float) -> int:
        """How many of the stable's may lie above `bound`."""
        return sum(count for (_, high), count in self.stable.items() if high > bound)

    def canary_above(self, bound: float) -> int:
        """How many of the canary's certainly lie above `bound`."""
        return sum(count for (low, _), count in self.canary.items() if low >= bound)


def of_sketch(histogram: sketch.Histogram) -> dict[tuple[float, float], int]:
    """The sketch's buckets with their ends."""
    return {(sketch.upper(index - 1) if index else 0.0, sketch.upper(index)): n for index, n in histogram.items()}


def common(one: tuple[float, ...] | None, other: tuple[float, ...]) -> tuple[float, ...]:
    """The finite edges that both have; `one` None: nothing was measured yet. What is asked of `other` alone is free."""
    finite = other[:-1] if other and math.isinf(other[-1]) else other
    return finite if one is None or one == finite else tuple(sorted(set(one) & set(finite)))
