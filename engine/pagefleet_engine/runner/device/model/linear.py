"""Matrix products on a device: dense by cuBLAS, FP8 and AWQ by our kernels, the weights packed as they are stored."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from pagefleet_kernels.kernels import Kernels


@dataclass(frozen=True)
class Dense:
    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, in] -> [rows, out] of x's dtype."""
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Fp8:
    """Activations are rounded to FP8 with a scale for each token (W8A8)."""

    weight: torch.Tensor  # [out, in] float8_e4m3fn
    scales: torch.Tensor  # [out] float32
    bias: torch.Tensor | None
    kernels: Kernels

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rounded, scales = self.kernels.fp8_quantise(x)
        out = self.kernels.fp8_gemm(rounded, scales, self.weight, self.scales, x.dtype)
        return out if self.bias is None else out.add_(self.bias)


@dataclass(frozen=True)
class Awq:
    qweight: torch.Tensor  # [in, out / 8] int32
    qzeros: torch.Tensor  # [groups, out / 8] int32
    scales: torch.Tensor  # [groups, out]
    bias: torch.Tensor | None
    kernels: Kernels

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self.kernels.awq_gemm(x, self.qweight, self.qzeros, self.scales)
        return out if self.bias is None else out.add_(self.bias)


Linear = Dense | Fp8 | Awq
