"""The MLPs of a layer on a device: a dense one, or a mixture of experts of which each row goes through some."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.model.families.family import Experts
from pagefleet_engine.runner.device.model.linear import Linear
from pagefleet_engine.runner.device.model.weights import Cut, Reader
from pagefleet_kernels.grouped_gemm import groups
from pagefleet_kernels.kernels import Kernels


@dataclass(frozen=True)
class Mlp:
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class Stacked:
    """One product of all experts: weight [experts, n, k], bias [experts, n]."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True)
class Mixture:
    """This rank's part of all experts. The router, and the gate of the shared expert, are whole on every rank."""

    experts: Experts
    activation: str
    kernels: Kernels
    router: torch.Tensor
    router_bias: torch.Tensor | None
    gate_up: Stacked
    down: Stacked
    shared: Mlp | None
    shared_gate: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, hidden], normalised -> this rank's part of the sum, [rows, hidden]."""
        top, kernels = self.experts.chosen, self.kernels
        logits = functional.linear(x, self.router, self.router_bias).float()
        largest, chosen = logits.topk(top, dim=-1)
        # The chosen experts' shares of all are their softmax, but for a factor.
        shares = (
            largest.softmax(-1) if self.experts.normalised else (largest - logits.logsumexp(-1, keepdim=True)).exp()
        )
        grouped = groups(chosen, self.experts.count)
        inner = kernels.gated(
            kernels.grouped_gemm(x, self.gate_up.weight, self.gate_up.bias, grouped, top), self.activation
        )
        parts = kernels.grouped_gemm(inner, self.down.weight, self.down.bias, grouped, 1)
        y = (parts.view(x.shape[0], top, -1).float() * shares.unsqueeze(-1)).sum(dim=1).to(x.dtype)
        if self.shared is not None:
            part = self.shared.down(kernels.gated(self.shared.gate_up(x), self.activation))
            y += part if self.shared_gate is None else part * torch.sigmoid(functional.linear(x, self.shared_gate))
        return y


def dense(reader: Reader, prefix: str, config: ModelConfig, inner: int) -> Mlp:
    """Read a dense MLP. Raises ModelError."""
    hidden = config.hidden_size
    return Mlp(
        reader.merged(prefix, {"gate_proj": inner, "up_proj": inner}, hidden, Cut.ROWS),
        reader.merged(prefix, {"down_proj": hidden}, inner, Cut.COLUMNS),
    )


def mixture(reader: Reader, prefix: str, config: ModelConfig, kernels: Kernels) -> Mixture:
    """Read a layer's experts. Raises ModelError."""
    experts, hidden = config.options.experts, config.hidden_size
    if experts is None:
        raise ValueError("the model has no experts")
    inner, names = experts.inner, [f"{prefix}experts.{index}." for index in range(experts.count)]
    gate = f"{prefix}gate."
    return Mixture(
        experts,
        config.options.activation,
        kernels,
        reader.whole(f"{gate}weight", experts.count, hidden),
        reader.whole(f"{gate}bias", experts.count) if reader.has(f"{gate}bias") else None,
        Stacked(*reader.stacked(names, {"gate_proj": inner, "up_proj": inner}, hidden, Cut.ROWS)),
        Stacked(*reader.stacked(names, {"down_proj": hidden}, inner, Cut.COLUMNS)),
        dense(reader, f"{prefix}shared_expert.", config, experts.shared_inner) if experts.shared_inner else None,
        reader.whole(f"{prefix}shared_expert_gate.weight", 1, hidden) if experts.shared_gate else None,
    )
