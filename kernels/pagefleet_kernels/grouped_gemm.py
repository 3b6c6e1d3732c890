"""Matrix products of a mixture of experts (Shazeer et al., 2017): each row by the weights of its own experts.

The pairs of a row and one of its experts are sorted by expert and padded to whole blocks of rows, so that a block has one
expert and every shape follows from the number of pairs: nothing waits for the device, and a graph can hold it.

Floor: the weights of the experts that rows chose are read once per BLOCK rows of each, for 2 * pairs * n * k flops: bound by
bytes until an expert has some hundred rows.

Tolerance against the reference: float32 1e-4 relative; fp16 and bf16 1.5e-2.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagefleet_kernels.launch.language import INTERPRETED, jit_varying, runs_on, tl

BLOCK, COLUMNS, INNER = 16, 64, 64  # of one program: rows, columns of the result, and of k at a time


@dataclass(frozen=True)
class Groups:
    """Pairs sorted by expert. pairs [blocks * BLOCK] int64: row * top + which of its experts, -1 for padding; experts
    [blocks] int64: of each block, the number of experts for one without a pair.
    """

    pairs: torch.Tensor
    experts: torch.Tensor
    count: int


def groups(chosen: torch.Tensor, experts: int) -> Groups:
    """The groups of `chosen` [rows, top], the experts of each row. Makes the same launches for every choice."""
    flat = chosen.flatten().long()
    pairs = flat.shape[0]
    order = flat.argsort(stable=True)
    counts = torch.zeros(experts, dtype=torch.int64, device=flat.device).scatter_add_(0, flat, torch.ones_like(flat))
    padded = (counts + BLOCK - 1) // BLOCK * BLOCK
    ends = padded.cumsum(0)
    owner = flat[order]
    place = torch.arange(pairs, device=flat.device) - (counts.cumsum(0) - counts)[owner] + (ends - padded)[owner]
    blocks = pairs // BLOCK + min(experts, pairs)
    slots = torch.full((blocks * BLOCK,), -1, dtype=torch.int64, device=flat.device).scatter_(0, place, order)
    begins = torch.arange(blocks, device=flat.device) * BLOCK
    return Groups(slots, torch.searchsorted(ends, begins, right=True), pairs)


def grouped_gemm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, grouped: Groups, top: int
) -> torch.Tensor:
    """[pairs, n]: for each pair, row pair // `top` of x [rows, k] by its expert of weight [experts, n, k], plus its bias [n]."""
    run = grouped_gemm_triton if runs_on(x) else grouped_gemm_reference
    return run(x, weight, bias, grouped, top)


def grouped_gemm_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, grouped: Groups, top: int
) -> torch.Tensor:
    out = torch.empty(grouped.count, weight.shape[1], dtype=x.dtype, device=x.device)
    slots = grouped.pairs.view(-1, BLOCK)
    for expert in range(weight.shape[0]):
        own = slots[grouped.experts == expert].flatten()
        own = own[own >= 0]
        out[own] = torch.nn.functional.linear(x[own // top], weight[expert], None if bias is None else bias[expert])
    return out


def grouped_gemm_triton(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, grouped: Groups, top: int
) -> torch.Tensor:
    experts, columns, inner = weight.shape
    out = torch.empty(grouped.count, columns, dtype=x.dtype, device=x.device)
    if grouped.count:
        _kernel[(grouped.experts.shape[0], -(-columns // COLUMNS))](
            x, weight, weight if bias is None else bias, grouped.pairs, grouped.experts, out, x.stride(0), *weight.stride(),
            columns, inner, experts, top, BIASED=bias is not None, ROWS=BLOCK, COLUMNS=COLUMNS, INNER=INNER,
            WIDEN=INTERPRETED, num_warps=4, num_stages=3,
        )  # fmt: skip
    return out


@jit_varying("experts", "top")
def _kernel(
    x, weight, bias, pairs, block_experts, out, x_row, w_expert, w_row, w_column, columns, inner, experts, top,
    BIASED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """One program per block of pairs and COLUMNS of the result."""
    block = tl.program_id(0)
    expert = tl.load(block_experts + block)
    if expert >= experts:
        return
    pair = tl.load(pairs + block * ROWS + tl.arange(0, ROWS))
    real = pair >= 0
    row = tl.where(real, pair, 0) // top
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    step = tl.arange(0, INNER)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    weight += expert * w_expert
    for begin in range(0, inner, INNER):
        at = begin + step
        some = at < inner
        left = tl.load(x + (row * x_row)[:, None] + at[None, :], mask=real[:, None] & some[None, :], other=0.0)
        right = tl.load(
            weight + (column.to(tl.int64) * w_row)[None, :] + (at * w_column)[:, None],
            mask=some[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        if WIDEN:
            left, right = left.to(tl.float32), right.to(tl.float32)
        total += tl.dot(left, right, input_precision="ieee")
    if BIASED:
        total += tl.load(bias + expert * columns + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    target = out + (pair * columns)[:, None] + column[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=real[:, None] & inside[None, :])
