"""The layout of a batch and of the KV pages in memory, and the interface of a set of CPU operations."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

LANES = 16  # positions whose keys lie side by side: one 512-bit register of float32
GROUP, FINE_GROUP = 64, 32  # elements along the inner dimension that share an int8 scale
KEPT_BITS = 4  # of the codes that int8 products multiply as they are
MAX_HEAD_DIM = 256


@dataclass(frozen=True)
class Batch:
    """One step's tokens, sequence after sequence; every tensor is contiguous."""

    positions: torch.Tensor  # [n] int32
    slots: torch.Tensor  # [n] int32: page * page_size + offset, where each token's key and value go
    first: torch.Tensor  # [sequences + 1] int32: each sequence's first row, and n
    context: torch.Tensor  # [sequences] int32: positions up to and with each sequence's last row here
    table: torch.Tensor  # [sequences, widest] int32: each sequence's pages in order
    sampled: torch.Tensor  # [sampled] int64: rows that need logits


@dataclass(frozen=True)
class Draw:
    """One token to be drawn from row `row` of the logits. `uniform` [0, 1) decides; `top_k` 0, `top_p` 1, `min_p` 0 are off.

    `temperature` 0 takes the largest logit, the first of equals.
    """

    row: int
    uniform: float
    temperature: float
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0


