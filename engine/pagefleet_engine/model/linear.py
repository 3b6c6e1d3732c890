"""Matrix products with weights that are prepared once: float32 as it is, or int8 with int32 accumulation (VNNI).

int8: weights symmetric per output channel, activations symmetric per token at run time (LLM.int8's vector-wise
scheme, Dettmers et al., NeurIPS 2022, section 3.1, without its outlier split). Per token, not per tensor: a token's
result does not depend on what else is in its batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Linear = Callable[[torch.Tensor], torch.Tensor]


def plain(weight: torch.Tensor) -> Linear:
    """x [tokens, in] -> [tokens, out] with `weight` [out, in] in its own precision."""

    def apply(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight)

    return apply


def int8(weight: torch.Tensor) -> Linear:
    """The same with int8 weights; scales are float32."""
    weight_scale = (weight.abs().amax(dim=1) / 127).clamp_min(1e-8)
    quantised = (weight / weight_scale.unsqueeze(1)).round().to(torch.int8).t()

    def apply(x: torch.Tensor) -> torch.Tensor:
        scale = (x.abs().amax(dim=1, keepdim=True) / 127).clamp_min(1e-8)
        product = torch._int_mm((x / scale).round().to(torch.int8), quantised)
        return product.float() * scale * weight_scale

    return apply


def prepare(weight: torch.Tensor, quantization: str) -> Linear:
    """Raises ValueError for an unknown quantisation."""
    match quantization:
        case "none":
            return plain(weight)
        case "int8":
            return int8(weight)
        case _:
            raise ValueError(f"quantization {quantization!r} is not one of none, int8")
