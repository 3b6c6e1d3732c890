"""Planners that draft whether that pays or not, requests for them, and the distribution that drafts must not change."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from support.engine.reference import ask

from pagefleet_engine.core.requests import EngineRequest
from pagefleet_engine.core.speculation import DraftPlanner
from pagefleet_engine.core.turns import TurnPlanner

SEEDED = {"temperature": 0.8, "top_p": 0.95, "top_k": 60, "seed": 4}


class Always(DraftPlanner):
    """A planner that drafts whether drafting pays or not."""

    def plan(self, answers: int, offers: Sequence[tuple[float, int]]) -> list[int]:
        return [min(many, self.limit) for _, many in offers]


class Switched(DraftPlanner):
    """A planner that drafts while `on` is true."""

    on = False

    def plan(self, answers: int, offers: Sequence[tuple[float, int]]) -> list[int]:
        return [min(many, self.limit) if self.on else 0 for _, many in offers]


class Turns(TurnPlanner):
    """Goes in turn as `chosen` says of each step in which there is a choice."""

    def __init__(self, chosen: Callable[[int], bool]) -> None:
        super().__init__()
        self._chosen, self.steps = chosen, 0

    def in_turn(self, answers: int) -> bool:
        self.steps += 1
        return self._chosen(self.steps)


def prompts(count: int) -> list[list[int]]:
    """Return prompts of random tokens, some of which repeat. Every second prompt begins like the first."""
    chosen = random.Random(3)
    shared = [chosen.randrange(3, 300) for _ in range(40)]
    return [
        shared[: chosen.randrange(0, 40) * (index % 2)] + [chosen.randrange(3, 300) for _ in range(9)] * (1 + index % 3)
        for index in range(count)
    ]


def mixed(n: int = 1) -> list[EngineRequest]:
    """Return greedy and seeded requests, some of them without drafts."""
    others: list[dict[str, Any]] = [
        {}, SEEDED, {}, SEEDED, {"logprobs": 2}, {"frequency_penalty": 0.5}, {"min_tokens": 5, "temperature": 1.0, "seed": 1},
        {"logit_bias": ((7, 3.0),)}, {"repetition_penalty": 1.2, **SEEDED},
    ]  # fmt: skip
    return [
        ask(str(index), prompt, 24, n=n if index % 3 == 1 else 1, **others[index % len(others)])
        for index, prompt in enumerate(prompts(18))
    ]


FEW_TOKENS: dict[str, Any] = {"vocab_size": 6, "initializer_range": 0.08, "eos_token_id": 1}
BATCHES, ANSWERS = 80, 64


def assert_distributed(draw: Callable[[str, list[int]], list[list[int]]], reference: Any) -> None:
    """Chi-square of three tokens in a row against the exact product of softmaxes at temperature 1.3; it exceeds the bound by
    chance once in 10^8 runs. `draw` returns the answers of a request with a name: three tokens of a vocabulary of six, 64 times.
    """
    prompt = [3, 4, 5, 3, 4, 0, 1, 3, 4, 2, 5, 0]
    drawn: Counter[tuple[int, ...]] = Counter()
    for batch in range(BATCHES):
        drawn.update(tuple(tokens) for tokens in draw(str(batch), prompt))
    with torch.inference_mode():
        texts = torch.tensor([[*prompt, *pair] for pair in product(range(6), repeat=2)])
        steps = (reference(texts).logits[:, -3:] / 1.3).softmax(dim=-1).double().view(6, 6, 3, 6)
    exact = (steps[0, 0, 0][:, None] * steps[:, 0, 1])[:, :, None] * steps[:, :, 2]
    total = drawn.total()
    deviation = sum(
        (drawn[cell] - total * float(exact[cell])) ** 2 / (total * float(exact[cell]))
        for cell in product(range(6), repeat=3)
    )
    assert total == BATCHES * ANSWERS
    assert float(exact.min()) * total > 3, "too few draws for the test to mean anything"
    assert 100 < deviation < 360, deviation  # 215 degrees of freedom: 215 +- 21
