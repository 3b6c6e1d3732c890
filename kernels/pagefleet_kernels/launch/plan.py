"""Cuts a launch up by its shape, with tables that ship with the package. Nothing is tuned at start-up. Pure functions.

The entries of tables.py are Hopper's, where one program may take 227 KiB of a multiprocessor, and smaller ones for other GPUs.
`bench/kernels_gpu.py` measures the results.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from pagefleet_kernels.launch.tables import Attention, Gemm, tables

__all__ = ["Attention", "Gemm", "attention_plan", "gemm_plan", "processors", "split_count", "tables"]

DECODE_ROWS = 16  # the fewest rows of a matrix product; up to that many, attention is bound by the pages' bytes
SHORT_ROWS = 64  # the most rows of a short query: what one warpgroup's matrix unit takes
MAX_HEAD_DIM = 256
MAX_SPLITS = 64
WIDEST_TILE = 128
CPU_PROCESSORS = 4  # assumed for the interpreter, so that it runs the split paths


def attention_plan(
    longest_query: int,
    group: int,
    dim: int,
    itemsize: int = 2,
    device: torch.device | None = None,
    kv_itemsize: int = 2,
) -> Attention:
    """Return the plan for the most new tokens of one sequence, the query heads of a KV head, the padded head size (16 to 256) and the
    bytes of an element of q and of the pages. Float32, which has no matrix unit and is for checks, takes the least of all. A
    decode step over FP8 pages takes twice the tokens at a time: as many bytes.
    """
    table = tables(device)
    if dim not in table.decode:
        raise ValueError(
            f"head size: {dim} after padding to a power of two; allowed are {', '.join(map(str, table.decode))}"
        )
    rows = longest_query * group
    plan = (table.decode if rows <= DECODE_ROWS else table.short if rows <= SHORT_ROWS else table.long)[dim]
    if itemsize > 2:
        plan = Attention(DECODE_ROWS, 16, 4, 2, 1)
    elif kv_itemsize == 1 and rows <= DECODE_ROWS:
        plan = replace(plan, tile=min(WIDEST_TILE, 2 * plan.tile))
    if group <= plan.rows:
        return plan
    return replace(plan, rows=1 << (group - 1).bit_length(), warps=8, stages=2, resident=1)  # a very wide group


def split_count(programs: int, slots: int, longest: int, least: int, most: int = MAX_SPLITS) -> int:
    """Return how many parts each program's loop is cut into, so that all parts run in one wave.

    programs without splits; slots, programs that the device holds at once; longest, iterations of the loop; least, the
    fewest of a part: below it the reduction costs more than it gains. One where the programs fill the device already.
    """
    return max(1, min(slots // max(programs, 1), longest // max(least, 1), most))


def gemm_plan(rows: int, fp8: bool, device: torch.device | None = None) -> Gemm:
    """The entry of the fewest rows that holds them all, or the largest, of which several then cover the rows."""
    table = tables(device).fp8 if fp8 else tables(device).weight_only
    return table[min((size for size in table if size >= rows), default=max(table))]


def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; a few on the CPU."""
    return _counted(device.index or 0) if device.type == "cuda" else CPU_PROCESSORS


@functools.cache
def _counted(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count
