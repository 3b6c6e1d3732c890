"""Chooses tokens from logits. Temperature 0 is argmax; sampled draws depend on (seed, position) alone, not on the batch."""

from __future__ import annotations

import torch

from pagefleet_engine.core.requests import SamplingParams


def choose(logits: torch.Tensor, requests: list[tuple[SamplingParams, int]]) -> list[int]:
    """One token per row of `logits` [rows, vocab]; `requests` holds each row's parameters and position."""
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    for row, (sampling, position) in enumerate(requests):
        if sampling.temperature > 0:
            tokens[row] = draw(logits[row], sampling, position)
    return tokens


def draw(logits: torch.Tensor, sampling: SamplingParams, position: int) -> int:
    """One draw from softmax(logits / temperature), cut by top-k, top-p and min-p in this order.

    Gumbel-max on noise keyed by (seed, position): the same request draws the same tokens in any batch.
    """
    scores = logits.float() / sampling.temperature
    if sampling.top_k:
        kept = scores.topk(min(sampling.top_k, scores.shape[0])).values[-1]
        scores = scores.masked_fill(scores < kept, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = scores.sort(descending=True)
        # A token stays while the probability before it has not reached top_p: the first one always does.
        before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
        scores = scores.index_fill(0, order[before >= sampling.top_p], -torch.inf)
    if sampling.min_p > 0:
        probabilities = scores.softmax(dim=-1)
        scores = scores.masked_fill(probabilities < sampling.min_p * probabilities.max(), -torch.inf)
    generator = None
    if sampling.seed is not None:
        generator = torch.Generator().manual_seed((sampling.seed * 1_000_003 + position) % 2**63)
    uniform = torch.rand(scores.shape, generator=generator).clamp_min_(1e-20)
    return int((scores - (-uniform.log()).log()).argmax())
