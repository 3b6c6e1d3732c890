"""The Llama family on a device: one rank's forward pass over its paged KV pool, through the kernels of one set.

The residual stream goes through the norms: each adds the output of the layer before it, in the same launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from pagefleet_engine.model import rope
from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.runner.device.model.linear import Linear
from pagefleet_engine.runner.device.model.shard import Shard
from pagefleet_engine.runner.device.model.weights import Cut, Reader
from pagefleet_kernels.kernels import Kernels


class Changes(Protocol):
    """The changes that LoRA adapters add to a layer's products."""

    def add(self, layer: int, product: str, x: torch.Tensor, y: torch.Tensor) -> None: ...


@dataclass(frozen=True)
class Layout:
    """The layout of one step's tokens: see build_inputs and paged_attention. `tables` [sequences, most pages] int32."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    kv_lens: torch.Tensor
    query_starts: torch.Tensor
    tables: torch.Tensor
    longest_query: int
    longest_kv: int


class Pool:
    """KV pages of all layers in one tensor [2 layers, pages, page_size, kv_heads, head_dim]: keys, then values."""

    def __init__(
        self, model: ModelConfig, pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (2 * model.layers, pages, page_size, model.kv_heads, model.head_dim)
        self.memory = torch.zeros(shape, dtype=dtype, device=device)
        self.page_size, self.pages = page_size, pages

    def keys(self, layer: int) -> torch.Tensor:
        return self.memory[2 * layer]

    def values(self, layer: int) -> torch.Tensor:
        return self.memory[2 * layer + 1]


@dataclass(frozen=True)
class Layer:
    attention_norm: torch.Tensor
    qkv: Linear
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    window: int


class DeviceLlama:
    """Raises ModelError for tensors that are missing, of a wrong shape, or not of this architecture."""

    def __init__(
        self, config: ModelConfig, reader: Reader, shard: Shard, positions: int, kernels: Kernels,
        device: torch.device, dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        self.config, self._own, self._shard, self._kernels = config, shard.config(config), shard, kernels
        self._embedding = reader.embedding(config.vocab_size, config.hidden_size, dtype)
        self.dtype, self.device = reader.dtype, device
        begin, end = shard.rows(config.vocab_size)
        self._head = self._embedding[begin:end] if config.tied else reader.head(config.vocab_size, config.hidden_size)
        self._norm = reader.vector("model.norm.weight", config.hidden_size)
        self._layers = [self._layer(reader, index) for index in range(config.layers)]
        left = [name for name in reader.left() if name != "lm_head.weight"]
        if left:
            raise ModelError(SOURCE, f"{len(left)} tensors are not of a {config.kind} model, the first is {left[0]}")
        cos, sin = rope.table(config.head_dim, config.rope_theta, positions, config.rope_divisors, config.rope_scale)
        self._cos, self._sin = cos.to(device), sin.to(device)

    def _layer(self, reader: Reader, index: int) -> Layer:
        config, prefix = self.config, f"model.layers.{index}."
        hidden, inner, q, kv = config.hidden_size, config.intermediate_size, config.q_size, config.kv_size
        attention, mlp, norms = f"{prefix}self_attn.", f"{prefix}mlp.", None
        if config.qk_norm:
            norms = (
                reader.vector(f"{attention}q_norm.weight", config.head_dim),
                reader.vector(f"{attention}k_norm.weight", config.head_dim),
            )
        heads = {"q_proj": q, "k_proj": kv, "v_proj": kv}
        return Layer(
            reader.vector(f"{prefix}input_layernorm.weight", hidden),
            reader.merged(attention, heads, hidden, Cut.ROWS, config.attention_bias),
            norms,
            reader.merged(attention, {"o_proj": hidden}, q, Cut.COLUMNS),
            reader.vector(f"{prefix}post_attention_layernorm.weight", hidden),
            reader.merged(mlp, {"gate_proj": inner, "up_proj": inner}, hidden, Cut.ROWS),
            reader.merged(mlp, {"down_proj": hidden}, inner, Cut.COLUMNS),
            config.window(index) or 0,
        )

    def pool(self, pages: int, page_size: int, dtype: torch.dtype) -> Pool:
        return Pool(self._own, pages, page_size, dtype, self.device)

    def page_bytes(self, page_size: int, dtype: torch.dtype) -> int:
        """Keys and values of one page in all layers, on this rank."""
        return 2 * self._own.layers * self._own.kv_size * page_size * dtype.itemsize

    def forward(self, layout: Layout, pool: Pool, changes: Changes | None = None) -> torch.Tensor:
        """Last hidden states [n, hidden], normalised. The pool is written in place."""
        eps, kernels = self.config.norm_eps, self._kernels
        x, residual = functional.embedding(layout.tokens, self._embedding), None
        for index, layer in enumerate(self._layers):
            normed, residual = kernels.rms_norm(x, layer.attention_norm, eps, residual)
            qkv = layer.qkv(normed)
            if changes:
                changes.add(index, "qkv", normed, qkv)
            attended = self._attend(index, layer, qkv, layout, pool)
            x = layer.out(attended)
            if changes:
                changes.add(index, "out", attended, x)
            normed, residual = kernels.rms_norm(self._shard.summed(x), layer.mlp_norm, eps, residual)
            gate_up = layer.gate_up(normed)
            if changes:
                changes.add(index, "gate_up", normed, gate_up)
            inner = kernels.silu_mul(gate_up)
            x = layer.down(inner)
            if changes:
                changes.add(index, "down", inner, x)
            x = self._shard.summed(x)
        return kernels.rms_norm(x, self._norm, eps, residual)[0]

    def _attend(self, index: int, layer: Layer, qkv: torch.Tensor, layout: Layout, pool: Pool) -> torch.Tensor:
        own, kernels = self._own, self._kernels
        heads = qkv.view(qkv.shape[0], -1, own.head_dim)
        q, k, v = torch.split(heads, [own.heads, own.kv_heads, own.kv_heads], dim=1)
        keys, values = pool.keys(index), pool.values(index)
        q_norm, k_norm = layer.head_norms or (None, None)
        q = kernels.rope_write(
            q, k, v, self._cos, self._sin, layout.positions, layout.slots, keys.flatten(0, 1), values.flatten(0, 1),
            q_norm=q_norm, k_norm=k_norm, eps=own.norm_eps,
        )  # fmt: skip
        attended = kernels.paged_attention(
            q, keys, values, layout.tables, layout.query_starts, layout.kv_lens, own.head_dim**-0.5,
            layout.longest_query, longest_kv=layout.longest_kv, window=layer.window,
        )  # fmt: skip
        return attended.view(qkv.shape[0], -1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocab] of last hidden states [rows, hidden], the same on every rank."""
        return self._shard.gathered(functional.linear(hidden, self._head), self.config.vocab_size)
