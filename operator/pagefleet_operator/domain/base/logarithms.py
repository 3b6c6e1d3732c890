"""Arithmetic with numbers that are known by their natural logarithms, because the numbers themselves overflow a double."""

from __future__ import annotations

import math
from collections.abc import Sequence

MAX_EXPONENT = 700.0  # exp of more overflows a double


def value_of(log: float) -> float:
    """The number with this logarithm, at most that of MAX_EXPONENT."""
    return math.exp(min(MAX_EXPONENT, log))


def log_sum(logs: Sequence[float]) -> float:
    """The logarithm of the sum of at least one number."""
    highest = max(logs)
    return highest + math.log(sum(math.exp(log - highest) for log in logs))


def log_add(one: float, other: float) -> float:
    """`log_sum` of two numbers."""
    return one + math.log1p(math.exp(other - one)) if one > other else other + math.log1p(math.exp(one - other))
