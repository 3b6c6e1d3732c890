"""Causal attention over a paged KV cache (Kwon et al., SOSP 2023), decode and chunked prefill in one kernel.

Each sequence brings its newest `q_len` tokens; their keys and values are in its pages already. Softmax is computed
online (Milakov and Gimelshein, 2018; Dao et al., 2022), in float32. The query heads that share a KV head are packed
into one block of rows, so that a page is read once for all of them.

Floor: a decode step reads every key and value once, 2 * kv_len * kv_heads * head_dim * itemsize bytes a sequence, for
4 * kv_len * heads * head_dim flops: bound by bytes until the group is some hundred heads. A chunk of m tokens re-reads
them m * group / BLOCK_M times and does 4 * m * (kv_len - m / 2) * heads * head_dim flops: bound by flops from about a
hundred rows on. One program walks all of a sequence's pages, so a few long decodes do not fill a GPU.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import torch

from pagefleet_kernels.language import INTERPRETED, jit, power_of_two, runs_on, tl

KV_TILE = 64  # tokens of one step over the pages; need not be a multiple of the page size
DECODE_ROWS, PREFILL_ROWS = 16, 64


def paged_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    kv_lens: torch.Tensor,
    scale: float,
    longest_query: int,
) -> torch.Tensor:
    """[tokens, heads, head_dim] of q's dtype, for q of that shape: the sequences' newest tokens, one after the other.

    keys and values [pages, page_size, kv_heads, head_dim]; block_tables [sequences, most pages] int32, pages in order
    of position, anything after the last; query_starts [sequences + 1] int32, the rows of q where each begins and the
    end; kv_lens [sequences] int32, tokens with the new ones; longest_query is the most rows of one sequence.
    """
    run = paged_attention_triton if runs_on(q) else paged_attention_reference
    return run(q, keys, values, block_tables, query_starts, kv_lens, scale, longest_query)


def paged_attention_reference(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    kv_lens: torch.Tensor,
    scale: float,
    longest_query: int,
) -> torch.Tensor:
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    page_size, group = keys.shape[1], q.shape[1] // keys.shape[2]
    starts, lengths = query_starts.tolist(), kv_lens.tolist()
    for sequence, length in enumerate(lengths):
        begin, end = starts[sequence], starts[sequence + 1]
        pages = block_tables[sequence, : -(-length // page_size)].long()
        k = keys[pages].flatten(0, 1)[:length].float().repeat_interleave(group, dim=1)
        v = values[pages].flatten(0, 1)[:length].float().repeat_interleave(group, dim=1)
        scores = torch.einsum("thd,shd->hts", q[begin:end].float(), k) * scale
        seen = torch.ones(end - begin, length, dtype=torch.bool, device=q.device).tril(length - (end - begin))
        weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
        out[begin:end] = torch.einsum("hts,shd->thd", weights, v).to(q.dtype)
    return out


def paged_attention_triton(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    kv_lens: torch.Tensor,
    scale: float,
    longest_query: int,
) -> torch.Tensor:
    tokens, heads, head_dim = q.shape
    sequences, kv_heads = kv_lens.shape[0], keys.shape[2]
    out = torch.empty(tokens, heads, head_dim, dtype=q.dtype, device=q.device)
    if not tokens:
        return out
    group = heads // kv_heads
    rows = power_of_two(group, DECODE_ROWS if longest_query * group <= DECODE_ROWS else PREFILL_ROWS)
    block_tokens = rows // group
    # Sequence i owns the blocks from starts[i] // block_tokens + i on: enough for any split of the tokens.
    blocks = tokens // block_tokens + sequences
    _kernel[(blocks, kv_heads)](
        q, keys, values, block_tables, query_starts, kv_lens, out, *q.stride(), *keys.stride(), *values.stride(),
        block_tables.stride(0), block_tables.stride(1), heads, sequences, scale * 1.4426950408889634, head_dim,
        GROUP=group, PAGE=keys.shape[1], ROWS=rows, TILE=KV_TILE, DIM=power_of_two(head_dim, 16), WIDEN=INTERPRETED,
        num_warps=4,
    )  # fmt: skip
    return out


@jit
def _kernel(
    q, keys, values, block_tables, query_starts, kv_lens, out, q_token, q_head, q_dim,
    k_page, k_token, k_head, k_dim, v_page, v_token, v_head, v_dim, table_row, table_column,
    heads, sequences, scale_log2, head_dim, GROUP: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, DIM: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """One program per block of a sequence's new tokens and KV head; row r is token r // GROUP, head r % GROUP."""
    block, kv_head = tl.program_id(0), tl.program_id(1)
    block_tokens = ROWS // GROUP
    low, high = tl.full([], 0, tl.int32), tl.full([], sequences, tl.int32)
    while low < high:  # the last sequence whose first block is not after this one
        middle = (low + high) // 2
        if tl.load(query_starts + middle) // block_tokens + middle <= block:
            low = middle + 1
        else:
            high = middle
    sequence = low - 1
    start = tl.load(query_starts + sequence)
    q_len = tl.load(query_starts + sequence + 1) - start
    kv_len = tl.load(kv_lens + sequence)
    first = (block - (start // block_tokens + sequence)) * block_tokens
    if first >= q_len:
        return

    row = tl.arange(0, ROWS)
    token = first + row // GROUP
    head = kv_head * GROUP + row % GROUP
    dims = tl.arange(0, DIM)
    row_inside = (row < block_tokens * GROUP) & (token < q_len)
    inside = row_inside[:, None] & (dims < head_dim)[None, :]
    at = (start + token).to(tl.int64)
    query = tl.load(q + (at * q_token + head * q_head)[:, None] + (dims * q_dim)[None, :], mask=inside, other=0.0)
    if WIDEN:
        query = query.to(tl.float32)
    position = kv_len - q_len + token  # of each row in its sequence; it sees everything up to itself

    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, DIM], tl.float32)
    end = tl.minimum(kv_len, kv_len - q_len + first + block_tokens)
    for begin in range(0, end, TILE):
        seen = begin + tl.arange(0, TILE)
        real = seen < end
        page = tl.load(
            block_tables + sequence.to(tl.int64) * table_row + (seen // PAGE) * table_column, mask=real, other=0
        ).to(tl.int64)
        offset = seen % PAGE
        mask = real[:, None] & (dims < head_dim)[None, :]
        k_at = (page * k_page + offset * k_token + kv_head * k_head)[:, None] + (dims * k_dim)[None, :]
        v_at = (page * v_page + offset * v_token + kv_head * v_head)[:, None] + (dims * v_dim)[None, :]
        key = tl.load(keys + k_at, mask=mask, other=0.0)
        value = tl.load(values + v_at, mask=mask, other=0.0)
        if WIDEN:
            key, value = key.to(tl.float32), value.to(tl.float32)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale_log2
        scores = tl.where((seen[None, :] <= position[:, None]) & real[None, :], scores, float("-inf"))
        now = tl.maximum(highest, tl.max(scores, axis=1))
        # Every row sees position 0, which is in the first tile: `now` is finite from there on.
        weights = tl.exp2(scores - now[:, None])
        faded = tl.exp2(highest - now)
        total = total * faded + tl.sum(weights, axis=1)
        summed = summed * faded[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        highest = now
    out_at = (at * heads + head)[:, None] * head_dim + dims[None, :]
    tl.store(out + out_at, (summed / total[:, None]).to(out.dtype.element_ty), mask=inside)
