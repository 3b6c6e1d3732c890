"""Intervals of shares and medians, of 95 % unless said otherwise. Pure; no SciPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

LEVEL = 0.05


def share(hits: int, count: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact interval of a share (Clopper and Pearson, Biometrika 1934), by bisection of the binomial sum.

    It misses the true share with a probability of at most `level`.
    """
    if not count:
        return (0.0, 1.0)
    low = 0.0 if hits == 0 else _root(lambda p: 1 - _at_most(hits - 1, count, p), level / 2, rising=True)
    high = 1.0 if hits == count else _root(lambda p: _at_most(hits, count, p), level / 2, rising=False)
    return (low, high)


def middle(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the interval of the median of sorted values, from the ranks n/2 +- 1.96 sqrt(n)/2."""
    count = len(ordered)
    margin = 1.96 * math.sqrt(count) / 2
    low, high = math.floor(count / 2 - margin), math.ceil(count / 2 + margin)
    return (ordered[max(0, low)], ordered[min(count - 1, high)])


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return the q-quantile of sorted values by nearest rank."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def _at_most(hits: int, count: int, p: float) -> float:
    """Return the probability of at most so many hits."""
    if p <= 0:
        return 1.0
    if p >= 1:
        return float(hits >= count)
    logs = [
        math.lgamma(count + 1)
        - math.lgamma(k + 1)
        - math.lgamma(count - k + 1)
        + k * math.log(p)
        + (count - k) * math.log1p(-p)
        for k in range(hits + 1)
    ]
    return min(1.0, math.fsum(map(math.exp, logs)))


def _root(tail: Callable[[float], float], level: float, rising: bool) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        p = (low + high) / 2
        if (tail(p) < level) == rising:
            low = p
        else:
            high = p
    return (low + high) / 2
