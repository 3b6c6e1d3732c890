"""One layer of the CPU's model, prepared: its products packed, its norms, and its mixture of experts where it has one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagefleet_engine.model.rope import Table
from pagefleet_kernels.cpu import Attention, DenseLayer, Experts, Linear, Norm, Operations


@dataclass(frozen=True)
class Mlp:
    """A gated MLP: both products are those of `Operations.mlp`."""

    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class Mixture:
    """A mixture of experts: `router` gives the logits of which a row's `chosen` largest choose its experts.

    Every row goes through `shared` as well, whose result is multiplied by the sigmoid of `shared_gate`.
    """

    operations: Operations
    router: Linear
    experts: Experts
    chosen: int
    normalised: bool
    shared: Mlp | None
    shared_gate: Linear | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, hidden], normalised -> [rows, hidden]."""
        logits = self.router(x)
        top, chosen = logits.topk(self.chosen, dim=-1)
        # The chosen experts' shares of all are their softmax, but for a factor.
        weights = top.softmax(dim=-1) if self.normalised else (top - logits.logsumexp(dim=-1, keepdim=True)).exp_()
        y = self.experts(x, chosen.int(), weights)
        if self.shared is not None:
            part = self.operations.mlp(x, None, self.shared.gate_up, self.shared.down, add=False)
            y += part if self.shared_gate is None else part.mul_(self.shared_gate(x).sigmoid_())
        return y


@dataclass(frozen=True)
class Layer:
    """head_norms: of each head of q and k; whole_norms: of all heads of q, and of k, together.

    plain: the results of attention and of a dense MLP are added to the residual as they are, so that the product can do it.
    """

    tables: Table
    attention_norm: Norm | None
    qkv: Linear
    head_norms: tuple[torch.Tensor, torch.Tensor, float] | None
    whole_norms: tuple[Norm, Norm] | None
    attention: Attention
    out: Linear
    out_norm: Norm | None
    mlp_norm: Norm | None
    mlp: Mlp | Mixture
    mlp_out_norm: Norm | None
    plain: bool

    def dense(self) -> DenseLayer | None:
        """Return the layer as `Operations.layers` computes it, None where it is not of that form."""
        if not self.plain or self.whole_norms is not None or not isinstance(self.mlp, Mlp):
            return None
        return DenseLayer(
            self.tables, self.attention_norm, self.qkv, self.head_norms, self.attention, self.out, self.mlp_norm,
            self.mlp.gate_up, self.mlp.down,
        )  # fmt: skip
