"""The Llama family over a paged KV cache: one forward pass for a batch that mixes prompt chunks and single tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from pagefleet_engine.model import rope
from pagefleet_engine.model.adapters import Applied
from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.checkpoint.weights import Weights
from pagefleet_kernels.cpu import FINE_GROUP, GROUP, Batch, Coded, KVPages, Linear, Norm, Operations

QUANTIZATIONS = ("none", "int8")


@dataclass(frozen=True)
class Layer:
    attention_norm: Norm
    qkv: Linear
    head_norms: tuple[torch.Tensor, torch.Tensor, float] | None
    out: Linear
    mlp_norm: Norm
    gate_up: Linear
    down: Linear
    window: int


class Llama:
    """Weights prepared for the CPU: Q, K, V merged, gate and up merged, packed.

    Raises ModelError for tensors that are missing, of a wrong shape, or not of this architecture, and ValueError for
    an unknown quantisation.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, quantization: str, positions: int, operations: Operations
    ) -> None:
        if quantization not in QUANTIZATIONS:
            raise ValueError(f"quantization {quantization!r} is not one of {', '.join(QUANTIZATIONS)}")
        self.config, self._operations = config, operations
        self._int8, self._weights = quantization == "int8", weights
        matrix = (config.vocab_size, config.hidden_size)
        embedding = "model.embed_tokens.weight"
        head = self._matrix({embedding if config.tied else "lm_head.weight": config.vocab_size}, config.hidden_size)
        # Most of int8's error comes from the output matrix and from Q, K and V: finer groups for these are worth their time.
        self._head = operations.linear(head, None, self._int8, FINE_GROUP)
        self._embedding = (
            head if config.tied and isinstance(head, torch.Tensor) else weights.take_stored(embedding, *matrix)
        )
        if self._int8:  # rows of it are only looked up: half precision is far finer than int8
            self._embedding = self._embedding.to(torch.float16)
        self._norm = weights.take("model.norm.weight", config.hidden_size)
        self._layers = [self._layer(index) for index in range(config.layers)]
        left = [name for name in weights.left() if name != "lm_head.weight"]
        if left:
            raise ModelError(SOURCE, f"{len(left)} tensors are not of a {config.kind} model, the first is {left[0]}")
        del self._weights
        self._tables = rope.table(
            config.head_dim, config.rope_theta, positions, config.rope_divisors, config.rope_scale
        )

    def _layer(self, index: int) -> Layer:
        config, prefix = self.config, f"model.layers.{index}."
        hidden, inner, q, kv = config.hidden_size, config.intermediate_size, config.q_size, config.kv_size
        take = self._weights.take
        norms = None
        if config.qk_norm:
            q_norm = take(f"{prefix}self_attn.q_norm.weight", config.head_dim)
            norms = q_norm, take(f"{prefix}self_attn.k_norm.weight", config.head_dim), config.norm_eps
        return Layer(
            (take(f"{prefix}input_layernorm.weight", hidden), config.norm_eps),
            self._merged(
                prefix, {"self_attn.q_proj": q, "self_attn.k_proj": kv, "self_attn.v_proj": kv}, hidden, FINE_GROUP
            ),
            norms,
            self._merged(prefix, {"self_attn.o_proj": hidden}, q),
            (take(f"{prefix}post_attention_layernorm.weight", hidden), config.norm_eps),
            self._merged(prefix, {"mlp.gate_proj": inner, "mlp.up_proj": inner}, hidden, gated=True),
            self._merged(prefix, {"mlp.down_proj": hidden}, inner),
            config.window(index) or 0,
        )

    def _merged(
        self, prefix: str, parts: dict[str, int], columns: int, group: int = GROUP, gated: bool = False
    ) -> Linear:
        """One product in place of several on the same input: {name: rows}."""
        weight = self._matrix({f"{prefix}{name}.weight": rows for name, rows in parts.items()}, columns)
        bias = None
        promised = self.config.attention_bias and "self_attn.q_proj" in parts
        if promised or any(f"{prefix}{name}.bias" in self._weights for name in parts):
            bias = torch.cat([self._weights.take(f"{prefix}{name}.bias", rows) for name, rows in parts.items()])
        return self._operations.linear(weight, bias, self._int8, group, gated)

    def _matrix(self, rows: dict[str, int], columns: int) -> torch.Tensor | Coded:
        return self._weights.take_rows(rows, columns) if self._int8 else self._weights.take_compact(rows, columns)

    def pages(self, count: int, page_size: int, dtype: torch.dtype) -> list[KVPages]:
        """A KV pool, one entry per layer. Raises ValueError for sizes that the layout cannot hold."""
        config = self.config
        return [KVPages.zeros(count, config.kv_heads, page_size, config.head_dim, dtype) for _ in range(config.layers)]

    def forward(
        self,
        tokens: torch.Tensor,
        batch: Batch,
        cache: list[KVPages],
        adapters: Applied | None = None,
        only: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the last hidden states [n, hidden] of tokens [n] int64, normalised. The cache is written in place.

        `only` [m] int64: the states of these rows are enough. The last layer then computes only these after its attention,
        unless there are adapters, which need all rows.
        """
        config, operations, count = self.config, self._operations, tokens.shape[0]
        x = functional.embedding(tokens, self._embedding).float()
        for index, (layer, pages) in enumerate(zip(self._layers, cache, strict=True)):
            if adapters:
                normed = operations.rms_norm(x, *layer.attention_norm)
                qkv = layer.qkv(normed)
                adapters.add(index, "qkv", normed, qkv)
            else:
                qkv = layer.qkv(x, norm=layer.attention_norm)
            heads = qkv.view(count, -1, config.head_dim)
            operations.rope_write(heads, self._tables, layer.head_norms, pages, batch)
            attended = operations.attend(heads, pages, batch, layer.window)
            if only is not None and not adapters and index == config.layers - 1:
                attended, x = attended[only], x[only]
            x = layer.out(attended, into=x)
            if adapters:
                adapters.add(index, "out", attended, x)
                self._adapted_mlp(index, layer, x, adapters)
            else:
                operations.mlp(x, layer.mlp_norm, layer.gate_up, layer.down)
        if only is not None and adapters:
            x = x[only]
        return operations.rms_norm(x, self._norm, config.norm_eps)

    def _adapted_mlp(self, index: int, layer: Layer, x: torch.Tensor, adapters: Applied) -> None:
        normed = self._operations.rms_norm(x, *layer.mlp_norm)
        gate_up = layer.gate_up(normed)
        adapters.add(index, "gate_up", normed, gate_up)
        inner = self._operations.silu_mul(gate_up)
        layer.down(inner, into=x)
        adapters.add(index, "down", inner, x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocab] float32 of last hidden states [rows, hidden]."""
        return self._head(hidden)
