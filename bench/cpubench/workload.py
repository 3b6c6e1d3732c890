"""The requests of a measurement: lengths drawn from a seed, prompts cut from real English text. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class Answers(StrEnum):
    """How tokens are chosen. A small model that always takes the likeliest one soon repeats itself, which is the best case of a
    system that guesses tokens by prompt lookup; sampled text is what most clients ask for."""

    SAMPLED = "sampled"
    GREEDY = "greedy"

    @property
    def temperature(self) -> float:
        return 1.0 if self is Answers.SAMPLED else 0.0


@dataclass(frozen=True)
class Request:
    """A prompt as token ids, how many tokens to generate and at which temperature, and when it is sent (seconds from the start).
    to_the_end: the model may end the answer before it has so many tokens."""

    prompt: tuple[int, ...]
    output: int
    at: float = 0.0
    temperature: float = 0.0
    to_the_end: bool = False


@dataclass(frozen=True)
class Lengths:
    """A lognormal distribution in tokens: `sigma` is the standard deviation of the logarithm."""

    median: int
    sigma: float
    low: int
    high: int

    def draw(self, generator: random.Random) -> int:
        return min(self.high, max(self.low, round(generator.lognormvariate(math.log(self.median), self.sigma))))


PROMPTS = Lengths(median=96, sigma=0.8, low=16, high=512)
OUTPUTS = Lengths(median=64, sigma=0.7, low=8, high=256)


def make(
    text: Sequence[int], count: int, seed: int, part: int = 0, answers: Answers = Answers.SAMPLED
) -> list[Request]:
    """`count` requests, all sent at once. No two of the same seed begin at the same token of `text`, and different
    `part`s begin at different ones: no answer can come out of a prefix cache that an earlier part has filled.
    """
    starts = list(range(len(text) - PROMPTS.high))
    if (part + 1) * count > len(starts):
        raise ValueError(f"a text of {len(text)} tokens is too short for part {part} of {count} requests")
    random.Random(seed).shuffle(starts)
    generator = random.Random(f"{seed}/{part}")
    requests = []
    for start in starts[part * count : (part + 1) * count]:
        end = start + PROMPTS.draw(generator)
        requests.append(Request(tuple(text[start:end]), OUTPUTS.draw(generator), 0.0, answers.temperature))
    return requests


def alike(text: Sequence[int], count: int, seed: int, prompt: int, output: int, answers: Answers) -> list[Request]:
    """`count` requests of one length each way, their prompts from different places of `text`."""
    starts = random.Random(seed).sample(range(len(text) - prompt), count)
    return [Request(tuple(text[start : start + prompt]), output, 0.0, answers.temperature) for start in starts]


def spread(requests: Sequence[Request], per_second: float, seed: int) -> list[Request]:
    """The same requests with Poisson arrivals."""
    generator, at, spaced = random.Random(seed), 0.0, []
    for request in requests:
        spaced.append(replace(request, at=at))
        at += generator.expovariate(per_second)
    return spaced