def _untouched(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros in an anonymous mapping, which begins with a page of memory and takes no memory before it is written. torch.zeros
    writes all of them."""
    count = math.prod(shape)
    mapping = mmap.mmap(-1, max(1, count) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(mapping, dtype=dtype, count=count).view(shape)


@dataclass(frozen=True)
class KVPages:
    """One layer's pages, float32 or float16."""

    keys: torch.Tensor  # [pages, kv_heads, page_size / 16, head_dim, 16]
    values: torch.Tensor  # [pages, kv_heads, page_size, head_dim]

    @classmethod
    def zeros(cls, pages: int, kv_heads: int, page_size: int, head_dim: int, dtype: torch.dtype) -> KVPages:
        """Pages of zeros, which take memory when they are first written. Raises ValueError for sizes that the layout cannot hold."""
        if page_size % LANES or head_dim % LANES or head_dim > MAX_HEAD_DIM:
            raise ValueError(
                f"pages hold a multiple of {LANES} tokens and heads a multiple of {LANES} elements up to "
                f"{MAX_HEAD_DIM}, not {page_size} and {head_dim}"
            )
        keys = _untouched((pages, kv_heads, page_size // LANES, head_dim, LANES), dtype)
        return cls(keys, _untouched((pages, kv_heads, page_size, head_dim), dtype))

    @property
    def page_size(self) -> int:
        return self.values.shape[2]

    def copy(self, source: int, target: int) -> None:
        """One page onto another: a fork's own copy of a page that is not full."""
        self.keys[target] = self.keys[source]
        self.values[target] = self.values[source]


@dataclass(frozen=True)
class Coded:
    """A matrix as GGUF's types hold it: scale * code + offset, every one of which is exactly one float32.

    The product of scale and code has no more than 24 significant bits, so it does not matter whether it is rounded
    before the offset is added.
    """

    codes: torch.Tensor  # [n, k] uint8
    scales: torch.Tensor  # [n, k / group] float32; groups are of 16 or 32
    offsets: torch.Tensor  # [n, k / group] float32
    bits: int  # 4 or 8: codes are less than 2 ** bits

    @property
    def group(self) -> int:
        return self.codes.shape[1] // self.scales.shape[1]

    @property
    def kept_by_int8(self) -> bool:
        """Whether int8 products multiply the codes themselves; they make int8 weights of others."""
        return self.bits == KEPT_BITS and self.group == FINE_GROUP

    @classmethod
    def below(cls, parts: Sequence[Coded]) -> Coded:
        """Matrices below one another: codes of the most bits and the finest groups among them. One alone is not copied: an output
        matrix is the largest of a model."""
        if len(parts) == 1:
            return parts[0]
        finest, bits = min(part.group for part in parts), max(part.bits for part in parts)

        def joined(ends: Sequence[torch.Tensor]) -> torch.Tensor:
            return torch.cat(
                [end.repeat_interleave(part.group // finest, dim=1) for part, end in zip(parts, ends, strict=True)]
            )

        scales, offsets = joined([part.scales for part in parts]), joined([part.offsets for part in parts])
        return cls(torch.cat([part.codes for part in parts]), scales, offsets, bits)

    def floats(self) -> torch.Tensor:
        """[n, k] float32."""
        grouped = self.codes.view(*self.scales.shape, -1).float()
        return grouped.mul_(self.scales.unsqueeze(2)).add_(self.offsets.unsqueeze(2)).view(self.codes.shape)


# A matrix [n, k], or several of one dtype that lie below one another.
Weight = torch.Tensor | Coded | Sequence[torch.Tensor]


def below_one_another(weight: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The parts of a weight that is no codes."""
    return [weight] if isinstance(weight, torch.Tensor) else list(weight)


def floats(weight: Weight) -> torch.Tensor:
    """float32 [n, k] of a weight of any form."""
    if isinstance(weight, Coded):
        return weight.floats()
    first, *others = [part.float() for part in below_one_another(weight)]
    return torch.cat([first, *others]) if others else first


Norm = tuple[torch.Tensor, float]  # of an RMS norm: weight [size] and epsilon
# Functions of a gated product's two halves: silu(a) * b, gelu(a) * b by GELU's tanh approximation, and gpt-oss's
# a * sigmoid(1.702 a) * (b + 1) with a at most 7 and b within -7 to 7.
ACTIVATIONS = ("silu", "gelu_tanh", "clamped_swiglu")


@dataclass(frozen=True)
class Attention:
    """What a layer's attention computes. A token attends to `window` positions, itself included; 0: all.

    Scores are multiplied by `scale`, and with a `cap` above 0 become cap * tanh(score / cap). `sinks` [heads] are scores
    that take part in the softmax and have no value (gpt-oss).
    """

    scale: float
    window: int = 0
    cap: float = 0.0
    sinks: torch.Tensor | None = None


class Linear(Protocol):
    """A matrix product whose weight was prepared once."""

    def __call__(self, x: torch.Tensor, into: torch.Tensor | None = None, norm: Norm | None = None) -> torch.Tensor:
        """x [rows, k] float32, normalised where `norm` is given -> x w^T + bias [rows, n].

        With `into`, the product is added to it, and `into` is returned.
        """


@dataclass(frozen=True)
class DenseLayer:
    """A decoder layer with a dense MLP, whose results are added to the residual as they are: x += out(attention of qkv(x
    normalised)), then x += the MLP of x normalised. The products and the fields are those of `Operations`' methods.
    """

    tables: tuple[torch.Tensor, torch.Tensor]
    attention_norm: Norm | None
    qkv: Any
    head_norms: tuple[torch.Tensor, torch.Tensor, float] | None
    attention: Attention
    out: Any
    mlp_norm: Norm | None
    gate_up: Any
    down: Any


class DenseLayers(Protocol):
    """Layers that follow one another, prepared once."""

    def __call__(self, x: torch.Tensor, pages: Sequence[KVPages], batch: Batch) -> None:
        """x [rows, hidden] goes through the first layers, as many as `pages` has, in place."""


class Experts(Protocol):
    """The MLPs of a mixture of experts, prepared once."""

    def __call__(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x [rows, hidden] -> the sum over a row's experts `chosen` [rows, top] int32 of `weights` [rows, top] times each
        expert's MLP of x. A row adds them in the order of their numbers.
        """


class Operations(Protocol):
    """All tensors are contiguous float32 on the CPU unless a method states otherwise."""

    name: str
    instructions: str  # that they are compiled for; empty for torch's own
    threads: int  # of the caller that may prepare products at the same time

    def linear(
        self,
        weight: Weight,
        bias: torch.Tensor | None,
        int8: bool,
        group: int = GROUP,
        gated: str = "",
    ) -> Linear:
        """Prepare `weight` [n, k], float32, bfloat16 or float16, or in several parts. Operations that pack the weight do not hold the tensor.

        int8 has groups of GROUP or FINE_GROUP elements. Fine groups lose less precision and take an eighth more time. With
        codes that are `kept_by_int8` only x is rounded, always in groups of FINE_GROUP. A product that is `gated` by one
        of ACTIVATIONS can be the first one of an MLP.
        """

    def mlp(self, x: torch.Tensor, norm: Norm | None, gate_up: Any, down: Any, add: bool = True) -> torch.Tensor:
        """down(gated(gate_up(x normalised))) of x [rows, hidden]: added to x, which is returned, or in a tensor of its own.

        Both are this object's own `linear`, the first gated.
        """

    def experts(self, gate_up: Sequence[Any], down: Sequence[Any]) -> Experts:
        """Prepare the MLPs of one layer's experts; each has two products as `mlp` has."""

    def layers(self, layers: Sequence[DenseLayer]) -> DenseLayers:
        """Prepare layers to be computed in one call: the same numbers, bit by bit, as by one method after the other."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """x [rows, size] over its root mean square, times weight [size]."""

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """x [rows, 2 inner] -> one of ACTIVATIONS of its two halves, [rows, inner]."""

    def rope_write(
        self,
        qkv: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        norms: tuple[torch.Tensor, torch.Tensor, float] | None,
        pages: KVPages,
        batch: Batch,
    ) -> None:
        """Rotate queries and keys of qkv [n, heads + 2 kv_heads, head_dim] in place; write keys and values to pages.

        `tables`: cos and sin [positions, head_dim / 2]. `norms`: the weights of each query head's and key head's
        RMS norm and its epsilon, for models that have it.
        """

    def attend(self, qkv: torch.Tensor, pages: KVPages, batch: Batch, attention: Attention) -> torch.Tensor:
        """Causal attention of the queries in qkv [n, heads + 2 kv_heads, head_dim] -> [n, heads * head_dim]."""

    def sample(self, logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
        """Tokens drawn from softmax(row / temperature) of logits [rows, vocab], cut by top-k, top-p, min-p in this order.

        By inversion: the first token, in the order of ids, at which the sum of the remaining probabilities passes
        `uniform` of their total.
        """
