"""The compiled CPU operations, called through ctypes. Checks nothing per call: shapes are the model's own business."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from ctypes import byref, c_void_p
from typing import Any

import torch

from pagefleet_kernels.cpu.layout import (
    ACTIVATIONS,
    GROUP,
    Attention,
    Batch,
    Coded,
    DenseLayer,
    Draw,
    KVPages,
    Norm,
    Weight,
    below_one_another,
)
from pagefleet_kernels.cpu.library import (
    AttentionJob,
    DrawJob,
    LayerJob,
    PagesJob,
    Rectangle,
    RopeJob,
    StepJob,
    load,
    named,
)

# The values of `Storage` in source/linear.h.
STORAGE_INT8, STORAGE_CODES, STORAGE_CODES_INT8 = 1, {4: 2, 8: 3}, 6
STORAGE = {torch.float32: 0, torch.bfloat16: 4, torch.float16: 5}
# A library's threads have one caller at a time, and a model's layers are prepared by several.
PACKING = threading.Lock()


def _number(name: str) -> int:
    """The number of one of ACTIVATIONS in `Activation` of source/vector.h, 0 for none."""
    return ACTIVATIONS.index(name) + 1 if name else 0


def _norm(norm: Norm | None) -> tuple[int | None, float]:
    """The address of a norm's weight, and its epsilon."""
    return (norm[0].data_ptr(), norm[1]) if norm else (None, 0.0)


def _rectangle(matrix: torch.Tensor) -> Rectangle:
    return Rectangle(matrix.data_ptr(), matrix.shape[0], matrix.stride(0) * matrix.element_size())


class NativeLinear:
    """A packed weight; freed with this object. `group` is int8's; 0: the weight is stored as it is given."""

    def __init__(
        self,
        library: ctypes.CDLL,
        weight: Weight,
        bias: torch.Tensor | None,
        group: int,
        gated: str,
    ) -> None:
        scales = offsets = None
        if isinstance(weight, Coded) and (not group or weight.kept_by_int8):
            storage, read_as = STORAGE_CODES_INT8 if group else STORAGE_CODES[weight.bits], 0
            parts, scales, offsets, group = [weight.codes], weight.scales, weight.offsets, weight.group
        else:
            parts = [weight.floats()] if isinstance(weight, Coded) else below_one_another(weight)
            read_as = STORAGE[parts[0].dtype]
            storage = STORAGE_INT8 if group else read_as
        # Of rows that follow one another in memory: a part may be a view of a file.
        parts = [part if part.stride(1) == 1 else part.contiguous() for part in parts]
        rectangles = (Rectangle * len(parts))(*(_rectangle(part) for part in parts))
        self._library, self._n = library, sum(part.shape[0] for part in parts)
        held = [None if one is None else one.contiguous() for one in (scales, offsets, bias)]
        pointers = [None if one is None else one.data_ptr() for one in held]
        with PACKING:
            self.handle = library.pagefleet_linear(
                storage, read_as, rectangles, len(parts), *pointers, self._n, parts[0].shape[1], group, _number(gated)
            )

    def __call__(self, x: torch.Tensor, into: torch.Tensor | None = None, norm: Norm | None = None) -> torch.Tensor:
        y = x.new_empty(x.shape[0], self._n) if into is None else into
        weight, epsilon = _norm(norm)
        self._library.pagefleet_linear_apply(
            self.handle, x.data_ptr(), weight, epsilon, x.shape[0], y.data_ptr(), into is not None
        )
        return y

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self._library.pagefleet_linear_free(handle)


