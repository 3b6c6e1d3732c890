"""How a launch is cut up, by shape: tables that ship with the package, nothing is tuned at start-up. Pure functions.

The entries follow from counting, not from measurements: registers and shared memory of one program on Hopper (227 KiB
a multiprocessor, less on smaller chips), and bytes in flight. `bench/kernels_gpu.py` measures what they give.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch

__all__ = ["Attention", "Gemm", "attention_plan", "gemm_plan", "processors", "split_count"]

DECODE_ROWS = 16  # the fewest rows of a matrix product; up to that many, attention is bound by the pages' bytes
MOST_HEAD_DIM = 256
CPU_PROCESSORS = 4  # what the interpreter pretends, so that it runs the split paths


@dataclass(frozen=True)
class Attention:
    """One program: `rows` (new tokens x heads of a group) against `tile` tokens of KV at a time."""

    rows: int
    tile: int
    warps: int
    stages: int
    resident: int  # programs that fit a multiprocessor at once


# By the padded head size. Of the pipeline's stages the first ones look pages up: only from 5 on do the tiles of K and V
# have two buffers, so that one loads while the other is used (seen in the compiled code: 72 KiB for 64 x 128 x 2 bytes).
_DECODE = {
    16: Attention(16, 128, 4, 5, 4),
    32: Attention(16, 128, 4, 5, 4),
    64: Attention(16, 128, 4, 5, 2),
    128: Attention(16, 64, 4, 5, 2),
    256: Attention(16, 32, 4, 5, 2),
}
# Prefill: 64 rows are what one warpgroup's wgmma takes, 128 keep two of them busy on the same keys.
_SHORT = {
    16: Attention(64, 64, 4, 5, 4),
    32: Attention(64, 64, 4, 5, 4),
    64: Attention(64, 64, 4, 5, 2),
    128: Attention(64, 64, 4, 5, 1),
    256: Attention(64, 32, 4, 5, 1),
}
_LONG = {
    16: Attention(128, 64, 4, 5, 2),
    32: Attention(128, 64, 4, 5, 2),
    64: Attention(128, 64, 8, 5, 2),
    128: Attention(128, 64, 8, 5, 1),
    256: Attention(128, 32, 8, 5, 1),
}


def attention_plan(longest_query: int, group: int, dim: int, itemsize: int = 2) -> Attention:
    """For the most new tokens of one sequence, the query heads of a KV head, the padded head size (16 to 256) and the
    bytes of an element of q. Float32, which has no matrix unit and is for checks, takes the least of all.
    """
    if dim not in _DECODE:
        raise ValueError(
            f"head size: {dim} after padding to a power of two; allowed are {', '.join(map(str, _DECODE))}"
        )
    rows = longest_query * group
    plan = (_DECODE if rows <= DECODE_ROWS else _SHORT if rows <= 64 else _LONG)[dim]
    if itemsize > 2:
        plan = Attention(DECODE_ROWS, 16, 4, 2, 1)
    if group <= plan.rows:
        return plan
    return replace(plan, rows=1 << (group - 1).bit_length(), warps=8, stages=2, resident=1)  # a very wide group


def split_count(programs: int, slots: int, longest: int, least: int, most: int = 64) -> int:
    """Into how many parts to cut each program's loop so that all parts run in one wave.

    programs without splits; slots, programs that the device holds at once; longest, iterations of the loop; least, the
    fewest of a part: below it the reduction costs more than it gains. One where the programs fill the device already.
    """
    return max(1, min(slots // max(programs, 1), longest // max(least, 1), most))


@dataclass(frozen=True)
class Gemm:
    """One program: `rows` x `columns` of the product, `depth` of the inner dimension at a time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    resident: int


# By rows of x, at most. Weights stream once while all rows fit one program.
_WEIGHT_ONLY = {16: Gemm(16, 64, 128, 4, 3, 3), 32: Gemm(32, 64, 128, 4, 3, 3), 64: Gemm(64, 64, 128, 4, 3, 2)}
_FP8 = {
    16: Gemm(16, 64, 256, 4, 4, 3),
    32: Gemm(32, 64, 256, 4, 4, 2),
    64: Gemm(64, 128, 128, 4, 4, 2),
    128: Gemm(128, 128, 128, 8, 3, 1),
}


def gemm_plan(rows: int, fp8: bool) -> Gemm:
    """The entry of the fewest rows that holds them all, or the largest, of which several then cover the rows."""
    table = _FP8 if fp8 else _WEIGHT_ONLY
    return table[min((size for size in table if size >= rows), default=max(table))]


def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; a few on the CPU."""
    return _counted(device.index or 0) if device.type == "cuda" else CPU_PROCESSORS


@functools.cache
def _counted(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count
