"""A step's inputs from sequence state that lies on the device: token ids, positions, slots of the KV pool, lengths.

The host sends which sequences run and how many tokens each brings. Inputs that depend on sampled tokens stay on the
device, so that a step can be launched before the one before it has ended.

Floor: 4 bytes read and 4 + 8 + 4 written a token, 12 a sequence, some ten integer operations: microseconds, bound by
the launch. It is one launch so that it fits a captured graph.

Tolerance: none, integers.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagefleet_kernels.launch.language import jit_varying, power_of_two, runs_on, tl


@dataclass(frozen=True)
class Inputs:
    """tokens [n] int32, positions [n] int64, slots [n] int32 (-1: a token that pads), kv_lens [sequences] int32."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    kv_lens: torch.Tensor


def build_inputs(
    tokens: torch.Tensor,
    query_starts: torch.Tensor,
    rows: torch.Tensor,
    computed: torch.Tensor,
    last_tokens: torch.Tensor,
    block_tables: torch.Tensor,
    page_size: int,
) -> Inputs:
    """tokens [n] int32 as the host knows them, -1 for the last one sampled; those beyond query_starts[-1] pad.

    query_starts [sequences + 1] int32; rows [sequences] int32, each sequence's row in the state, -1 for one that pads;
    the state: computed [most] int32, tokens already in the pool, last_tokens [most] int32, block_tables [most, most
    pages] int32.
    """
    run = build_inputs_triton if runs_on(tokens) else build_inputs_reference
    return run(tokens, query_starts, rows, computed, last_tokens, block_tables, page_size)


def build_inputs_reference(
    tokens: torch.Tensor,
    query_starts: torch.Tensor,
    rows: torch.Tensor,
    computed: torch.Tensor,
    last_tokens: torch.Tensor,
    block_tables: torch.Tensor,
    page_size: int,
) -> Inputs:
    filled, positions = tokens.clamp_min(0), torch.zeros_like(tokens, dtype=torch.int64)
    slots, kv_lens = torch.full_like(tokens, -1), torch.zeros_like(rows)
    starts = query_starts.tolist()
    for sequence, row in enumerate(rows.tolist()):
        begin, end = starts[sequence], starts[sequence + 1]
        if row < 0:
            continue
        at = int(computed[row]) + torch.arange(end - begin, device=tokens.device)
        positions[begin:end] = at
        slots[begin:end] = (block_tables[row, at // page_size] * page_size + at % page_size).to(slots.dtype)
        filled[begin:end] = torch.where(tokens[begin:end] < 0, last_tokens[row], tokens[begin:end])
        kv_lens[sequence] = computed[row] + end - begin
    return Inputs(filled, positions, slots, kv_lens)


def build_inputs_triton(
    tokens: torch.Tensor,
    query_starts: torch.Tensor,
    rows: torch.Tensor,
    computed: torch.Tensor,
    last_tokens: torch.Tensor,
    block_tables: torch.Tensor,
    page_size: int,
) -> Inputs:
    count, sequences = tokens.shape[0], rows.shape[0]
    made = Inputs(
        torch.empty_like(tokens),
        torch.empty(count, dtype=torch.int64, device=tokens.device),
        torch.empty_like(tokens),
        torch.empty_like(rows),
    )
    block = min(power_of_two(max(count, sequences, 1)), 128)
    _kernel[(max(1, -(-max(count, sequences) // block)),)](
        tokens, query_starts, rows, computed, last_tokens, block_tables, *block_tables.stride(), count, sequences,
        made.tokens, made.positions, made.slots, made.kv_lens, PAGE=page_size, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return made


@jit_varying("count", "sequences")
def _kernel(
    tokens, query_starts, rows, computed, last_tokens, block_tables, table_row, table_column, count, sequences,
    filled, positions, slots, kv_lens, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per BLOCK tokens, and as many sequences for their lengths."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = entry < sequences
    row = tl.load(rows + entry, mask=real, other=-1)
    length = tl.load(query_starts + entry + 1, mask=real, other=0) - tl.load(query_starts + entry, mask=real, other=0)
    length += tl.load(computed + row, mask=real & (row >= 0), other=0)
    tl.store(kv_lens + entry, tl.where(row >= 0, length, 0), mask=real)

    low, high = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32) + sequences
    span = sequences
    while span > 0:  # the last sequence that begins at or before each token
        middle = (low + high) // 2
        open_still = low < high
        before = tl.load(query_starts + middle + 1, mask=open_still, other=0) <= entry
        low = tl.where(open_still & before, middle + 1, low)
        high = tl.where(open_still & (before == 0), middle, high)
        span = span // 2
    inside = entry < count
    owned = inside & (low < sequences)
    row = tl.load(rows + low, mask=owned, other=-1)
    owned = owned & (row >= 0)
    at = tl.load(computed + row, mask=owned, other=0) + entry - tl.load(query_starts + low, mask=owned, other=0)
    page = tl.load(block_tables + row.to(tl.int64) * table_row + (at // PAGE) * table_column, mask=owned, other=0)
    given = tl.load(tokens + entry, mask=inside, other=0)
    last = tl.load(last_tokens + row, mask=owned & (given < 0), other=0)
    tl.store(filled + entry, tl.where(given < 0, last, given), mask=inside)
    tl.store(positions + entry, tl.where(owned, at, 0).to(tl.int64), mask=inside)
    tl.store(slots + entry, tl.where(owned, page * PAGE + at % PAGE, -1), mask=inside)
