"""The Llama family over a paged KV cache: one forward pass for a batch that mixes prompt chunks and single tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from pagefleet_engine.model import linear, rope
from pagefleet_engine.model.attention import Batch, attend
from pagefleet_engine.model.config import ModelConfig
from pagefleet_engine.model.errors import SOURCE, ModelError
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
    """Weights prepared for the CPU: Q, K, V merged, gate and up merged.

    Raises ModelError for tensors that are missing, of a wrong shape, or not of this architecture, and ValueError for
    an unknown quantisation.
    """

    def __init__(self, config: ModelConfig, weights: Weights, quantization: str, positions: int) -> None:
        self.config = config
        self._quantization, self._weights = quantization, weights
        matrix = (config.vocab_size, config.hidden_size)
        self._embedding = weights.take("model.embed_tokens.weight", *matrix)
        head = self._embedding if config.tied else weights.take("lm_head.weight", *matrix)
        self._head = linear.prepare_head(head, quantization)
        self._norm = weights.take("model.norm.weight", config.hidden_size)
        self._layers = [self._layer(index) for index in range(config.layers)]
        left = [name for name in weights.left() if name != "lm_head.weight"]
        if left:
            raise ModelError(SOURCE, f"{len(left)} tensors are not of a {config.kind} model, the first is {left[0]}")
        del self._weights
        self._cos, self._sin = rope.table(config.head_dim, config.rope_theta, positions, config.rope_divisors)

    def _layer(self, index: int) -> Layer:
        config, prefix = self.config, f"model.layers.{index}."
        hidden, inner, q, kv = config.hidden_size, config.intermediate_size, config.q_size, config.kv_size
        return Layer(
            self._weights.take(f"{prefix}input_layernorm.weight", hidden),
            self._merged(prefix, {"self_attn.q_proj": q, "self_attn.k_proj": kv, "self_attn.v_proj": kv}, hidden),
            self._merged(prefix, {"self_attn.o_proj": hidden}, q),
            self._weights.take(f"{prefix}post_attention_layernorm.weight", hidden),
            self._merged(prefix, {"mlp.gate_proj": inner, "mlp.up_proj": inner}, hidden),
            self._merged(prefix, {"mlp.down_proj": hidden}, inner),
        )

    def _merged(self, prefix: str, parts: dict[str, int], columns: int) -> linear.Linear:
        """One product in place of several on the same input: {name: rows}."""
        take = self._weights.take
        weight = torch.cat([take(f"{prefix}{name}.weight", rows, columns) for name, rows in parts.items()])
        bias = None
        if any(f"{prefix}{name}.bias" in self._weights for name in parts):
            bias = torch.cat([take(f"{prefix}{name}.bias", rows) for name, rows in parts.items()])
        return linear.prepare(weight, bias, self._quantization)

    def forward(self, tokens: torch.Tensor, batch: Batch, cache: list[torch.Tensor]) -> torch.Tensor:
        """Logits [sampled, vocab] float32 of the batch's sampled rows.

        tokens [n] int64; cache: per layer [slots, 2, kv_heads, head_dim], keys then values, written in place.
        """
        config, count = self.config, tokens.shape[0]
        heads, rotated = config.heads, config.heads + config.kv_heads
        cos, sin = self._cos[batch.positions].unsqueeze(1), self._sin[batch.positions].unsqueeze(1)
        x = functional.embedding(tokens, self._embedding)
        for layer, pages in zip(self._layers, cache, strict=True):
            qkv = layer.qkv(self._normed(x, layer.attention_norm)).view(count, -1, config.head_dim)
            qk = rope.rotate(qkv[:, :rotated], cos, sin)
            pages.index_copy_(0, batch.slots, torch.stack((qk[:, heads:], qkv[:, rotated:]), dim=1))
            x = x + layer.out(attend(qk[:, :heads], pages, batch).view(count, config.q_size))
            gate, up = layer.gate_up(self._normed(x, layer.mlp_norm)).chunk(2, dim=-1)
            x = x + layer.down(functional.silu(gate).mul_(up))
        if batch.sampled.numel() == 0:  # chunks that do not reach their prompt's end
            return x.new_empty(0, config.vocab_size)
        return self._head(self._normed(x[batch.sampled], self._norm))

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (self.config.hidden_size,), weight, self.config.norm_eps)
