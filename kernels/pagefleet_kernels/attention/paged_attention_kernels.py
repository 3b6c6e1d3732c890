"""The kernels of paged attention: `attend` walks a block's pages, `reduce` joins the splits. See paged_attention.py."""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

from pagefleet_kernels.launch.language import jit, jit_varying, tl


@jit
def _tile(
    query, highest, total, summed, begin, stop, position, keys, values, table, table_column,
    k_page, k_token, k_dim, v_page, v_token, v_dim, scale, window, cap,
    HEAD: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr, DIM: tl.constexpr, WINDOWED: tl.constexpr,
    MASKED: tl.constexpr, CAPPED: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """One step of the online softmax over the tokens begin to begin + TILE; with MASKED, each row attends only to its visible ones."""
    positions = begin + tl.arange(0, TILE)
    dims = tl.arange(0, DIM)
    real = positions < stop
    if PAGE % TILE == 0:  # the tile lies in one page: one look-up, and addresses that follow each other
        page = tl.load(table + (begin // PAGE) * table_column).to(tl.int64)
        at = (begin % PAGE) + tl.arange(0, TILE)
        k_at, v_at = page * k_page + at * k_token, page * v_page + at * v_token
    else:
        if MASKED:
            page = tl.load(table + (positions // PAGE) * table_column, mask=real, other=0).to(tl.int64)
        else:
            page = tl.load(table + (positions // PAGE) * table_column).to(tl.int64)
        at = positions % PAGE
        k_at, v_at = page * k_page + at * k_token, page * v_page + at * v_token
    k_at = keys + k_at[:, None] + (dims * k_dim)[None, :]
    v_at = values + v_at[:, None] + (dims * v_dim)[None, :]
    if MASKED or HEAD != DIM:
        mask = real[:, None] & (dims < HEAD)[None, :]
        key, value = tl.load(k_at, mask=mask, other=0.0), tl.load(v_at, mask=mask, other=0.0)
    else:
        key, value = tl.load(k_at), tl.load(v_at)
    if WIDEN:
        key, value = key.to(tl.float32), value.to(tl.float32)
    else:
        key, value = key.to(query.dtype), value.to(query.dtype)
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    if CAPPED:  # tanh(x) = 1 - 2 / (exp(2 x) + 1)
        scores = cap * (1.0 - 2.0 / (tl.exp(tl.minimum(2.0 * scores / cap, 80.0)) + 1.0))
    scores *= 1.4426950408889634  # exp(x) = exp2(x / ln 2)
    if MASKED:
        visible = (positions[None, :] <= position[:, None]) & real[None, :]
        if WINDOWED:
            visible = visible & (positions[None, :] > position[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
    now = tl.maximum(highest, tl.max(scores, axis=1))
    base = now
    if MASKED:  # a row without a visible token so far: -inf - (-inf) is not a number
        base = tl.where(now == float("-inf"), 0.0, now)
    weights = tl.exp2(scores - base[:, None])
    faded = tl.exp2(highest - base)
    total = total * faded + tl.sum(weights, axis=1)
    summed = summed * faded[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return now, total, summed


@jit
def _sequence_of(block, query_starts, sequences, block_tokens):
    """The last sequence whose first block is not after this one."""
    low, high = tl.full([], 0, tl.int32), tl.full([], sequences, tl.int32)
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_starts + middle) // block_tokens + middle <= block:
            low = middle + 1
        else:
            high = middle
    return low - 1


@jit_varying("tokens", "sequences", "splits", "window")
def attend(
    q, keys, values, block_tables, query_starts, kv_lens, out, stats, q_token, q_head, q_dim,
    k_page, k_token, k_head, k_dim, v_page, v_token, v_head, v_dim, table_row, table_column,
    heads, tokens, sequences, splits, scale, window, cap, sinks, HEAD: tl.constexpr, GROUP: tl.constexpr,
    PAGE: tl.constexpr, SPLIT: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, DIM: tl.constexpr,
    ONE: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr, SINKS: tl.constexpr, WIDEN: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """One program per block of a sequence's new tokens, KV head and split; row r is token r // GROUP, head r % GROUP.

    The last block comes first: it has the most keys to walk. With ONE, every sequence has at most one new token.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head, split = tl.program_id(1), tl.program_id(2)
    block_tokens = ROWS // GROUP
    sequence = block if ONE else _sequence_of(block, query_starts, sequences, block_tokens)
    start = tl.load(query_starts + sequence)
    q_len = tl.load(query_starts + sequence + 1) - start
    kv_len = tl.load(kv_lens + sequence)
    first = 0 if ONE else (block - (start // block_tokens + sequence)) * block_tokens
    if first >= q_len:
        return

    row = tl.arange(0, ROWS)
    token = first + row // GROUP
    head = kv_head * GROUP + row % GROUP
    dims = tl.arange(0, DIM)
    row_inside = (row < block_tokens * GROUP) & (token < q_len)
    inside = row_inside[:, None] & (dims < HEAD)[None, :]
    at = (start + token).to(tl.int64)
    query = tl.load(q + (at * q_token + head * q_head)[:, None] + (dims * q_dim)[None, :], mask=inside, other=0.0)
    if WIDEN:
        query = query.to(tl.float32)
    elif HALF:
        query = tl.minimum(tl.maximum(query.to(tl.float32), -65504.0), 65504.0).to(tl.float16)
    before = kv_len - q_len  # tokens of earlier steps; each row attends to all tokens up to itself
    position = before + token
    end = tl.minimum(kv_len, before + first + block_tokens)
    begin = tl.full([], 0, tl.int32)
    if WINDOWED:
        begin = tl.maximum(before + first - window + 1, 0) // TILE * TILE
    if SPLIT:
        part = tl.cdiv(tl.cdiv(end - begin, TILE), splits) * TILE
        begin += split * part
        end = tl.minimum(end, begin + part)

    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if SINKS:  # noqa: SIM102 - the second condition is the device's
        if split == 0:  # of all splits it counts once
            score = tl.load(sinks + head, mask=row_inside, other=0.0).to(tl.float32) * 1.4426950408889634
            highest = tl.where(row_inside, score, float("-inf"))
            total = tl.where(row_inside, 1.0, 0.0)
    summed = tl.zeros([ROWS, DIM], tl.float32)
    table = block_tables + sequence.to(tl.int64) * table_row
    keys += kv_head * k_head
    values += kv_head * v_head
    masked_from = begin
    if not WINDOWED:  # tiles that are visible to all rows as a whole need no mask
        masked_from = tl.maximum(begin, tl.minimum(end, before + first + 1) // TILE * TILE)
        for tile in range(begin, masked_from, TILE):
            highest, total, summed = _tile(
                query, highest, total, summed, tile, end, position, keys, values, table, table_column,
                k_page, k_token, k_dim, v_page, v_token, v_dim, scale, window, cap,
                HEAD, PAGE, TILE, DIM, WINDOWED, False, CAPPED, WIDEN,
            )  # fmt: skip
    for tile in range(masked_from, end, TILE):
        highest, total, summed = _tile(
            query, highest, total, summed, tile, end, position, keys, values, table, table_column,
            k_page, k_token, k_dim, v_page, v_token, v_dim, scale, window, cap,
            HEAD, PAGE, TILE, DIM, WINDOWED, True, CAPPED, WIDEN,
        )  # fmt: skip

    if SPLIT:
        at += split.to(tl.int64) * tokens
        tl.store(stats + at * heads + head, highest, mask=row_inside)
        tl.store(stats + (at + tokens * splits) * heads + head, total, mask=row_inside)
    else:
        summed = summed / tl.where(total > 0, total, 1.0)[:, None]
    out_at = (at * heads + head)[:, None] * HEAD + dims[None, :]
    tl.store(out + out_at, summed.to(out.dtype.element_ty), mask=inside)


@jit_varying("tokens", "splits")
def reduce(
    partial, stats, out, tokens, heads, splits, HEAD: tl.constexpr, DIM: tl.constexpr, ROUNDED: tl.constexpr
):  # fmt: skip
    """One program per token and head. An empty split has a maximum of -inf and counts for nothing."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    split, dims = tl.arange(0, ROUNDED), tl.arange(0, DIM)
    at = (split * tokens + token) * heads + head
    inside = split < splits
    highest = tl.load(stats + at, mask=inside, other=float("-inf"))
    total = tl.load(stats + at + tokens * splits * heads, mask=inside, other=0.0)
    top = tl.max(highest, axis=0)
    weight = tl.where(highest == float("-inf"), 0.0, tl.exp2(highest - tl.where(top == float("-inf"), 0.0, top)))
    whole = tl.sum(weight * total, axis=0)
    mask = inside[:, None] & (dims < HEAD)[None, :]
    part = tl.load(partial + at[:, None] * HEAD + dims[None, :], mask=mask, other=0.0)
    joined = tl.sum(part * weight[:, None], axis=0) / tl.where(whole > 0, whole, 1.0)
    tl.store(out + token * heads * HEAD + head * HEAD + dims, joined.to(out.dtype.element_ty), mask=dims < HEAD)
