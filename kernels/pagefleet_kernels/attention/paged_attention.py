"""Causal attention over a paged KV cache (Kwon et al., SOSP 2023): decode, chunked prefill and mixes in one launch.

Each sequence brings its newest `q_len` tokens; their keys and values are in its pages already. Softmax is computed
online (Milakov and Gimelshein, 2018; Dao et al., 2022), in float32. The query heads that share a KV head are packed
into one block of rows, so that a page is read once for all of them. Where the blocks do not fill the device, each
sequence's keys are cut into splits whose float32 partial results a second kernel reduces (Flash-Decoding, 2023).

Floor: a decode step reads every key and value once, 2 * kv_len * kv_heads * head_dim * itemsize bytes a sequence (FP8:
half of bf16's; a window: min(kv_len, window)), for 4 * kv_len * heads * head_dim flops: bound by bytes until the group
is some hundred heads. Splits add 8 * heads * head_dim * splits bytes a token. A chunk of m tokens re-reads the keys
m * group / rows times and does 4 * m * (kv_len - m / 2) * heads * head_dim flops: bound by flops from a hundred rows.

Tolerance against the reference: float32 1e-4 relative, 1e-5 absolute; fp16 and bf16 1.5e-2 (their products' inputs
are rounded, sums are not); FP8 KV the same, as both read the same stored bytes.
"""

from __future__ import annotations

import torch

from pagefleet_kernels.attention.paged_attention_kernels import attend, reduce
from pagefleet_kernels.launch.language import INTERPRETED, power_of_two, runs_on
from pagefleet_kernels.launch.plan import MAX_SPLITS, attention_plan, processors, split_count

MIN_SPLIT_TILES = 2
FEW_SPLITS = (
    8  # one kernel reduces up to these, another up to MAX_SPLITS: each more would be compiled while an engine serves
)


def paged_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    kv_lens: torch.Tensor,
    scale: float,
    longest_query: int,
    *,
    longest_kv: int | None = None,
    window: int = 0,
    cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """[tokens, heads, head_dim] of q's dtype, for q of that shape: the sequences' newest tokens, one after the other.

    keys and values [pages, page_size, kv_heads, head_dim] of q's dtype or float8_e4m3fn; block_tables [sequences, most
    pages] int32, pages in order of position, anything after the last; query_starts [sequences + 1] int32, the rows of q
    where each begins and the end; kv_lens [sequences] int32, tokens with the new ones, 0 for a sequence that only pads
    the batch (its rows come out 0); longest_query is the most rows of one sequence, longest_kv an upper bound of kv_lens
    (the tables' width if None), of which only the split count follows. A token attends to itself and the window - 1
    tokens before it (0: all). With a `cap` above 0 scores become cap * tanh(score / cap). `sinks` [heads] are scores that
    take part in a head's softmax and have no value.
    """
    run = paged_attention_triton if runs_on(q) else paged_attention_reference
    return run(
        q, keys, values, block_tables, query_starts, kv_lens, scale, longest_query, longest_kv=longest_kv,
        window=window, cap=cap, sinks=sinks,
    )  # fmt: skip


def paged_attention_reference(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    kv_lens: torch.Tensor,
    scale: float,
    longest_query: int,
    *,
    longest_kv: int | None = None,
    window: int = 0,
    cap: float = 0.0,
    sinks: torch.Tensor | None = None,
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
        visible = torch.ones(end - begin, length, dtype=torch.bool, device=q.device).tril(length - (end - begin))
        if window:
            visible = visible.triu(length - (end - begin) - window + 1)
        if cap:
            scores = torch.tanh(scores / cap) * cap
        scores = scores.masked_fill(~visible, -torch.inf)
        if sinks is not None:
            scores = torch.cat((scores, sinks.float().view(-1, 1, 1).expand(*scores.shape[:2], 1)), dim=-1)
        weights = scores.softmax(dim=-1)[..., :length]
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
    *,
    longest_kv: int | None = None,
    window: int = 0,
    cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    splits: int | None = None,
) -> torch.Tensor:
    """`splits` overrides the split count that follows from the shapes and the device."""
    tokens, heads, head_dim = q.shape
    sequences, page_size, kv_heads = kv_lens.shape[0], keys.shape[1], keys.shape[2]
    out = torch.empty(tokens, heads, head_dim, dtype=q.dtype, device=q.device)
    if not tokens:
        return out
    group, dim = heads // kv_heads, power_of_two(head_dim, 16)
    # The interpreter is float32 only, and there to prove what 16-bit tensors launch.
    itemsize = 2 if INTERPRETED else q.element_size()
    plan = attention_plan(longest_query, group, dim, itemsize, q.device, keys.element_size())
    block_tokens = plan.rows // group
    # Sequence i owns the blocks from starts[i] // block_tokens + i on: enough for any split of the tokens.
    blocks = sequences if longest_query == 1 else tokens // block_tokens + sequences
    if splits is None:
        longest = block_tables.shape[1] * page_size if longest_kv is None else longest_kv
        longest = min(longest, window + longest_query) if window else longest
        slots = processors(q.device) * plan.resident
        splits = split_count(blocks * kv_heads, slots, -(-longest // plan.tile), MIN_SPLIT_TILES)
    # A GPU widens FP8 to float16 in one instruction, to bfloat16 in several. Float32 is for checks.
    half = keys.dtype is torch.float8_e4m3fn and itemsize == 2
    # One split writes the result; several write float32 sums to `partial` and their maxima and totals to `stats`.
    partial = torch.empty(splits, tokens, heads, head_dim, dtype=torch.float32, device=q.device) if splits > 1 else out
    stats = torch.empty(2, splits, tokens, heads, dtype=torch.float32, device=q.device) if splits > 1 else out
    attend[(blocks, kv_heads, splits)](
        q, keys, values, block_tables, query_starts, kv_lens, partial, stats, *q.stride(), *keys.stride(),
        *values.stride(), *block_tables.stride(), heads, tokens, sequences, splits, scale, window, cap,
        q if sinks is None else sinks, HEAD=head_dim, GROUP=group, PAGE=page_size, SPLIT=splits > 1, ROWS=plan.rows, TILE=plan.tile, DIM=dim, ONE=longest_query == 1,
        WINDOWED=bool(window), CAPPED=bool(cap), SINKS=sinks is not None, WIDEN=INTERPRETED, HALF=half, num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    if splits > 1:
        reduce[(tokens, heads)](
            partial, stats, out, tokens, heads, splits, HEAD=head_dim, DIM=dim, num_warps=4,
            ROUNDED=FEW_SPLITS if splits <= FEW_SPLITS else MAX_SPLITS,
        )  # fmt: skip
    return out
