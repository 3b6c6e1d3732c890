"""A seeded trace: Poisson arrivals, prompts that share system prompts (Zipf), lognormal lengths."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass

from pagefleet_gateway.picking.request_cost import TOKEN_BYTES, request_cost

GROUPS = 120  # system prompts; together more than one engine's KV cache holds
SHARED = 0.8  # of requests begin with one
LIMIT = 512  # max_tokens of every request; the answers are shorter, as they are in practice


@dataclass(frozen=True)
class Arrival:
    at: float  # seconds
    prompt_tokens: int
    output_tokens: int
    body: bytes
    blocks: tuple[bytes, ...]


def trace(count: int, rate: float, seed: int) -> list[Arrival]:
    """`count` requests at `rate` a second. Lengths: system prompts median 1,200 tokens, questions 150, answers 120."""
    rng = random.Random(seed)
    systems = [_text(rng, _length(rng, 1200, 0.5, 4000)) for _ in range(GROUPS)]
    weights = list(itertools.accumulate(1 / (rank + 1) for rank in range(GROUPS)))
    now, arrivals = 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate)
        system = rng.choices(systems, cum_weights=weights)[0] if rng.random() < SHARED else ""
        prompt = system + _text(rng, _length(rng, 150, 1.0, 3000))
        body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": LIMIT}).encode()
        output = min(_length(rng, 120, 0.8, LIMIT), LIMIT)
        arrivals.append(Arrival(now, max(2, len(prompt) // TOKEN_BYTES), output, body, request_cost(body).blocks))
    return arrivals


def _length(rng: random.Random, median: float, sigma: float, most: int) -> int:
    return min(max(1, round(median * rng.lognormvariate(0, sigma))), most)


def _text(rng: random.Random, tokens: int) -> str:
    return rng.randbytes(tokens * TOKEN_BYTES // 2).hex()
