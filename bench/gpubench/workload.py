"""What is asked: random prompts of given lengths, and how many tokens are wanted of each."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    prompt: list[int]
    wanted: int


def alike(batch: int, context: int, wanted: int, vocabulary: int) -> list[Asked]:
    """`batch` prompts of `context` tokens, no two of which share a prefix."""
    chosen = random.Random(batch)
    return [Asked([chosen.randrange(3, vocabulary) for _ in range(context)], wanted) for _ in range(batch)]


def mixed(count: int, least: int, most: int, vocabulary: int) -> list[Asked]:
    """Both lengths uniform between `least` and `most`."""
    chosen = random.Random(7)
    return [
        Asked(
            [chosen.randrange(3, vocabulary) for _ in range(chosen.randint(least, most))], chosen.randint(least, most)
        )
        for _ in range(count)
    ]
