"""Rounding to float8_e4m3fn with one scale a row (computed here: its largest magnitude over 448) or one a tensor (given).

Floor: x is read once and a byte an element written, n * width * (itemsize + 1) bytes; 3 flops an element. A row stays
in registers between its maximum and its rounding.

Tolerance against the reference: one unit in the last place of E4M3 (1/8 relative) on a GPU, whose division may round
the other way; none in the interpreter. Scales 1e-6.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import torch

from pagefleet_kernels.launch.language import FP8_MAX, INTERPRETED, jit, power_of_two, runs_on, tl, to_fp8

MIN_SCALE = 1e-12  # of a row of zeros


def fp8_quantise(x: torch.Tensor, scale: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """x [n, width] -> (y [n, width] float8_e4m3fn, scales float32) with x = y * scales, saturated at +-448.

    Without a scale one is made per row: scales [n]. With `scale` (one element, float32), that is the tensor's.
    """
    return (fp8_quantise_triton if runs_on(x) else fp8_quantise_reference)(x, scale)


def fp8_quantise_reference(x: torch.Tensor, scale: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.float()
    scales = (wide.abs().amax(1) / FP8_MAX).clamp_min(MIN_SCALE) if scale is None else scale
    scaled = wide / (scales[:, None] if scale is None else scale)
    return scaled.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scales


def fp8_quantise_triton(x: torch.Tensor, scale: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    rows, width = x.shape
    out = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device) if scale is None else scale
    if rows:
        block = power_of_two(width)
        _kernel[(rows,)](
            x, out, scales, *x.stride(), width, PER_ROW=scale is None, BLOCK=block, WIDEN=INTERPRETED,
            num_warps=min(16, max(1, block // 512)),
        )  # fmt: skip
    return out, scales


@jit
def _kernel(x, out, scales, x_row, x_column, width, PER_ROW: tl.constexpr, BLOCK: tl.constexpr, WIDEN: tl.constexpr):
    """One program per row; `scales` is written with PER_ROW and read without."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + row * x_row + columns * x_column, mask=inside, other=0.0).to(tl.float32)
    if PER_ROW:
        scale = tl.maximum(tl.max(tl.abs(value), axis=0) / 448.0, 1e-12)
        tl.store(scales + row, scale)
    else:
        scale = tl.load(scales)
    tl.store(out + row * width + columns, to_fp8(value / scale, WIDEN), mask=inside)
