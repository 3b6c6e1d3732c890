"""Prepares a model's layers for the CPU from its weights: Q, K and V merged, gate and up merged, packed."""

from __future__ import annotations

import torch

from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.checkpoint.weights import Weights
from pagefleet_engine.model.families.family import Experts
from pagefleet_engine.model.layers import Layer, Mixture, Mlp
from pagefleet_engine.model.rope import Table
from pagefleet_kernels.cpu import FINE_GROUP, GROUP, KEPT_BITS, Attention, Coded, Linear, Norm, Operations

QUANTIZATIONS = ("none", "int8")


class Preparation:
    """Raises ModelError for tensors that are missing or of a wrong shape."""

    def __init__(self, config: ModelConfig, weights: Weights, operations: Operations, int8: bool) -> None:
        self._config, self._weights, self._operations, self._int8 = config, weights, operations, int8

    def ends(self) -> tuple[torch.Tensor, Linear]:
        """The embedding, and the product of the logits."""
        config, weights = self._config, self._weights
        name, rows, columns = "model.embed_tokens.weight", config.vocab_size, config.hidden_size
        head = self._matrix({name if config.tied else "lm_head.weight": rows}, columns)
        # Most of int8's error comes from the output matrix and from Q, K and V: finer groups for these are worth their time.
        product = self._operations.linear(head, None, self._int8, FINE_GROUP)
        embedding = head[0] if config.tied and not isinstance(head, Coded) else weights.take_stored(name, rows, columns)
        # Rows of it are only looked up: two bytes are far finer than int8. A view of the file would keep all of the file mapped, and a
        # second copy of what was made from codes would be the most memory that the load ever takes.
        dtype = torch.float16 if self._int8 and embedding.element_size() > 2 else embedding.dtype
        return embedding.to(dtype, copy=weights.views_file(embedding)), product

    def norm(self, name: str) -> Norm:
        return self._weights.take(f"{name}.weight", self._config.hidden_size), self._config.norm_eps

    def layer(self, index: int, tables: Table) -> Layer:
        config, options, prefix = self._config, self._config.options, f"model.layers.{index}."
        hidden, q, kv = config.hidden_size, config.q_size, config.kv_size
        take, attention = self._weights.take, f"{prefix}self_attn."
        head_norms = whole_norms = sinks = None
        if config.qk_norm:
            q_norm = take(f"{attention}q_norm.weight", config.head_dim)
            head_norms = q_norm, take(f"{attention}k_norm.weight", config.head_dim), config.norm_eps
        if options.whole_qk_norm:
            whole_norms = (
                (take(f"{attention}q_norm.weight", q), config.norm_eps),
                (take(f"{attention}k_norm.weight", kv), config.norm_eps),
            )
        if options.sinks:
            sinks = take(f"{attention}sinks", config.heads)
        experts = options.experts if options.experts is not None and options.experts.within(index) else None
        return Layer(
            tables,
            self.norm(f"{prefix}input_layernorm") if options.pre_norms else None,
            self.merged(attention, {"q_proj": q, "k_proj": kv, "v_proj": kv}, hidden, FINE_GROUP),
            head_norms,
            whole_norms,
            Attention(config.attention_scale, config.window(index) or 0, options.attention_cap, sinks),
            self.merged(attention, {"o_proj": hidden}, q),
            self.norm(f"{attention}output_norm") if options.post_norms else None,
            self.norm(f"{prefix}post_attention_layernorm") if options.pre_norms else None,
            self.mlp(f"{prefix}mlp.", config.intermediate_size)
            if experts is None
            else self._mixture(f"{prefix}mlp.", experts),
            self.norm(f"{prefix}mlp.output_norm") if options.post_norms else None,
            plain=experts is None and not options.post_norms and options.residual_scale == 1,
        )

    def check_all_taken(self) -> None:
        left = [name for name in self._weights.left() if name != "lm_head.weight"]
        if left:
            kind = self._config.kind
            raise ModelError(SOURCE, f"{len(left)} tensors are not of a {kind} model, the first is {left[0]}")

    def mlp(self, prefix: str, inner: int) -> Mlp:
        hidden, activation = self._config.hidden_size, self._config.options.activation
        return Mlp(
            self.merged(prefix, {"gate_proj": inner, "up_proj": inner}, hidden, gated=activation),
            self.merged(prefix, {"down_proj": hidden}, inner),
        )

    def _mixture(self, prefix: str, experts: Experts) -> Mixture:
        mlps = [self.mlp(f"{prefix}experts.{index}.", experts.inner) for index in range(experts.count)]
        return Mixture(
            self._operations,
            self._float(f"{prefix}gate", experts.count),
            self._operations.experts([one.gate_up for one in mlps], [one.down for one in mlps]),
            experts.chosen,
            experts.normalised,
            self.mlp(f"{prefix}shared_expert.", experts.shared_inner) if experts.shared_inner else None,
            self._float(f"{prefix}shared_expert_gate", 1) if experts.shared_gate else None,
        )

    def _float(self, name: str, rows: int) -> Linear:
        """A product that int8 does not round: it chooses, or weighs, whole results."""
        weights = self._weights
        bias = weights.take(f"{name}.bias", rows) if f"{name}.bias" in weights else None
        return self._operations.linear(weights.take(f"{name}.weight", rows, self._config.hidden_size), bias, False)

    def merged(self, prefix: str, parts: dict[str, int], columns: int, group: int = GROUP, gated: str = "") -> Linear:
        """One product in place of several on the same input: {name: rows}."""
        weight = self._matrix({f"{prefix}{name}.weight": rows for name, rows in parts.items()}, columns)
        bias = None
        promised = self._config.attention_bias and "q_proj" in parts
        if promised or any(f"{prefix}{name}.bias" in self._weights for name in parts):
            bias = torch.cat([self._weights.take(f"{prefix}{name}.bias", rows) for name, rows in parts.items()])
        return self._operations.linear(weight, bias, self._int8, group, gated)

    def _matrix(self, rows: dict[str, int], columns: int) -> list[torch.Tensor] | Coded:
        """Return codes as codes where the product keeps them (`Coded.kept_by_int8`)."""
        return self._weights.take_compact(rows, columns, most_bits=KEPT_BITS if self._int8 else 8)
