"""Latency histograms in logarithmic buckets, as the gateway measures them (ARCHITECTURE.md, "The gateway").

Bucket i holds (1e-4 * 1.02^(i-1), 1e-4 * 1.02^i] seconds: a quantile read from it is within 2 % (the relative-error
guarantee of DDSketch, Masson et al., VLDB 2019).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

SMALLEST, GROWTH = 1e-4, 1.02
Histogram = Mapping[int, int]


def index(seconds: float) -> int:
    """The bucket of a latency."""
    return max(0, math.ceil(math.log(seconds / SMALLEST) / math.log(GROWTH) - 1e-9)) if seconds > SMALLEST else 0


def upper(bucket: int) -> float:
    """The bucket's upper end in seconds."""
    return SMALLEST * GROWTH**bucket


def total(histogram: Histogram) -> int:
    return sum(histogram.values())


def merged(histograms: list[Histogram]) -> dict[int, int]:
    result: dict[int, int] = {}
    for histogram in histograms:
        for bucket, count in histogram.items():
            result[bucket] = result.get(bucket, 0) + count
    return result


def quantile(histogram: Histogram, q: float) -> float | None:
    """The q-quantile in seconds (nearest rank, upper end of its bucket); None when empty."""
    return rank(histogram, math.ceil(q * total(histogram)))


def rank(histogram: Histogram, position: int) -> float | None:
    """The value of the `position`-th smallest (1-based); None beyond the last."""
    seen = 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= max(1, position):
            return upper(bucket)
    return None


def above(histogram: Histogram, bound: float) -> int:
    """How many lie certainly above `bound` seconds: the bucket that holds the bound counts as below."""
    limit = index(bound)
    return sum(count for bucket, count in histogram.items() if bucket > limit)


def share_above(histogram: Histogram, bound: float) -> float:
    """How many lie above `bound` seconds, the bucket that holds it split in proportion (its ends are 2 % apart)."""
    limit = index(bound)
    inside = histogram.get(limit, 0)
    if not inside or limit == 0:
        return float(above(histogram, bound))
    part = math.log(upper(limit) / bound) / math.log(GROWTH)
    return above(histogram, bound) + inside * min(1.0, max(0.0, part))


def interval(histogram: Histogram, q: float) -> tuple[float, float] | None:
    """An interval of 95 % for the q-quantile in seconds, from the ranks n q +- 1.96 sqrt(n q (1 - q)); None when
    empty."""
    count = total(histogram)
    if not count:
        return None
    margin = 1.96 * math.sqrt(count * q * (1 - q))
    low = rank(histogram, math.floor(count * q - margin))
    high = rank(histogram, min(count, math.ceil(count * q + margin) + 1))
    return None if low is None or high is None else (low, high)
