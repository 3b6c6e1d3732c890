"""Puts our products in the place of transformers' linear layers and experts: faster, and half-precision weights stay so."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pagefleet_kernels.cpu import Operations

# transformers' activations by their class, and ours.
ACTIVATIONS = {"SiLU": "silu", "SiLUActivation": "silu", "GELUTanh": "gelu_tanh"}
# How transformers' classes of experts say that they store and compute the plain form: two matrices for each expert.
PLAIN = {
    "is_concatenated": True, "is_transposed": False, "has_bias": False, "has_gate": True, "has_post_expert_norm": False,
}  # fmt: skip
SAME = 1e-4  # of a result's length: sums in another order


class Product(nn.Module):
    """A linear layer whose weight is packed. x [..., k] float32 -> [..., n]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, operations: Operations) -> None:
        super().__init__()
        self.in_features, self.out_features = weight.shape[1], weight.shape[0]
        self.weight = torch.empty(0)  # some code asks for its dtype
        self._apply_to = operations.linear(weight, bias, False)
        self.bytes = weight.numel() * weight.element_size()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features).contiguous()
        return self._apply_to(rows).view(*x.shape[:-1], self.out_features)


class ExpertsProduct(nn.Module):
    """The experts of a layer, packed. `gate_up` [experts, 2 inner, hidden], `down` [experts, hidden, inner]."""

    def __init__(
        self,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        activation: str,
        operations: Operations,
        half: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.num_experts, self.bytes = len(down), 0
        products: tuple[list[Any], list[Any]] = [], []
        for first, second in zip(gate_up, down, strict=True):
            for matrix, gated, made in ((first, activation, products[0]), (second, "", products[1])):
                weight = _compact(matrix.contiguous(), half)
                made.append(operations.linear(weight, None, False, gated=gated))
                self.bytes += weight.numel() * weight.element_size()
        self._apply_to = operations.experts(*products)

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x [rows, hidden], the experts of each row [rows, top] and their weights -> [rows, hidden].

        As in transformers, an expert's number that is too large means none.
        """
        known = chosen < self.num_experts
        numbers = torch.where(known, chosen, 0).int().contiguous()
        return self._apply_to(x.contiguous(), numbers, torch.where(known, weights, 0.0).float().contiguous())


def replace_products(model: nn.Module, operations: Operations, half: torch.dtype | None) -> None:
    """Replace every plain linear layer and all plain experts of `model` in place.

    half: the dtype of the checkpoint where that has two bytes; weights that it holds exactly are packed in it.
    """
    # By name: a list of modules would hold every layer twice until the end.
    for path in [path for path, module in model.named_modules() if path and _stored(module)]:
        parent, _, name = path.rpartition(".")
        holder = model.get_submodule(parent)
        made = _made(getattr(holder, name), operations, half)
        if made is not None:
            setattr(holder, name, made)


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of all weights, packed ones included."""
    floats = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return floats + sum(module.bytes for module in model.modules() if isinstance(module, (Product, ExpertsProduct)))


def _stored(module: nn.Module) -> bool:
    """Whether the module is a plain linear layer, or has the parameters of plain experts."""
    from transformers.pytorch_utils import Conv1D

    linear = type(module) in (nn.Linear, Conv1D)  # another class may use its weight in its own way
    return linear or {name for name, _ in module.named_parameters()} == {"gate_up_proj", "down_proj"}


def _made(child: nn.Module, operations: Operations, half: torch.dtype | None) -> nn.Module | None:
    parts = dict(child.named_parameters())
    if "weight" not in parts:
        return _experts(child, operations, half)
    weight = parts["weight"].detach()
    weight = weight if isinstance(child, nn.Linear) else weight.t().contiguous()  # Conv1D holds its transpose
    return Product(_compact(weight, half), parts.get("bias"), operations)


@torch.inference_mode()
def _experts(child: nn.Module, operations: Operations, half: torch.dtype | None) -> ExpertsProduct | None:
    """The packed form of a module of plain experts. None for any other module, and for one that computes something else."""
    parts = dict(child.named_parameters())
    activation = ACTIVATIONS.get(type(getattr(child, "act_fn", None)).__name__)
    plain = all(getattr(child, name, None) is value for name, value in PLAIN.items())
    if not plain or activation is None:
        return None
    made = ExpertsProduct(parts["gate_up_proj"].detach(), parts["down_proj"].detach(), activation, operations, half)
    made.train(child.training)
    count, hidden = made.num_experts, parts["down_proj"].shape[1]
    x = torch.linspace(-2, 2, 3 * hidden).sin().view(3, hidden)
    chosen = torch.tensor([[0, count - 1], [count // 2, 0], [count - 1, count // 2]])
    weights = torch.tensor([[0.75, 0.25], [0.5, 1.5], [0.125, 0.25]])
    expected = child(x, chosen, weights)
    apart = float((made(x, chosen, weights) - expected).norm() / expected.norm())
    return made if apart <= SAME else None


def _compact(weight: torch.Tensor, half: torch.dtype | None) -> torch.Tensor:
    if half is None:
        return weight
    rounded = weight.to(half)
    return rounded if torch.equal(rounded.float(), weight) else weight
