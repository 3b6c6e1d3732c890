"""Chooses tokens from logits. Temperature 0 is argmax; seeded draws depend on (seed, position), not on the batch."""

from __future__ import annotations

import math

import torch

from pagefleet_engine.core.requests import SamplingParams

# The nucleus is nearly always within this many tokens; sorting the whole vocabulary costs ten times as much.
NUCLEUS = 1024


def choose(logits: torch.Tensor, rows: list[tuple[SamplingParams, int]]) -> list[int]:
    """One token per row of `logits` [rows, vocab]; `rows` holds each row's parameters and position."""
    if not rows:
        return []
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    for index, (sampling, position) in enumerate(rows):
        if sampling.temperature > 0:
            tokens[index] = draw(logits[index], sampling, position)
    return tokens


def draw(logits: torch.Tensor, sampling: SamplingParams, position: int) -> int:
    """One draw from softmax(logits [vocab] / temperature), cut by top-k, top-p and min-p in this order.

    Gumbel-max (Gumbel, 1954; Maddison et al., NeurIPS 2014) on noise keyed by (seed, position): the same request
    draws the same tokens in any batch. Without a seed the noise is fresh from the system's entropy.
    """
    scores, ids = logits.float() / sampling.temperature, torch.arange(logits.shape[0])
    if 0 < sampling.top_k < len(ids):
        scores, ids = scores.topk(sampling.top_k)
    if sampling.top_p < 1:
        scores, ids = _nucleus(scores, ids, sampling.top_p)
    if sampling.min_p > 0:
        kept = scores >= scores.max() + math.log(sampling.min_p)
        scores, ids = scores[kept], ids[kept]
    generator = torch.Generator()
    if sampling.seed is None:
        generator.seed()
    else:
        generator.manual_seed((sampling.seed * 1_000_003 + position) % 2**63)
    # Noise for the whole vocabulary, so that a token's noise does not depend on which others were cut.
    noise = torch.rand(logits.shape, generator=generator)[ids].clamp_min_(1e-20)
    return int(ids[(scores - (-noise.log()).log_()).argmax()])


def _nucleus(scores: torch.Tensor, ids: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The fewest tokens whose probability together reaches `top_p`, always at least one; most likely first."""
    total = scores.logsumexp(dim=0)
    for count in (min(NUCLEUS, len(ids)), len(ids)):
        best, order = scores.topk(count)
        reached = (best - total).exp_().cumsum(dim=0)
        if count == len(ids) or reached[-1] >= top_p:
            break
    # A token stays while the probability before it has not reached top_p.
    kept = 1 + int((reached[:-1] < top_p).sum())
    return best[:kept], ids[order[:kept]]
