"""Rotary position embedding (Su et al., 2021), halves as Hugging Face lays them out."""

from __future__ import annotations

import torch

from pagefleet_engine.model.checkpoint.config import ModelConfig

Table = tuple[torch.Tensor, torch.Tensor]


def tables(config: ModelConfig, positions: int) -> list[Table]:
    """Each layer's `table` for `positions` positions. Layers of the same angles share one."""
    options, rotary = config.options, config.rotary_dim
    long = config.long_rope_divisors and positions > config.original_position
    divisors = config.long_rope_divisors if long else config.rope_divisors
    made: dict[str, Table] = {}
    angles: tuple[int, float, int, tuple[float, ...], float]
    result = []
    for layer in range(config.layers):
        if options.rotary_layers and not options.rotary_layers[layer]:
            kind, angles = "none", (2, 10000.0, positions, (), 1.0)
        elif options.sliding_theta is not None and config.window(layer) is not None:
            kind, angles = "sliding", (rotary, options.sliding_theta, positions, (), 1.0)
        else:
            kind, angles = "full", (rotary, config.rope_theta, positions, divisors, config.rope_scale)
        if kind not in made:
            cos, sin = table(*angles)
            rotated = (cos[:, :0], sin[:, :0]) if kind == "none" else (cos, sin)
            made[kind] = widened(rotated, config.head_dim // 2)
        result.append(made[kind])
    return result


def table(head_dim: int, theta: float, positions: int, divisors: tuple[float, ...] = (), scale: float = 1.0) -> Table:
    """cos and sin [positions, head_dim / 2], float32: both halves of a head turn by the same angles.

    `divisors` [head_dim / 2] slow each pair's frequency down, empty: none does; `scale` multiplies both tables
    (YaRN's attention temperature).
    """
    inverse = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if divisors:
        inverse = inverse / torch.tensor(divisors)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse)
    return angles.cos().mul_(scale), angles.sin().mul_(scale)


def widened(rotated: Table, pairs: int) -> Table:
    """A table of `pairs` pairs, of which those that `rotated` lacks do not turn."""
    cos, sin = rotated
    missing = pairs - cos.shape[1]
    if not missing:
        return rotated
    still = cos.new_ones(cos.shape[0], missing)
    return torch.cat((cos, still), dim=1), torch.cat((sin, torch.zeros_like(still)), dim=1)
