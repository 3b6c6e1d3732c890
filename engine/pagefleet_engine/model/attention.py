"""Attention over a paged KV cache on the CPU (Kwon et al., SOSP 2023): scaled dot products on each sequence's pages.

A batch mixes single tokens (decode) with chunks of prompts (prefill). Decodes run as one padded product; chunks run
one by one. A gather copies whole rows of keys and values together: measured at a tenth to a half of the cost of
advanced indexing, and below that of one product for each sequence.
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
    mask: torch.Tensor  # [end - begin, context] bool: a token sees everything up to itself


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


def attend(q: torch.Tensor, pages: torch.Tensor, batch: Batch) -> torch.Tensor:
    """q [n, heads, head_dim] -> [n, heads, head_dim]; pages [slots, 2, kv_heads, head_dim], keys then values."""
    out = torch.empty(q.shape)
    if batch.decodes:
        rows = slice(0, batch.decodes)
        out[rows] = _product(q[rows].unsqueeze(2), pages, batch.decode_slots, batch.decode_mask).squeeze(2)
    for chunk in batch.chunks:
        rows = slice(chunk.begin, chunk.end)
        query = q[rows].transpose(0, 1).unsqueeze(0)
        out[rows] = _product(query, pages, chunk.slots.unsqueeze(0), chunk.mask).squeeze(0).transpose(0, 1)
    return out


def _product(query: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """query [b, heads, n, head_dim] against the keys and values at `slots` [b, context]."""
    rows = pages.view(pages.shape[0], -1).index_select(0, slots.view(-1))
    gathered = rows.view(*slots.shape, *pages.shape[1:]).transpose(1, 3)  # [b, kv_heads, 2, context, head_dim]
    return functional.scaled_dot_product_attention(
        query, gathered[:, :, 0], gathered[:, :, 1], attn_mask=mask, enable_gqa=True
    )
