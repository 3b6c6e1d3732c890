"""Attention over a paged KV cache on the CPU (Kwon et al., SOSP 2023): scaled dot products on each sequence's pages.

A batch mixes single tokens (decode) with chunks of prompts (prefill). Decodes run as one padded product; chunks run
one by one on a view of their own pages. Reads of pages are gathers of whole slots; nothing is copied for writing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True)
class Chunk:
    """Rows `begin:end` of the batch are consecutive tokens of one sequence whose slots so far are `slots`."""

    begin: int
    end: int
    slots: torch.Tensor  # [context] int64, in order of position, this chunk's own last


@dataclass(frozen=True)
class Batch:
    """One step's tokens. Single tokens come first: rows 0:decodes."""

    positions: torch.Tensor  # [n] int64
    slots: torch.Tensor  # [n] int64: where each token's key and value go
    sampled: torch.Tensor  # [sampled] int64: rows whose logits are wanted
    decodes: int
    decode_slots: torch.Tensor  # [decodes, longest context] int64, padded with slot 0
    decode_mask: torch.Tensor  # [decodes, 1, 1, longest context] bool, true where it is real
    chunks: tuple[Chunk, ...]


def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: Batch) -> torch.Tensor:
    """q [n, heads, head_dim] -> [n, heads, head_dim]; keys and values [slots, kv_heads, head_dim]."""
    out = torch.empty_like(q)
    if batch.decodes:
        k = keys[batch.decode_slots].transpose(1, 2)
        v = values[batch.decode_slots].transpose(1, 2)
        query = q[: batch.decodes].unsqueeze(2)
        attended = functional.scaled_dot_product_attention(query, k, v, attn_mask=batch.decode_mask, enable_gqa=True)
        out[: batch.decodes] = attended.squeeze(2)
    for chunk in batch.chunks:
        k = keys[chunk.slots].transpose(0, 1).unsqueeze(0)
        v = values[chunk.slots].transpose(0, 1).unsqueeze(0)
        query = q[chunk.begin : chunk.end].transpose(0, 1).unsqueeze(0)
        attended = functional.scaled_dot_product_attention(query, k, v, attn_mask=_causal(chunk), enable_gqa=True)
        out[chunk.begin : chunk.end] = attended.squeeze(0).transpose(0, 1)
    return out


def _causal(chunk: Chunk) -> torch.Tensor:
    """[chunk, context] bool: a token sees everything up to itself."""
    length, context = chunk.end - chunk.begin, chunk.slots.shape[0]
    return torch.ones(length, context, dtype=torch.bool).tril(diagonal=context - length)
