"""The operations of a device runner, as one set: Triton's, or the torch references where there is no Triton.

Triton runs on a GPU, and on the CPU in its interpreter (TRITON_INTERPRET=1): the same launches, slowly, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pagefleet_kernels import build_inputs, gated, grouped_gemm, rms_norm, sample
from pagefleet_kernels.attention import page_copy, paged_attention, rope_write
from pagefleet_kernels.launch.language import INTERPRETED, triton
from pagefleet_kernels.quantised import awq_gemm, fp8_gemm, fp8_quantise

__all__ = ["REFERENCE", "TRITON", "Kernels", "kernels"]


@dataclass(frozen=True)
class Kernels:
    """Signatures are those of the modules' functions without a suffix."""

    name: str
    awq_gemm: Callable[..., torch.Tensor]
    build_inputs: Callable[..., build_inputs.Inputs]
    fp8_gemm: Callable[..., torch.Tensor]
    fp8_quantise: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    gated: Callable[..., torch.Tensor]
    grouped_gemm: Callable[..., torch.Tensor]
    page_copy: Callable[..., None]
    paged_attention: Callable[..., torch.Tensor]
    rms_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    rope_write: Callable[..., torch.Tensor]
    sample: Callable[..., torch.Tensor]


_MODULES: tuple[Any, ...] = (
    awq_gemm, build_inputs, fp8_gemm, fp8_quantise, gated, grouped_gemm, page_copy, paged_attention, rms_norm, rope_write,
    sample,
)  # fmt: skip


def _named(kind: str) -> Kernels:
    names = [module.__name__.rpartition(".")[2] for module in _MODULES]
    functions = {name: getattr(module, f"{name}_{kind}") for name, module in zip(names, _MODULES, strict=True)}
    return Kernels(kind, **functions)


TRITON, REFERENCE = _named("triton"), _named("reference")


def kernels(device: torch.device) -> Kernels:
    """Raises ValueError for a GPU without Triton: the references are far too slow to serve with."""
    if device.type == "cuda" and triton is None:
        raise ValueError("Triton is not installed: pip install 'pagefleet[cuda]'")
    return TRITON if triton is not None and (device.type == "cuda" or INTERPRETED) else REFERENCE
