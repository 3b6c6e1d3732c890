"""How far rotary frequencies are slowed down for contexts longer than those of the first training. No torch."""

from __future__ import annotations

import math


def llama3_divisors(
    head_dim: int, theta: float, factor: float, low: float, high: float, original: int
) -> tuple[float, ...]:
    """Llama 3.1's scaling: long wavelengths are stretched by `factor`, short ones kept, those between blended.

    `low` and `high` are the numbers of turns within `original` positions that bound the blend.
    """
    divisors = []
    for pair in range(0, head_dim, 2):
        turns = original / (2 * math.pi * theta ** (pair / head_dim))
        if turns < low:
            divisors.append(factor)
        elif turns > high:
            divisors.append(1.0)
        else:
            smooth = (turns - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return tuple(divisors)
