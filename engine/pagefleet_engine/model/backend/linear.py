"""Puts our products in the place of transformers' linear layers: faster, and half-precision weights stay so."""

from __future__ import annotations

import torch
from torch import nn

from pagefleet_kernels.cpu import Operations


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


def replace_linear(model: nn.Module, operations: Operations, half: torch.dtype | None) -> None:
    """Replace every plain linear layer of `model` in place.

    half: the dtype of the checkpoint where that has two bytes; weights that it holds exactly are packed in it.
    """
    from transformers.pytorch_utils import Conv1D

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) not in (nn.Linear, Conv1D):  # a class of its own may use its weight in its own way
                continue
            parts = dict(child.named_parameters())
            weight = parts["weight"].detach()
            weight = weight.t().contiguous() if type(child) is Conv1D else weight
            setattr(parent, name, Product(_compact(weight, half), parts.get("bias"), operations))
            del parts, weight, child  # one layer at a time is held twice


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of all weights, packed ones included."""
    floats = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return floats + sum(module.bytes for module in model.modules() if isinstance(module, Product))


def _compact(weight: torch.Tensor, half: torch.dtype | None) -> torch.Tensor:
    if half is None:
        return weight
    rounded = weight.to(half)
    return rounded if torch.equal(rounded.float(), weight) else weight
