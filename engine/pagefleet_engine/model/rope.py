"""Rotary position embedding (Su et al., 2021), halves as Hugging Face lays them out."""

from __future__ import annotations

import torch


def table(
    head_dim: int, theta: float, positions: int, divisors: tuple[float, ...] = (), scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [positions, head_dim / 2], float32: both halves of a head turn by the same angles.

    `divisors` [head_dim / 2] slow each pair's frequency down, empty: none does; `scale` multiplies both tables
    (YaRN's attention temperature).
    """
    inverse = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if divisors:
        inverse = inverse / torch.tensor(divisors)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse)
    return angles.cos().mul_(scale), angles.sin().mul_(scale)