class NativeExperts:
    """One layer's experts; freed with this object, which holds their products."""

    def __init__(self, library: ctypes.CDLL, gate_up: Sequence[NativeLinear], down: Sequence[NativeLinear]) -> None:
        self._library, self._products = library, (tuple(gate_up), tuple(down))
        arrays = [(c_void_p * len(products))(*(one.handle for one in products)) for products in self._products]
        self._handle = library.pagefleet_experts(*arrays, len(down))

    def __call__(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        self._library.pagefleet_experts_apply(
            self._handle, x.data_ptr(), chosen.data_ptr(), weights.data_ptr(), *chosen.shape, y.data_ptr()
        )
        return y

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._library.pagefleet_experts_free(handle)


class NativeLayers:
    """Layers that one call computes. Holds them, because the library knows only their addresses."""

    def __init__(self, library: ctypes.CDLL, layers: Sequence[DenseLayer]) -> None:
        self._library, self._layers = library, tuple(layers)
        self._jobs = (LayerJob * len(layers))(*(_layer_job(layer) for layer in layers))

    def __call__(self, x: torch.Tensor, pages: Sequence[KVPages], batch: Batch) -> None:
        count = len(pages)
        if count == 0:
            return
        own = (PagesJob * count)(*(PagesJob(one.keys.data_ptr(), one.values.data_ptr()) for one in pages))
        kv_heads, page_size, head_dim = pages[0].values.shape[1:]
        step = StepJob(
            x.data_ptr(), x.shape[0], batch.positions.data_ptr(), batch.slots.data_ptr(), batch.table.data_ptr(),
            batch.table.shape[1], batch.first.data_ptr(), batch.context.data_ptr(), batch.context.shape[0],
            kv_heads, head_dim, page_size,
        )  # fmt: skip
        self._library.pagefleet_decode(self._jobs, count, own, byref(step), pages[0].keys.dtype == torch.float16)


def _layer_job(layer: DenseLayer) -> LayerJob:
    rope, attention = RopeJob(), AttentionJob()
    rope.cos, rope.sin = (table.data_ptr() for table in layer.tables)
    if layer.head_norms is not None:
        rope.q_norm, rope.k_norm = (norm.data_ptr() for norm in layer.head_norms[:2])
        rope.epsilon = layer.head_norms[2]
    own = layer.attention
    attention.window, attention.scale, attention.cap = own.window, own.scale, own.cap
    attention.sinks = None if own.sinks is None else own.sinks.data_ptr()
    attention_norm, attention_epsilon = _norm(layer.attention_norm)
    mlp_norm, mlp_epsilon = _norm(layer.mlp_norm)
    products = (one.handle for one in (layer.qkv, layer.out, layer.gate_up, layer.down))
    return LayerJob(*products, attention_norm, mlp_norm, attention_epsilon, mlp_epsilon, rope, attention)


class Native:
    """Operations of one process, by the fastest instructions or the named ones. `library` is loaded in their stead.

    The first use of a library fixes its number of threads for the life of the process. Raises OSError when the library
    cannot be loaded or used.
    """

    name = "native"

    def __init__(self, threads: int, instructions: str = "", library: Any = None) -> None:
        chosen = None if library else named(instructions)
        self.instructions = chosen.name if chosen else instructions
        self._library = load(chosen.library) if chosen else library
        self.threads = threads
        self._library.pagefleet_threads(threads)

    def linear(
        self,
        weight: Weight,
        bias: torch.Tensor | None,
        int8: bool,
        group: int = GROUP,
        gated: str = "",
    ) -> NativeLinear:
        return NativeLinear(self._library, weight, bias, group if int8 else 0, gated)

    def mlp(
        self, x: torch.Tensor, norm: Norm | None, gate_up: NativeLinear, down: NativeLinear, add: bool = True
    ) -> torch.Tensor:
        weight, epsilon = _norm(norm)
        y = x if add else torch.empty_like(x)
        self._library.pagefleet_mlp(
            gate_up.handle, down.handle, weight, epsilon, x.shape[0], x.data_ptr(), y.data_ptr(), add
        )
        return y

    def experts(self, gate_up: Sequence[NativeLinear], down: Sequence[NativeLinear]) -> NativeExperts:
        return NativeExperts(self._library, gate_up, down)

    def layers(self, layers: Sequence[DenseLayer]) -> NativeLayers:
        return NativeLayers(self._library, layers)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        y = torch.empty_like(x)
        self._library.pagefleet_rms_norm(x.data_ptr(), weight.data_ptr(), y.data_ptr(), *x.shape, epsilon)
        return y

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        rows, inner = x.shape[0], x.shape[1] // 2
        y = x.new_empty(rows, inner)
        self._library.pagefleet_gate(_number(activation), x.data_ptr(), y.data_ptr(), rows, inner)
        return y

    def rope_write(
        self,
        qkv: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        norms: tuple[torch.Tensor, torch.Tensor, float] | None,
        pages: KVPages,
        batch: Batch,
    ) -> None:
        q_norm, k_norm, epsilon = (norms[0].data_ptr(), norms[1].data_ptr(), norms[2]) if norms else (None, None, 0.0)
        kv_heads = pages.values.shape[1]
        job = RopeJob(
            qkv.data_ptr(), q_norm, k_norm, tables[0].data_ptr(), tables[1].data_ptr(), batch.positions.data_ptr(),
            batch.slots.data_ptr(), pages.keys.data_ptr(), pages.values.data_ptr(), qkv.shape[0],
            qkv.shape[1] - 2 * kv_heads, kv_heads, qkv.shape[2], pages.page_size, epsilon,
        )  # fmt: skip
        self._library.pagefleet_rope(byref(job), pages.keys.dtype == torch.float16)

    def attend(self, qkv: torch.Tensor, pages: KVPages, batch: Batch, attention: Attention) -> torch.Tensor:
        kv_heads, head_dim = pages.values.shape[1], qkv.shape[2]
        heads = qkv.shape[1] - 2 * kv_heads
        out = qkv.new_empty(qkv.shape[0], heads * head_dim)
        job = AttentionJob(
            qkv.data_ptr(), qkv.stride(0), out.data_ptr(), pages.keys.data_ptr(), pages.values.data_ptr(),
            batch.table.data_ptr(), batch.table.shape[1], batch.first.data_ptr(), batch.context.data_ptr(),
            batch.context.shape[0], heads, kv_heads, head_dim, pages.page_size,
            attention.window, attention.scale, attention.cap,
            None if attention.sinks is None else attention.sinks.data_ptr(),
        )  # fmt: skip
        self._library.pagefleet_attend(byref(job), pages.keys.dtype == torch.float16)
        return out

    def sample(self, logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
        jobs = (DrawJob * len(draws))(
            *(DrawJob(draw.row, draw.uniform, draw.temperature, draw.top_p, draw.min_p, draw.top_k) for draw in draws)
        )
        self._library.pagefleet_sample(logits.data_ptr(), logits.shape[1], jobs, len(draws))
        return [job.token for job in jobs]
