"""Matrix products with weights that are prepared once: float32 as it is, or int8 prepacked for the CPU's VNNI path.

int8: weights symmetric per output channel, activations asymmetric per tensor at run time, accumulation in int32
(FBGEMM's dynamic quantisation; Jacob et al., CVPR 2018, section 2).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

Linear = Callable[[torch.Tensor], torch.Tensor]


def plain(weight: torch.Tensor) -> Linear:
    """x [tokens, in] -> [tokens, out] with `weight` [out, in] in its own precision."""

    def apply(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight)

    return apply


def int8(weight: torch.Tensor) -> Linear:
    """The same with int8 weights. Raises RuntimeError where this torch build has no quantised CPU engine."""
    scales = (weight.abs().amax(dim=1) / 127).clamp_min(1e-8).double()
    zeros = torch.zeros(weight.shape[0], dtype=torch.long)
    with warnings.catch_warnings():
        # torch announces a successor for quantised tensors; the prepacked operator below still takes only these.
        warnings.simplefilter("ignore", UserWarning)
        quantised = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(quantised, None)

    def apply(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.quantized.linear_dynamic(x, packed, False)
        return result

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
