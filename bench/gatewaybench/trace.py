"""Seeded traces of chat requests: Poisson arrivals, prompts that share system prompts (Zipf), lognormal lengths.

Prompts are English sentences. What a simulated engine caches is what a real one would: the request goes through a real model's chat
template and tokenizer, and a block is 16 tokens (vLLM's default). The gateway sees the body only, and has hashes of its own.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pagefleet_engine.model.checkpoint.source import resolve
from pagefleet_engine.model.text import tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cpubench.float_model import URI

BLOCK = 16  # tokens
GROUPS = 120  # system prompts; together more than one engine's KV cache holds
SHARED = 0.8  # of requests begin with one
AGENTS = 16  # that work side by side; their conversations fill about four fifths of eight engines' KV caches
LIMIT = 512  # max_tokens of every request; the answers are shorter, as they are in practice
TURN = "<|im_start|>"  # the template's special token: text before and after it is tokenized apart
Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Arrival:
    """`blocks`: a hash for every full block of the prompt's tokens, over the block and the hash before it."""

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
        system = rng.choices(systems, cum_weights=weights)[0] if rng.random() < SHARED else None
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": _text(rng, _length(rng, 150, 1.0, 3000))})
        arrivals.append(_arrival(now, messages, _length(rng, 120, 0.8, LIMIT)))
    return arrivals


def agents(count: int, rate: float, seed: int) -> list[Arrival]:
    """`count` requests of agents that work side by side: each of their turns sends all turns before it again.

    A conversation begins with some 20,000 tokens, 4,000 of which all agents share, grows by some 1,000 a turn, and ends above 41,000.
    """
    rng = random.Random(seed)
    shared = _text(rng, 4000)
    talks = [_begin(rng, shared) for _ in range(AGENTS)]
    now, arrivals = 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate)
        which = rng.randrange(AGENTS)
        if sum(len(message["content"]) for message in talks[which]) > 41_000 * _characters():
            talks[which] = _begin(rng, shared)
        talk, more = talks[which], _length(rng, 900, 0.6, 4000)
        if talk[-1]["role"] == "user":
            talk.append({"role": "assistant", "content": _text(rng, more // 4)})
            more -= more // 4
        talk.append({"role": "user", "content": _text(rng, more)})
        arrivals.append(_arrival(now, talk, _length(rng, 120, 0.8, LIMIT)))
    return arrivals


def _begin(rng: random.Random, shared: str) -> Messages:
    task = _text(rng, rng.randrange(16_000, 24_000))
    return [{"role": "system", "content": shared}, {"role": "user", "content": task}]


def _arrival(at: float, messages: Messages, output: int) -> Arrival:
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": LIMIT, "stream": True}).encode()
    tokens = _tokens(messages)
    parent, blocks, data = b"", [], tokens.tobytes()
    size = BLOCK * tokens.itemsize
    for start in range(0, len(data) // size * size, size):
        parent = hashlib.blake2b(parent + data[start : start + size], digest_size=16).digest()
        blocks.append(parent)
    return Arrival(at, len(tokens), output, body, tuple(blocks))


def _tokens(messages: Messages) -> array[int]:
    """Return the prompt's tokens as an engine computes them."""
    tokens = array("I")
    for turn in re.split(f"(?={re.escape(TURN)})", _model().chat.render(messages)):
        tokens.extend(_encoded(turn))
    return tokens


@lru_cache(maxsize=4096)
def _encoded(turn: str) -> Sequence[int]:
    return _model().encode(turn, add_special_tokens=False)


@lru_cache(maxsize=1)
def _model() -> tokenizer.Tokenizer:
    return tokenizer.load(resolve(URI))


@lru_cache(maxsize=1)
def _sentences() -> list[str]:
    text = Path(__file__).resolve().parents[1].joinpath("cpubench/text.txt").read_text()
    return re.split(r"(?<=[.!?])\s+", " ".join(text.split()))


@lru_cache(maxsize=1)
def _characters() -> float:
    """Return how many characters of this text are a token."""
    text = " ".join(_sentences())
    return len(text) / len(_encoded(text))


def _length(rng: random.Random, median: float, sigma: float, most: int) -> int:
    return min(max(1, round(median * rng.lognormvariate(0, sigma))), most)


def _text(rng: random.Random, tokens: int) -> str:
    """Return sentences by lot, about so many tokens, the last one cut."""
    characters, words = round(tokens * _characters()), list[str]()
    while characters > 0:
        words.append(rng.choice(_sentences()))
        characters -= len(words[-1]) + 1
    text = " ".join(words)
    return text[: len(text) + characters] if characters < 0 else text
