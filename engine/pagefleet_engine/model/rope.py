"""Rotary position embedding (Su et al., 2021), halves as Hugging Face lays them out."""

from __future__ import annotations

import torch


def table(
    head_dim: int, theta: float, positions: int, divisors: tuple[float, ...] = (), scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [positions, head_dim], float32; sin's first half is negated so that one multiply-add applies it.

    `divisors` [head_dim / 2] slow each pair's frequency down, empty: none does; `scale` multiplies both tables
    (YaRN's attention temperature).
    """
    inverse = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if divisors:
        inverse = inverse / torch.tensor(divisors)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse)
    cos, sin = angles.cos().mul_(scale), angles.sin().mul_(scale)
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [tokens, heads, head_dim]; cos and sin [tokens, 1, head_dim] of each token's position."""
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return torch.addcmul(x * cos, swapped, sin)
