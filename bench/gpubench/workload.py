"""The workload: random prompts of given lengths, and the number of tokens requested for each."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    tokens: list[int]
    requested: int


def alike(batch: int, context: int, requested: int, vocabulary: int) -> list[Prompt]:
    """`batch` prompts of `context` tokens, no two of which share a prefix."""
    chosen = random.Random(batch)
    return [Prompt([chosen.randrange(3, vocabulary) for _ in range(context)], requested) for _ in range(batch)]


def mixed(count: int, least: int, most: int, vocabulary: int) -> list[Prompt]:
    """Both lengths uniform between `least` and `most`."""
    chosen = random.Random(7)
    return [
        Prompt(
            [chosen.randrange(3, vocabulary) for _ in range(chosen.randint(least, most))], chosen.randint(least, most)
        )
        for _ in range(count)
    ]
