"""Weights of four-bit floats (E2M1) with a scale for each few columns: MXFP4 (OCP, 2023) and NVFP4. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import torch

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
EXPONENT_BIAS = 127  # of MXFP4's scales, which are powers of two


@dataclass(frozen=True)
class Fp4:
    """pairs [..., out, in / 2] uint8, the lower column in the lower bits; scales [..., out, groups] float32."""

    pairs: torch.Tensor
    scales: torch.Tensor
    exact: torch.dtype  # a dtype that holds every weight

    def dequantise(self) -> torch.Tensor:
        """[..., out, in]. Raises ValueError when the shapes do not fit each other."""
        columns, groups = 2 * self.pairs.shape[-1], self.scales.shape[-1]
        if self.pairs.shape[:-1] != self.scales.shape[:-1] or columns % groups:
            raise ValueError(f"FP4 weights {tuple(self.pairs.shape)} and scales {tuple(self.scales.shape)} do not fit")
        table = torch.tensor(VALUES)
        codes = torch.stack((self.pairs & 15, self.pairs >> 4), dim=-1).flatten(-2).int()
        grouped = table[codes].view(*self.scales.shape, -1) * self.scales.unsqueeze(-1)
        return grouped.view(*self.pairs.shape[:-1], columns).to(self.exact)


def mxfp4(blocks: torch.Tensor, scales: torch.Tensor) -> Fp4:
    """blocks [..., out, in / 32, 16] uint8 and scales [..., out, in / 32] uint8 of gpt-oss."""
    powers = torch.ldexp(torch.ones(scales.shape), scales.int() - EXPONENT_BIAS)
    return Fp4(blocks.flatten(-2), powers, torch.bfloat16)


def nvfp4(pairs: torch.Tensor, scales: torch.Tensor, factor: torch.Tensor) -> Fp4:
    """pairs [out, in / 2] uint8, scales [out, in / 16] float8, and the factor of the whole tensor."""
    return Fp4(pairs, scales.float() * factor.float().reshape(()), torch.float32)
