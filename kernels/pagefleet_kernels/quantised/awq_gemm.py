"""Product with AWQ weights (Lin et al., 2023): 4 bits, a scale and a zero point for each group of the inner dimension.

Floor: for few rows, the weights are read once: inner * columns * (1/2 + 2.5 / group) bytes, a quarter of fp16's, for
2 * rows * inner * columns flops: bound by bytes up to about fifty rows. Whole numbers minus zero points are exact in
any dtype, so the matrix product runs on them and the group's scale multiplies the float32 sums. A GPU converts few
whole numbers at a time: in 16 bits a weight becomes the low bits of 1024 (bf16: 128), from which 1024 is subtracted
again with the zero point (Kim et al., arXiv:2211.10017, 4).

Tolerance against the reference: float32 1e-5 relative to the largest output; fp16 2e-3; bf16 1.5e-2.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import torch

from pagefleet_kernels.launch.language import INTERPRETED, jit, jit_varying, runs_on, tl
from pagefleet_kernels.launch.plan import gemm_plan
from pagefleet_kernels.quantised.awq_dequantise import awq_dequantise_triton
from pagefleet_kernels.quantised.gemm import gemm_grid

BASES = {torch.float16: 0x6400, torch.bfloat16: 0x4300}  # bits of 1024 and of 128, whose unit in the last place is 1
MANY_ROWS = (
    128  # beyond two blocks of rows, which would unpack every word again, the weights are widened to a matrix first
)
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble i of a word, from the lowest, holds column ORDER[i] of its eight


def awq_gemm(x: torch.Tensor, qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """x [rows, inner] -> [rows, columns] of x's dtype, as AutoAWQ's "gemm" version packs weights.

    qweight [inner, columns / 8] int32; qzeros [groups, columns / 8] int32; scales [groups, columns]; groups are equal
    parts of inner, each a multiple of 16.
    """
    return (awq_gemm_triton if runs_on(x) else awq_gemm_reference)(x, qweight, qzeros, scales)


def awq_unpack(packed: torch.Tensor) -> torch.Tensor:
    """[n, columns / 8] int32 -> [n, columns] int32 of 0 to 15."""
    shifts = torch.tensor([4 * ORDER.index(column) for column in range(8)], device=packed.device)
    return ((packed[:, :, None] >> shifts) & 15).flatten(1).int()


def awq_gemm_reference(
    x: torch.Tensor, qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    group = qweight.shape[0] // scales.shape[0]
    zeros = awq_unpack(qzeros).repeat_interleave(group, 0)
    weight = (awq_unpack(qweight) - zeros).float() * scales.float().repeat_interleave(group, 0)
    return (x.float() @ weight).to(x.dtype)


def awq_gemm_triton(x: torch.Tensor, qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    (rows, inner), columns = x.shape, scales.shape[1]
    group = inner // scales.shape[0]
    if not rows:
        return torch.empty(0, columns, dtype=x.dtype, device=x.device)
    plan = gemm_plan(rows, fp8=False, device=x.device)
    step = min(plan.depth, group & -group)  # the largest power of two that divides the group
    if step < 16 or inner % group:
        raise ValueError(f"scales: {scales.shape[0]} groups of {inner} rows; a group must be a multiple of 16")
    if rows > MANY_ROWS:
        return x @ awq_dequantise_triton(qweight, qzeros, scales, x.dtype)
    grid = gemm_grid(plan, rows, columns, inner, step, x.device, x.dtype)
    _kernel[grid.grid](
        x, qweight, qzeros, scales, grid.out, *x.stride(), *qweight.stride(), *qzeros.stride(), *scales.stride(), rows,
        columns, inner, grid.part, GROUP=group, ROWS=plan.rows, COLUMNS=plan.columns, DEPTH=step, WIDEN=INTERPRETED,
        BASE=0 if INTERPRETED else BASES.get(x.dtype, 0), num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return grid.result()


@jit
def _added(
    summed, left, packed, zero_words, scales, column, inside, LANE: tl.constexpr, BASE: tl.constexpr
):  # fmt: skip
    """summed + left @ the weights of column LANE of each word's eight. `scales`: those of the group; `column`: their places."""
    shift: tl.constexpr = (LANE % 2 * 4 + LANE // 2) * 4  # where the column lies: the inverse of ORDER
    weight, zero = (packed >> shift) & 15, (zero_words >> shift) & 15
    if BASE:
        weight = (weight | BASE).to(tl.int16).to(left.dtype, bitcast=True)
        zero = (zero | BASE).to(tl.int16).to(left.dtype, bitcast=True)
    right = (weight - zero[None, :]).to(left.dtype)
    scale = tl.load(scales + LANE * column, mask=inside, other=0.0).to(tl.float32)
    return summed + tl.dot(left, right, input_precision="ieee") * scale[None, :]


@jit_varying("rows")
def _kernel(
    x, qweight, qzeros, scales, out, x_row, x_column, w_row, w_column, z_row, z_column, s_row, s_column, rows, columns,
    inner, part, GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    WIDEN: tl.constexpr, BASE: tl.constexpr,
):  # fmt: skip
    """One program per ROWS x COLUMNS of the product and split; DEPTH divides the group.

    A word's eight columns are summed apart, so that a weight stays in the thread that read its word until the product.
    """
    words: tl.constexpr = COLUMNS // 8
    split = tl.program_id(2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    word = tl.program_id(1) * words + tl.arange(0, words)
    depth = tl.arange(0, DEPTH)
    row_inside, word_inside = row < rows, word < columns // 8
    x_at = x + row.to(tl.int64)[:, None] * x_row + (depth * x_column)[None, :]
    w_at = qweight + depth.to(tl.int64)[:, None] * w_row + (word * w_column)[None, :]
    one = tl.zeros([ROWS, words], tl.float32)
    two, three, four, five, six, seven, eight = one, one, one, one, one, one, one
    for start in range(split * part, tl.minimum(inner, (split + 1) * part), DEPTH):
        left = tl.load(x_at + start * x_column, mask=row_inside[:, None], other=0.0)
        packed = tl.load(w_at + start * w_row, mask=word_inside[None, :], other=0)
        group = start // GROUP
        zeros = tl.load(qzeros + group * z_row + word * z_column, mask=word_inside, other=0)
        scale = scales + group * s_row + word * 8 * s_column
        if WIDEN:
            left = left.to(tl.float32)
        one = _added(one, left, packed, zeros, scale, s_column, word_inside, 0, BASE)
        two = _added(two, left, packed, zeros, scale, s_column, word_inside, 1, BASE)
        three = _added(three, left, packed, zeros, scale, s_column, word_inside, 2, BASE)
        four = _added(four, left, packed, zeros, scale, s_column, word_inside, 3, BASE)
        five = _added(five, left, packed, zeros, scale, s_column, word_inside, 4, BASE)
        six = _added(six, left, packed, zeros, scale, s_column, word_inside, 5, BASE)
        seven = _added(seven, left, packed, zeros, scale, s_column, word_inside, 6, BASE)
        eight = _added(eight, left, packed, zeros, scale, s_column, word_inside, 7, BASE)
    inside = row_inside[:, None] & word_inside[None, :]
    at = out + (split.to(tl.int64) * rows + row)[:, None] * columns + word[None, :] * 8
    kind = out.dtype.element_ty
    tl.store(at, one.to(kind), mask=inside)
    tl.store(at + 1, two.to(kind), mask=inside)
    tl.store(at + 2, three.to(kind), mask=inside)
    tl.store(at + 3, four.to(kind), mask=inside)
    tl.store(at + 4, five.to(kind), mask=inside)
    tl.store(at + 5, six.to(kind), mask=inside)
    tl.store(at + 6, seven.to(kind), mask=inside)
    tl.store(at + 7, eight.to(kind), mask=inside)
