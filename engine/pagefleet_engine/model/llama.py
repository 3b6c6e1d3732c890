"""The Llama family over a paged KV cache: one forward pass for a batch that mixes prompt chunks and single tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from pagefleet_engine.model import linear, rope
from pagefleet_engine.model.attention import Batch, attend
from pagefleet_engine.model.config import ModelConfig
from pagefleet_engine.model.weights import Weights


@dataclass(frozen=True)
class Layer:
    attention_norm: torch.Tensor
    qkv: linear.Linear
    out: linear.Linear
    mlp_norm: torch.Tensor
    gate_up: linear.Linear
    down: linear.Linear


class Llama:
    """Weights prepared for the CPU: Q, K, V merged, gate and up merged."""

    def __init__(self, config: ModelConfig, weights: Weights, quantization: str, positions: int) -> None:
        self.config = config
        self._embedding = weights["model.embed_tokens.weight"]
        self._norm = weights["model.norm.weight"]
        # The output matrix stays in float32: it decides between near-equal tokens (measured on SmolLM2-135M: perplexity
        # +1.3 % without it, +4.8 % with it in int8).
        self._head = linear.plain(weights["lm_head.weight"])
        self._layers = [self._layer(weights, index, quantization) for index in range(config.layers)]
        self._cos, self._sin = rope.table(config.head_dim, config.rope_theta, positions)

    def _layer(self, weights: Weights, index: int, quantization: str) -> Layer:
        def take(*names: str) -> torch.Tensor:
            """Weights of this layer, stacked; dropped from `weights` so that they are not held twice."""
            return torch.cat([weights.pop(f"model.layers.{index}.{name}.weight") for name in names])

        return Layer(
            take("input_layernorm"),
            linear.prepare(take("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), quantization),
            linear.prepare(take("self_attn.o_proj"), quantization),
            take("post_attention_layernorm"),
            linear.prepare(take("mlp.gate_proj", "mlp.up_proj"), quantization),
            linear.prepare(take("mlp.down_proj"), quantization),
        )

    def forward(
        self, tokens: torch.Tensor, batch: Batch, cache: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        """Logits [sampled, vocab] float32 of the batch's sampled rows.

        tokens [n] int64; cache: per layer keys and values [slots, kv_heads, head_dim], written in place.
        """
        config, count = self.config, tokens.shape[0]
        widths = (config.heads * config.head_dim, config.kv_heads * config.head_dim, config.kv_heads * config.head_dim)
        cos, sin = self._cos[batch.positions].unsqueeze(1), self._sin[batch.positions].unsqueeze(1)
        x = functional.embedding(tokens, self._embedding)
        for layer, (keys, values) in zip(self._layers, cache, strict=True):
            q, k, v = layer.qkv(self._normed(x, layer.attention_norm)).split(widths, dim=-1)
            q = rope.rotate(q.view(count, config.heads, config.head_dim), cos, sin)
            k = rope.rotate(k.view(count, config.kv_heads, config.head_dim), cos, sin)
            keys[batch.slots] = k
            values[batch.slots] = v.view(count, config.kv_heads, config.head_dim)
            x = x + layer.out(attend(q, keys, values, batch).view(count, widths[0]))
            gate, up = layer.gate_up(self._normed(x, layer.mlp_norm)).chunk(2, dim=-1)
            x = x + layer.down(functional.silu(gate) * up)
        return self._head(self._normed(x[batch.sampled], self._norm))

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (self.config.hidden_size,), weight, self.config.norm_eps)
