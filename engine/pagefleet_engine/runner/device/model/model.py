"""The decoder of every family on a device: one rank's forward pass over its paged KV pool, through the kernels of one set.

The residual stream goes through the norms: each adds the output of the layer before it, in the same launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch.nn import functional

from pagefleet_engine.model import rope
from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.served import Tap
from pagefleet_engine.runner.device.model.linear import Linear
from pagefleet_engine.runner.device.model.mlp import Mixture, Mlp, dense, mixture
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


@dataclass(frozen=True, kw_only=True)
class AttentionLayer:
    """tables: cos and sin. head_norms: of each head of q and of k; whole_norms: of all heads of q, and of k, together."""

    tables: tuple[torch.Tensor, torch.Tensor]
    head_norms: tuple[torch.Tensor, torch.Tensor] | None = None
    whole_norms: tuple[torch.Tensor, torch.Tensor] | None = None
    sinks: torch.Tensor | None = None
    window: int = 0


@dataclass(frozen=True, kw_only=True)
class Layer(AttentionLayer):
    attention_norm: torch.Tensor | None
    qkv: Linear
    out: Linear
    out_norm: torch.Tensor | None
    mlp_norm: torch.Tensor | None
    mlp: Mlp | Mixture
    mlp_out_norm: torch.Tensor | None


class DeviceDecoder:
    """Raises ModelError for tensors that are missing, of a wrong shape, or not of this architecture."""

    def __init__(
        self, config: ModelConfig, reader: Reader, shard: Shard, positions: int, kernels: Kernels,
        device: torch.device, dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        self.config, self._own, self._shard, self._kernels = config, shard.config(config), shard, kernels
        self.embedding = reader.embedding(config.vocab_size, config.hidden_size, dtype)
        self.dtype, self.device = reader.dtype, device
        begin, end = shard.rows(config.vocab_size)
        self._head = self.embedding[begin:end] if config.tied else reader.head(config.vocab_size, config.hidden_size)
        self._norm = reader.norm("model.norm.weight", config.hidden_size, bool(config.options.norm_offset))
        shared: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # several layers have one table
        tables = rope.tables(config, positions)
        for cos, sin in tables:
            if id(cos) not in shared:
                shared[id(cos)] = cos.to(device), sin.to(device)
        self._layers = [self._layer(reader, index, shared[id(tables[index][0])]) for index in range(config.layers)]
        self._embedding_scale = float(torch.tensor(config.options.embedding_scale, dtype=reader.dtype))
        left = [name for name in reader.left() if name != "lm_head.weight"]
        if left:
            raise ModelError(SOURCE, f"{len(left)} tensors are not of a {config.kind} model, the first is {left[0]}")

    def _layer(self, reader: Reader, index: int, tables: tuple[torch.Tensor, torch.Tensor]) -> Layer:
        config, options, prefix = self.config, self.config.options, f"model.layers.{index}."
        hidden, q, kv = config.hidden_size, config.q_size, config.kv_size
        norm = partial(reader.norm, wide=bool(options.norm_offset))
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        sizes = (q, kv) if options.whole_qk_norm else (config.head_dim, config.head_dim)
        norms = None
        if config.qk_norm or options.whole_qk_norm:
            q_norm = norm(f"{attention}q_norm.weight", sizes[0])
            norms = q_norm, norm(f"{attention}k_norm.weight", sizes[1])
        heads = {"q_proj": q, "k_proj": kv, "v_proj": kv}
        sparse = options.experts is not None and options.experts.within(index)
        return Layer(
            tables=tables,
            head_norms=norms if config.qk_norm else None,
            whole_norms=norms if options.whole_qk_norm else None,
            sinks=reader.part(f"{attention}sinks", config.heads) if options.sinks else None,
            window=config.window(index) or 0,
            attention_norm=norm(f"{prefix}input_layernorm.weight", hidden) if options.pre_norms else None,
            qkv=reader.merged(attention, heads, hidden, Cut.ROWS, config.attention_bias),
            out=reader.merged(attention, {"o_proj": hidden}, q, Cut.COLUMNS),
            out_norm=norm(f"{attention}output_norm.weight", hidden) if options.post_norms else None,
            mlp_norm=norm(f"{prefix}post_attention_layernorm.weight", hidden) if options.pre_norms else None,
            mlp=mixture(reader, mlp, config, self._kernels)
            if sparse
            else dense(reader, mlp, config, config.intermediate_size),
            mlp_out_norm=norm(f"{mlp}output_norm.weight", hidden) if options.post_norms else None,
        )

    def pool(self, pages: int, page_size: int, dtype: torch.dtype) -> Pool:
        return Pool(self._own, pages, page_size, dtype, self.device)

    def page_bytes(self, page_size: int, dtype: torch.dtype) -> int:
        """Keys and values of one page in all layers, on this rank."""
        return 2 * self._own.layers * self._own.kv_size * page_size * dtype.itemsize

    def forward(
        self, layout: Layout, pool: Pool, changes: Changes | None = None, tap: Tap | None = None
    ) -> torch.Tensor:
        """Last hidden states [n, hidden], normalised. The pool is written in place. `tap` sees what enters each layer."""
        x: torch.Tensor = functional.embedding(layout.tokens, self.embedding)
        residual = None
        if self._embedding_scale != 1:
            x = x * self._embedding_scale
        for index, layer in enumerate(self._layers):
            normed, residual = self._entered(x, layer.attention_norm, residual)
            if tap is not None:
                tap.take(index, residual)
            qkv = layer.qkv(normed)
            if changes:
                changes.add(index, "qkv", normed, qkv)
            attended = attend(self._own, self._kernels, layer, qkv, layout, pool, index)
            x = layer.out(attended)
            if changes:
                changes.add(index, "out", attended, x)
            normed, residual = self._entered(self._left(x, layer.out_norm), layer.mlp_norm, residual)
            x = self._left(self._mlp(index, layer.mlp, normed, changes), layer.mlp_out_norm)
        return self._entered(x, self._norm, residual)[0]

    def _entered(
        self, x: torch.Tensor, norm: torch.Tensor | None, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add x to the residual: the sum, normalised where `norm` is given, and the sum."""
        if norm is not None:
            return self._kernels.rms_norm(x, norm, self.config.norm_eps, residual)
        total = x if residual is None else residual + x
        return total, total

    def _left(self, x: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        """Return the result of attention or MLP, of all ranks, as it is added to the residual."""
        x = self._shard.summed(x)
        if norm is not None:
            x = self._kernels.rms_norm(x, norm, self.config.norm_eps)[0]
        scale = self.config.options.residual_scale
        return x if scale == 1 else x * scale

    def _mlp(self, index: int, mlp: Mlp | Mixture, normed: torch.Tensor, changes: Changes | None) -> torch.Tensor:
        if isinstance(mlp, Mixture):
            return mlp(normed)
        gate_up = mlp.gate_up(normed)
        if changes:
            changes.add(index, "gate_up", normed, gate_up)
        inner = self._kernels.gated(gate_up, self.config.options.activation)
        x = mlp.down(inner)
        if changes:
            changes.add(index, "down", inner, x)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocab] of last hidden states [rows, hidden], the same on every rank."""
        logits = self._shard.gathered(functional.linear(hidden, self._head), self.config.vocab_size)
        options = self.config.options
        if options.logit_scale != 1:
            logits = logits * options.logit_scale
        if options.logit_cap:
            logits = torch.tanh(logits / options.logit_cap) * options.logit_cap
        return logits


def attend(
    own: ModelConfig, kernels: Kernels, layer: AttentionLayer, qkv: torch.Tensor, layout: Layout, pool: Pool, index: int
) -> torch.Tensor:
    """Rotate, write the keys and values of qkv [n, all heads of `own`] to the pool, and attend: [n, heads * head_dim]."""
    q = write(own, kernels, layer, qkv, layout, pool, index)
    attended = kernels.paged_attention(
        q, pool.keys(index), pool.values(index), layout.tables, layout.query_starts, layout.kv_lens, own.attention_scale,
        layout.longest_query, longest_kv=layout.longest_kv, window=layer.window, cap=own.options.attention_cap,
        sinks=layer.sinks,
    )  # fmt: skip
    return attended.view(qkv.shape[0], -1)


def write(
    own: ModelConfig, kernels: Kernels, layer: AttentionLayer, qkv: torch.Tensor, layout: Layout, pool: Pool, index: int
) -> torch.Tensor:
    """As `attend`, without attending: the rotated queries."""
    heads = qkv.view(qkv.shape[0], -1, own.head_dim)
    q, k, v = torch.split(heads, [own.heads, own.kv_heads, own.kv_heads], dim=1)
    if layer.whole_norms is not None:
        q, k = (
            kernels.rms_norm(one.flatten(1), norm, own.norm_eps)[0].view(one.shape)
            for one, norm in zip((q, k), layer.whole_norms, strict=True)
        )
    q_norm, k_norm = layer.head_norms or (None, None)
    return kernels.rope_write(
        q, k, v, *layer.tables, layout.positions, layout.slots, pool.keys(index).flatten(0, 1),
        pool.values(index).flatten(0, 1), q_norm=q_norm, k_norm=k_norm, eps=own.norm_eps,
    )  # fmt: skip
