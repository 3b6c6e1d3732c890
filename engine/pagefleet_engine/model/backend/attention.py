"""Our paged attention behind transformers' attention interface. https://huggingface.co/docs/transformers/attention_interface

Models of transformers look the function of an attention up by name, and that of its mask. Both are registered once for
the process; what they do is the business of the pass that is running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from pagefleet_kernels.cpu import Attention, Batch, KVPages, Operations
from pagefleet_kernels.cpu.layout import LANES, MAX_HEAD_DIM

NAME = "pagefleet"
MaskFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Unsupported(Exception):
    """What a model's attention does that ours does not."""


class Pass(Protocol):
    """One forward pass of the body of a model."""

    def mask(self, function: MaskFunction) -> torch.Tensor | None:
        """Return what the layers get as their mask; `function` tells of (batch, head, query, key) whether it attends."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        """Query [1, heads, n, d], key and value [1, kv_heads, n, d] -> [1, n, heads, d of values]."""


_running: ContextVar[Pass] = ContextVar("_running")


@contextmanager
def running(one: Pass) -> Iterator[None]:
    """Make `one` the pass that the registered functions serve."""
    token = _running.set(one)
    try:
        yield
    finally:
        _running.reset(token)


def register() -> None:
    """Make the attention known to transformers under NAME."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _mask)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    layer = getattr(module, "layer_idx", None)
    layer = layer if isinstance(layer, int) else -1
    return _running.get().attend(layer, query, key, value, attention_mask, options), None


def _mask(*, mask_function: MaskFunction, **_: Any) -> torch.Tensor | None:
    return _running.get().mask(mask_function)


@dataclass(frozen=True)
class LayerShape:
    """The heads of one layer's keys and values, and what its attention computes."""

    kv_heads: int
    key_dim: int
    value_dim: int
    attention: Attention

    @property
    def head_dim(self) -> int:
        """Return the elements of a head in our pages: keys and values are filled up with zeros."""
        return -(-max(self.key_dim, self.value_dim) // LANES) * LANES


class Learning:
    """A pass over a few tokens of one sequence that learns each layer's shape and window. It attends to nothing.

    The window is that of the mask, as in transformers' own attention, whatever else the layer is told. `length`: the
    most tokens of a sequence; the mask is looked at in places up to it.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._masks: list[tuple[torch.Tensor, int]] = []
        self._layers: dict[int, LayerShape] = {}

    def layers(self, least: int) -> list[LayerShape]:
        """Return the layers in their order. Raises Unsupported unless there are at least `least`, and each attended once."""
        if sorted(self._layers) != list(range(max(least, len(self._layers)))):
            raise Unsupported(
                f"{len(self._layers)} of {least} layers attend through transformers' interface: "
                "the others have another state or an attention of their own"
            )
        return [self._layers[index] for index in sorted(self._layers)]

    def mask(self, function: MaskFunction) -> torch.Tensor:
        last = self._length - 1
        queries = torch.tensor(sorted({0, last // 3, last // 2, last})).view(1, 1, -1, 1)
        keys, one = torch.arange(self._length).view(1, 1, 1, -1), torch.zeros(1, 1, 1, 1, dtype=torch.long)
        allowed = function(one, one, queries, keys).expand(1, 1, queries.shape[2], self._length)
        window = int(allowed[0, 0, -1].sum())
        if not torch.equal(allowed, (keys <= queries) & (keys > queries - window)):
            raise Unsupported("a layer attends to other tokens than those before it, or the last of those")
        mask = allowed.clone()
        self._masks.append((mask, 0 if window == self._length else window))
        return mask

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        if layer < 0 or layer in self._layers:
            raise Unsupported("a layer attends more than once, or has no number")
        heads, kv_heads, key_dim, value_dim = query.shape[1], key.shape[1], key.shape[3], value.shape[3]
        if (
            heads % kv_heads
            or value.shape[1] != kv_heads
            or query.shape[3] != key_dim
            or key.shape[2] != query.shape[2]
        ):
            raise Unsupported(
                f"{heads} query heads of {query.shape[3]} elements over {kv_heads} key heads of {key_dim}"
            )
        scale, cap, sinks = options.get("scaling"), options.get("softcap"), options.get("s_aux")
        attention = Attention(
            key_dim**-0.5 if scale is None else float(scale),
            self._window(mask),
            float(cap or 0.0),
            None if sinks is None else sinks.detach().float().contiguous(),
        )
        shape = LayerShape(kv_heads, key_dim, value_dim, attention)
        if shape.head_dim > MAX_HEAD_DIM:
            raise Unsupported(f"its heads have {shape.head_dim} elements, at most {MAX_HEAD_DIM} are supported")
        self._layers[layer] = shape
        return query.new_zeros(1, query.shape[2], heads, value_dim)

    def _window(self, mask: torch.Tensor | None) -> int:
        for known, window in self._masks:
            if mask is not None and mask.untyped_storage().data_ptr() == known.untyped_storage().data_ptr():
                return window
        raise Unsupported("a layer has a mask of its own, or none")


class Paged:
    """A pass over a step's tokens, all in one row: keys and values are written to the pages and read from there."""

    def __init__(
        self, layers: Sequence[LayerShape], cache: Sequence[KVPages], batch: Batch, operations: Operations
    ) -> None:
        self._layers, self._cache, self._operations = layers, cache, operations
        # Keys and queries arrive rotated: those of position 0 are not turned.
        self._batch, self._unmoved = batch, replace(batch, positions=torch.zeros_like(batch.positions))

    def mask(self, function: MaskFunction) -> None:
        """Return no mask: the batch says what each token attends to."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        shape, pages = self._layers[layer], self._cache[layer]
        heads, count, kv_heads, size = query.shape[1], query.shape[2], shape.kv_heads, shape.head_dim
        qkv = query.new_zeros(count, heads + 2 * kv_heads, size)
        qkv[:, :heads, : shape.key_dim] = query[0].transpose(0, 1)
        qkv[:, heads : heads + kv_heads, : shape.key_dim] = key[0].transpose(0, 1)
        qkv[:, heads + kv_heads :, : shape.value_dim] = value[0].transpose(0, 1)
        still = torch.ones(1, size // 2), torch.zeros(1, size // 2)
        self._operations.rope_write(qkv, still, None, pages, self._unmoved)
        attended = self._operations.attend(qkv, pages, self._batch, shape.attention)
        return attended.view(1, count, heads, size)[..., : shape.value_dim]
