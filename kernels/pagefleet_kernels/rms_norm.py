"""RMSNorm with the residual addition before it (Zhang and Sennrich, 2019): h = x + residual, y = h / rms(h) * weight.

Floor: x and residual are read once, h and y written once, so 4 * n * hidden * itemsize bytes (2 without a residual);
about 5 flops an element, far below what the bytes cost. A row stays in registers between its sum and its scaling.

Tolerance against the reference: float32 1e-5; fp16 2e-3; bf16 1.5e-2, 3e-2 in the interpreter, which cuts where
hardware rounds, three times.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import torch

from pagefleet_kernels.launch.language import jit, power_of_two, runs_on, tl


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """x and residual [n, hidden] of one dtype, weight [hidden] of it or of float32 -> (y, h), both [n, hidden]."""
    run = rms_norm_triton if runs_on(x) else rms_norm_reference
    return run(x, weight, eps, residual)


def rms_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = x if residual is None else x + residual
    wide = hidden.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (weight * scaled.to(x.dtype)).to(x.dtype), hidden


def rms_norm_triton(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, width = x.shape
    y = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    hidden = x if residual is None else torch.empty_like(y)
    if rows:
        other = x if residual is None else residual
        strides = (*x.stride(), *other.stride(), weight.stride(0), y.stride(0))
        block = power_of_two(width)
        _kernel[(rows,)](
            x, other, weight, hidden, y, *strides, width, eps, ADDS=residual is not None, BLOCK=block,
            num_warps=min(16, max(1, block // 512)),
        )  # fmt: skip
    return y, hidden


@jit
def _kernel(
    x, residual, weight, hidden, y, x_row, x_column, residual_row, residual_column, weight_column, y_row, width, eps,
    ADDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row. `hidden` is laid out as `y`, and written only when a residual is added."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + row * x_row + columns * x_column, mask=inside, other=0.0)
    wide = value.to(tl.float32)
    if ADDS:
        wide += tl.load(residual + row * residual_row + columns * residual_column, mask=inside, other=0.0).to(
            tl.float32
        )
        value = wide.to(value.dtype)
        tl.store(hidden + row * y_row + columns, value, mask=inside)
        wide = value.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / width + eps)
    # Rounded before the weight as Hugging Face does it; the product itself in float32, then rounded once.
    scaled = (wide * scale).to(value.dtype).to(tl.float32)
    factors = tl.load(weight + columns * weight_column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * y_row + columns, (factors * scaled).to(value.dtype), mask=inside)
