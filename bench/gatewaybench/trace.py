"""A seeded trace: Poisson arrivals, prompts that share system prompts (Zipf), lognormal lengths."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from dataclasses import dataclass

from pagefleet_gateway.bodies.prompt_text import TOKEN_BYTES
from pagefleet_gateway.picking.request_cost import BLOCK_BYTES, request_cost

GROUPS = 120  # system prompts; together more than one engine's KV cache holds
SHARED = 0.8  # of requests begin with one
AGENTS = 16  # that work side by side; their conversations fill about four fifths of eight engines' KV caches
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


def agents(count: int, rate: float, seed: int) -> list[Arrival]:
    """`count` requests of agents that work side by side: each of their turns sends all turns before it again.

    A conversation begins with 20,000 tokens, 4,000 of which all agents share, grows by some 1,000 a turn, and ends above 41,000.
    """
    rng = random.Random(seed)
    shared = _text(rng, 4000)
    talks = [_begin(rng, shared) for _ in range(AGENTS)]
    now, arrivals = 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate)
        which = rng.randrange(AGENTS)
        if len(talks[which]) > 41_000 * TOKEN_BYTES:
            talks[which] = _begin(rng, shared)
        talks[which] += _text(rng, _length(rng, 900, 0.6, 4000))
        arrivals.append(_arrival(now, talks[which], min(_length(rng, 120, 0.8, LIMIT), LIMIT)))
    return arrivals


def _begin(rng: random.Random, shared: str) -> str:
    return shared + _text(rng, rng.randrange(16_000, 24_000))


def _arrival(at: float, prompt: str, output: int) -> Arrival:
    body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": LIMIT, "stream": True}).encode()
    # The engine's own blocks: of one size, however long the prompt is.
    parent, blocks, text = b"", [], prompt.encode()
    for start in range(0, len(text) // BLOCK_BYTES * BLOCK_BYTES, BLOCK_BYTES):
        parent = hashlib.blake2b(parent + text[start : start + BLOCK_BYTES], digest_size=16).digest()
        blocks.append(parent)
    return Arrival(at, max(2, len(prompt) // TOKEN_BYTES), output, body, tuple(blocks))


def _length(rng: random.Random, median: float, sigma: float, most: int) -> int:
    return min(max(1, round(median * rng.lognormvariate(0, sigma))), most)


def _text(rng: random.Random, tokens: int) -> str:
    return rng.randbytes(tokens * TOKEN_BYTES // 2).hex()
