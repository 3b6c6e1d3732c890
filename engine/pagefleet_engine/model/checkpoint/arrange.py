"""Brings a family's stored tensors into the shapes and the order in which the layers use them. Nothing is read before its use.

Merged and stacked tensors become several, rotated elements lie in halves, norms hold their whole factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch

from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.model.families.family import Family, Piece

Tensor = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Changed:
    """A tensor that follows from a stored one."""

    stored: Tensor
    change: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self) -> torch.Tensor:
        return self.change(self.stored())


@runtime_checkable
class Stack(Protocol):
    """A stored tensor of one matrix for each expert, which can be read apart."""

    def expert(self, index: int) -> torch.Tensor: ...


def arranged(tensors: Mapping[str, Tensor], family: Family, config: ModelConfig) -> dict[str, Tensor]:
    """The tensors by the names that the layers use. `tensors` have the names that `family.tensor` gives."""
    split: dict[str, Tensor] = {}
    for name, stored in tensors.items():
        pieces = family.pieces(name, config)
        split |= {part: partial(_piece, piece, stored) for part, piece in pieces.items()}
        if not pieces:
            split[name] = stored
    return {name: _whole(name, stored, config) for name, stored in split.items()}


def rotated_rows(name: str, config: ModelConfig) -> torch.Tensor | None:
    """The order of the rows of q, k and their norms in which rotated elements lie in halves; None: they lie so."""
    options = config.options
    if config.rotary_dim == config.head_dim and not options.rotary_interleaved:
        return None
    module = name.rpartition(".")[0]
    per_head = not options.whole_qk_norm
    heads = {
        ".self_attn.q_proj": config.heads, ".self_attn.k_proj": config.kv_heads,
        ".self_attn.q_norm": 1 if per_head else config.heads, ".self_attn.k_norm": 1 if per_head else config.kv_heads,
    }  # fmt: skip
    count = next((count for end, count in heads.items() if module.endswith(end)), None)
    if count is None:
        return None
    return halves(count, config.head_dim, config.rotary_dim, options.rotary_interleaved)


def _piece(piece: Piece, stored: Tensor) -> torch.Tensor:
    if piece.expert is None:
        tensor = stored()
    else:
        tensor = stored.expert(piece.expert) if isinstance(stored, Stack) else stored()[piece.expert]
    if piece.transposed:
        tensor = tensor.t()
    return tensor[piece.begin : piece.end : piece.step].contiguous()


def _whole(name: str, stored: Tensor, config: ModelConfig) -> Tensor:
    offset = config.options.norm_offset
    if offset and name.rpartition(".")[0].endswith("norm"):
        return Changed(stored, lambda tensor: tensor.float() + offset)
    order = rotated_rows(name, config)
    return stored if order is None else Changed(stored, lambda tensor: tensor[order])


def halves(heads: int, head_dim: int, rotary_dim: int, interleaved: bool) -> torch.Tensor:
    """[heads * head_dim] int64: the rows of q or k, of a layout in which each head's first `rotary_dim` elements turn, in the
    order in which pair i is elements i and i + head_dim / 2 and the first pairs turn. Scores stay the same.
    """
    own = torch.arange(rotary_dim)
    first, second = (own[0::2], own[1::2]) if interleaved else own.chunk(2)
    rest = torch.arange(rotary_dim, head_dim)
    middle = (head_dim - rotary_dim) // 2
    order = torch.cat((first, rest[:middle], second, rest[middle:]))
    return (torch.arange(heads).unsqueeze(1) * head_dim + order).flatten()
