"""Product of float8_e4m3fn activations and weights with a scale for each token and each output channel (W8A8).

Floor: for few rows, the weights are read once, inner * columns bytes, half of bf16's; 2 * rows * inner * columns flops
at twice bf16's rate. Both scales are constant along the inner dimension, so they multiply the float32 sums at the end.

Tolerance against the reference: the inputs are the same bytes and their products exact in float32, so 1e-5 relative to
the largest output in the interpreter; 2e-3 on a GPU, whose FP8 matrix unit keeps fewer bits of its sums; then the
output's rounding (bf16 8e-3).
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import torch

from pagefleet_kernels.launch.language import INTERPRETED, jit_varying, runs_on, tl
from pagefleet_kernels.launch.plan import gemm_plan
from pagefleet_kernels.quantised.gemm import gemm_grid


def fp8_gemm(
    x: torch.Tensor, x_scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """[rows, columns] of dtype: x [rows, inner] and weight [columns, inner] float8_e4m3fn, x_scales [rows] or [1],
    weight_scales [columns] or [1], float32.
    """
    return (fp8_gemm_triton if runs_on(x) else fp8_gemm_reference)(x, x_scales, weight, weight_scales, dtype)


def fp8_gemm_reference(
    x: torch.Tensor, x_scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    return (x.float() @ weight.float().t() * x_scales[:, None] * weight_scales).to(dtype)


def fp8_gemm_triton(
    x: torch.Tensor, x_scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    (rows, inner), columns = x.shape, weight.shape[0]
    if not rows:
        return torch.empty(0, columns, dtype=dtype, device=x.device)
    plan = gemm_plan(rows, fp8=True, device=x.device)
    grid = gemm_grid(plan, rows, columns, inner, plan.depth, x.device, dtype)
    strides = [scales.stride(0) if len(scales) > 1 else 0 for scales in (x_scales, weight_scales)]
    _kernel[grid.grid](
        x, x_scales, weight, weight_scales, grid.out, *x.stride(), *weight.stride(), *strides, rows, columns, inner,
        grid.part, EVEN=inner % plan.depth == 0, ROWS=plan.rows, COLUMNS=plan.columns, DEPTH=plan.depth,
        WIDEN=INTERPRETED, num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return grid.result()


@jit_varying("rows")
def _kernel(
    x, x_scales, weight, weight_scales, out, x_row, x_column, w_row, w_column, x_scale, w_scale, rows, columns, inner,
    part, EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """One program per ROWS x COLUMNS of the product and split of the inner dimension."""
    split = tl.program_id(2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    row_inside, column_inside = row < rows, column < columns
    # Rows and columns beyond the edge read the last one: their sums are never stored, and the loads need no mask.
    near_row = tl.minimum(row, rows - 1).to(tl.int64)
    near_column = tl.minimum(column, columns - 1).to(tl.int64)
    x_at = x + near_row[:, None] * x_row + (depth * x_column)[None, :]
    w_at = weight + near_column[None, :] * w_row + (depth * w_column)[:, None]
    summed = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(split * part, tl.minimum(inner, (split + 1) * part), DEPTH):
        if EVEN:
            left, right = tl.load(x_at + start * x_column), tl.load(w_at + start * w_column)
        else:
            real = depth < inner - start
            left = tl.load(x_at + start * x_column, mask=real[None, :], other=0.0)
            right = tl.load(w_at + start * w_column, mask=real[:, None], other=0.0)
        if WIDEN:
            left, right = left.to(tl.float32), right.to(tl.float32)
        summed = tl.dot(left, right, summed, input_precision="ieee")
    left_scale = tl.load(x_scales + row * x_scale, mask=row_inside, other=0.0)
    right_scale = tl.load(weight_scales + column * w_scale, mask=column_inside, other=0.0)
    summed = summed * left_scale[:, None] * right_scale[None, :]
    at = (split.to(tl.int64) * rows + row)[:, None] * columns + column[None, :]
    tl.store(out + at, summed.to(out.dtype.element_ty), mask=row_inside[:, None] & column_inside[None, :])
