"""The shared parts of the quantised matrix products: the grid over the product, and the sum over splits of the depth.

Splits write float32 partial products that one reduction adds in a fixed order: unlike atomic additions, the result is
the same on every run.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagefleet_kernels.launch.language import jit_varying, tl
from pagefleet_kernels.launch.plan import Gemm, processors, split_count

MIN_STEPS = 4  # of one split
JOINED = 1024  # elements of one program that adds splits up


@dataclass(frozen=True)
class Grid:
    """`out` is [rows, columns] of the result's dtype for one split, [splits, rows, columns] float32 for several."""

    grid: tuple[int, int, int]
    part: int  # of the depth, one split's
    out: torch.Tensor
    dtype: torch.dtype

    def result(self) -> torch.Tensor:
        if self.out.ndim == 2:
            return self.out
        joined = torch.empty(self.out.shape[1:], dtype=self.dtype, device=self.out.device)
        _join[(-(-joined.numel() // JOINED),)](self.out, joined, joined.numel(), len(self.out), BLOCK=JOINED)
        return joined


@jit_varying("count", "splits")
def _join(parts, out, count, splits, BLOCK: tl.constexpr):
    """out [count] = the sum of parts [splits, count], BLOCK elements a program."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    total = tl.zeros([BLOCK], tl.float32)
    part = at
    for _ in range(splits):
        total += tl.load(parts + part, mask=inside, other=0.0)
        part += count
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


def gemm_grid(
    plan: Gemm, rows: int, columns: int, inner: int, step: int, device: torch.device, dtype: torch.dtype
) -> Grid:
    """Return the grid of a product [rows, inner] x [inner, columns] that walks the inner dimension `step` at a time."""
    row_blocks, column_blocks = -(-rows // plan.rows), -(-columns // plan.columns)
    steps = -(-inner // step)
    slots = processors(device) * plan.resident
    parts = split_count(row_blocks * column_blocks, slots, steps, MIN_STEPS, most=16)
    part = -(-steps // parts) * step
    splits = max(1, -(-inner // part))
    shape, kind = ((rows, columns), dtype) if splits == 1 else ((splits, rows, columns), torch.float32)
    return Grid((row_blocks, column_blocks, splits), part, torch.empty(shape, dtype=kind, device=device), dtype)
