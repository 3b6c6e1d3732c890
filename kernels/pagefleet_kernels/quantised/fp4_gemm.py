"""Product with 4-bit floating-point weights, weight-only: MXFP4 (OCP, 2023) and NVFP4.

Both hold E2M1 numbers (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives). MXFP4 has a power of two (E8M0) for 32 of them
along the inner dimension, NVFP4 an E4M3 scale for 16 and one float32 for the tensor.

Floor: for few rows, the weights are read once: inner * columns * (1/2 + 1/32 or 1/16) bytes, for
2 * rows * inner * columns flops: bound by bytes up to about fifty rows. A number times its block's scale is exact in
bf16 (six bits of mantissa at most) as long as its exponent fits; the tensor's scale multiplies the float32 sums.

Tolerance against the reference: float32 1e-5 relative to the largest output; fp16 2e-3 (MXFP4 scales beyond 2^-14 to
2^13 need bf16); bf16 1.5e-2.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import torch

from pagefleet_kernels.launch.language import INTERPRETED, jit_varying, runs_on, tl
from pagefleet_kernels.launch.plan import gemm_plan
from pagefleet_kernels.quantised.gemm import gemm_grid

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def fp4_gemm(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """x [rows, inner] -> [rows, columns] of x's dtype.

    weight [columns, inner / 2] uint8, the lower nibble first; scales [columns, inner / 32] uint8 (E8M0: MXFP4) or
    [columns, inner / 16] float8_e4m3fn (NVFP4); scale multiplies all. inner is a multiple of 64.
    """
    return (fp4_gemm_triton if runs_on(x) else fp4_gemm_reference)(x, weight, scales, scale)


def fp4_weights(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[columns, inner] float32: the numbers times their blocks' scales."""
    nibbles = torch.stack((weight & 15, weight >> 4), dim=-1).flatten(1).long()
    numbers = torch.tensor(E2M1, device=weight.device)[nibbles]
    wide = torch.exp2(scales.float() - 127) if scales.dtype == torch.uint8 else scales.float()
    return numbers * wide.repeat_interleave(numbers.shape[1] // scales.shape[1], 1)


def fp4_gemm_reference(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return (x.float() @ fp4_weights(weight, scales).t() * scale).to(x.dtype)


def fp4_gemm_triton(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    (rows, inner), columns = x.shape, weight.shape[0]
    block = 32 if scales.dtype == torch.uint8 else 16
    if inner % 64 or scales.shape[1] * block != inner:
        raise ValueError(f"scales: {scales.shape[1]} blocks of {block} for {inner} columns, a multiple of 64")
    if not rows:
        return torch.empty(0, columns, dtype=x.dtype, device=x.device)
    plan = gemm_plan(rows, fp8=False, device=x.device)
    step = min(plan.depth, inner & -inner)
    grid = gemm_grid(plan, rows, columns, inner, step, x.device, x.dtype)
    _kernel[grid.grid](
        x, weight, scales, grid.out, *x.stride(), *weight.stride(), *scales.stride(), rows, columns, inner, grid.part,
        scale, POWERS=scales.dtype == torch.uint8, BLOCK=block, ROWS=plan.rows, COLUMNS=plan.columns, DEPTH=step,
        WIDEN=INTERPRETED, num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return grid.result()


@jit_varying("rows")
def _kernel(
    x, weight, scales, out, x_row, x_column, w_row, w_column, s_row, s_column, rows, columns, inner, part, scale,
    POWERS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """One program per ROWS x COLUMNS of the product and split; BLOCK numbers share a scale."""
    split = tl.program_id(2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row_inside, column_inside = row < rows, column < columns
    x_at = x + row.to(tl.int64)[:, None] * x_row + (tl.arange(0, DEPTH) * x_column)[None, :]
    w_at = weight + column.to(tl.int64)[:, None] * w_row + (tl.arange(0, DEPTH // 2) * w_column)[None, :]
    s_at = scales + column.to(tl.int64)[:, None] * s_row + (tl.arange(0, DEPTH // BLOCK) * s_column)[None, :]
    summed = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(split * part, tl.minimum(inner, (split + 1) * part), DEPTH):
        left = tl.load(x_at + start * x_column, mask=row_inside[:, None], other=0.0)
        pairs = tl.load(w_at + start // 2 * w_column, mask=column_inside[:, None], other=0).to(tl.int32)
        factors = tl.load(s_at + start // BLOCK * s_column, mask=column_inside[:, None], other=0.0)
        nibble = tl.reshape((pairs[:, :, None] >> (tl.arange(0, 2) * 4)[None, None, :]) & 15, (COLUMNS, DEPTH))
        size = nibble & 7
        # From 1 on, the bits of a float32 with the same exponent and mantissa; below, 0 and 0.5.
        number = (((size >> 1) + 126) << 23 | (size & 1) << 22).to(tl.float32, bitcast=True)
        number = tl.where(size < 2, size * 0.5, number)
        number = tl.where(nibble < 8, number, -number)
        if POWERS:
            power = factors.to(tl.int32)
            wide = tl.where(power == 0, 1 << 22, power << 23).to(tl.float32, bitcast=True)  # 2^-127 is subnormal
        else:
            wide = factors.to(tl.float32)
        blocks = tl.reshape(number, (COLUMNS, DEPTH // BLOCK, BLOCK)) * wide[:, :, None]
        right = tl.trans(tl.reshape(blocks, (COLUMNS, DEPTH)))
        if WIDEN:
            left = left.to(tl.float32)
        else:
            right = right.to(left.dtype)
        summed += tl.dot(left, right, input_precision="ieee")
    at = (split.to(tl.int64) * rows + row)[:, None] * columns + column[None, :]
    tl.store(out + at, (summed * scale).to(out.dtype.element_ty), mask=row_inside[:, None] & column_inside[None, :])
