"""Sampling a token from logits: temperature, top-k, top-p, min-p, then the Gumbel-max trick (Gumbel, 1954).

The token with the largest logit / temperature + Gumbel noise has exactly the softmax's distribution (as far as noise of
23 bits allows: a token less likely than 1e-7 may never come). The noise of a token is a pure function of the request's
seed, the position and the token's id (Philox-4x32-10; Salmon et al., SC 2011): a request samples the same tokens
alone and in any batch. Temperature 0 is the first largest logit.

Filters need no sorting. Each keeps the logits from a threshold on: the smallest one above which lie fewer than k
tokens, or less than top_p of the mass that top-k left; a search narrows 32-bit keys in the order of the floats
eightfold at a time. Equal logits stay or go together. min_p keeps tokens at least min_p times as likely as
the likeliest.

Floor: the row is read once, vocabulary * itemsize bytes; Philox costs some 70 integer operations an element. Rows with
top-k or top-p read it 11 times each, from L2, which a row fits.

Tolerance: the same token, but where two sums, or a mass and top_p, agree to 1e-6.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import torch

from pagefleet_kernels.launch.language import jit, power_of_two, runs_on, tl

TILE = 2048  # logits at a time
WORD = 0xFFFFFFFF


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """logits [rows, vocabulary] -> token ids [rows] int32.

    Each [rows]: temperature float32 >= 0; top_k int32, 0 for all; top_p float32, 1 for all; min_p float32, 0 for all;
    seeds int64; positions int64 of the tokens to come.
    """
    run = sample_triton if runs_on(logits) else sample_reference
    return run(logits, temperature, top_k, top_p, min_p, seeds, positions)


def gumbel(seeds: torch.Tensor, positions: torch.Tensor, count: int) -> torch.Tensor:
    """[rows, count] float32 noise of the tokens 0 to count - 1."""
    token = torch.arange(count, device=seeds.device)[None, :].expand(len(seeds), -1)
    one, two = token, (positions & WORD)[:, None].expand_as(token)
    three = four = torch.zeros_like(token)
    low, high = (seeds & WORD)[:, None], ((seeds >> 32) & WORD)[:, None]
    for _ in range(10):  # int64 wraps, but the 64 bits of the products are right
        a, b = one * 0xD2511F53, three * 0xCD9E8D57
        one, two, three, four = ((b >> 32) & WORD) ^ two ^ low, b & WORD, ((a >> 32) & WORD) ^ four ^ high, a & WORD
        low, high = (low + 0x9E3779B9) & WORD, (high + 0xBB67AE85) & WORD
    uniform = ((one >> 9).float() + 0.5) * 2**-23
    return -torch.log(-torch.log(uniform))


def sample_reference(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    wide = logits.float()
    scaled = wide / temperature.clamp_min(1e-30)[:, None]
    ordered = scaled.sort(dim=-1, descending=True).values
    size = scaled.shape[1]
    last = torch.where(top_k > 0, top_k, size).clamp(max=size).long()[:, None] - 1
    least = ordered.gather(1, last)
    left = (ordered - ordered[:, :1]).exp().masked_fill(ordered < least, 0.0)
    # The mass of strictly larger logits: of the first of several equal ones.
    before = left.cumsum(-1) - left
    first = torch.searchsorted(-ordered.contiguous(), -ordered.contiguous())
    remaining = (before.gather(1, first) < top_p[:, None] * left.sum(-1, keepdim=True)) & (ordered >= least)
    least = ordered.masked_fill(~remaining, torch.inf).amin(-1, keepdim=True)
    least = torch.maximum(least, ordered[:, :1] + min_p.log()[:, None])
    noisy = (scaled + gumbel(seeds, positions, size)).masked_fill(scaled < least, -torch.inf)
    chosen = torch.where((temperature > 0)[:, None], noisy, wide)
    return (chosen == chosen.amax(-1, keepdim=True)).to(torch.int32).argmax(-1).to(torch.int32)


def sample_triton(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    rows, size = logits.shape
    out = torch.empty(rows, dtype=torch.int32, device=logits.device)
    if rows:
        _kernel[(rows,)](
            logits, temperature, top_k, top_p, min_p, seeds, positions, out, *logits.stride(), size, BLOCK=min(TILE, power_of_two(size)),
            num_warps=16,
        )  # fmt: skip
    return out


@jit
def _keys(logits):
    """int32 in the order of the floats."""
    bits = logits.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@jit
def _threshold(row, step, size, factor, top, floor, limit, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The smallest key above which the logits, of those from `floor` on, measure less than `limit`.

    They measure exp(logit * factor - top) with MASS, 1 each without. Each round cuts the range in eight.
    """
    low = floor.to(tl.int64)
    width = tl.full([], 1 << 32, tl.int64)
    bound = tl.arange(0, 8)
    while width > 1:
        width = tl.maximum(width // 8, 1)
        bounds = low + bound * width
        above = tl.zeros([8], tl.float32)
        for start in range(0, size, BLOCK):
            at = start + tl.arange(0, BLOCK)
            logit = tl.load(row + at * step, mask=at < size, other=float("-inf")).to(tl.float32)
            key = _keys(logit).to(tl.int64)
            weight = tl.exp(logit * factor - top) if MASS else tl.full([BLOCK], 1.0, tl.float32)
            weight = tl.where((at < size) & (key >= floor), weight, 0.0)
            above += tl.sum(tl.where(key[:, None] > bounds[None, :], weight[:, None], 0.0), axis=0)
        # Bounds that do not satisfy the limit come first: the answer lies after the last of them.
        failed = tl.sum((above >= limit).to(tl.int64), axis=0)
        low += tl.maximum(failed - 1, 0) * width + tl.where((failed > 0) & (width == 1), 1, 0)
    return low.to(tl.int32)


@jit
def _kernel(logits, temperature, top_k, top_p, min_p, seeds, positions, out, row_step, step, size, BLOCK: tl.constexpr):
    """One program per row."""
    index = tl.program_id(0)
    row = logits + index.to(tl.int64) * row_step
    heat = tl.load(temperature + index)
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        highest = tl.maximum(highest, tl.load(row + at * step, mask=at < size, other=float("-inf")).to(tl.float32))
    highest = tl.max(highest, axis=0)
    factor = tl.where(heat > 0, 1.0 / tl.maximum(heat, 1e-30), 0.0)
    top = highest * factor
    floor = _keys(tl.full([], float("-inf"), tl.float32))
    count, mass = tl.load(top_k + index), tl.load(top_p + index)
    if (heat > 0) & (count > 0) & (count < size):
        floor = _threshold(row, step, size, factor, top, floor, count.to(tl.float32), False, BLOCK)
    if (heat > 0) & (mass < 1.0):
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, size, BLOCK):
            at = start + tl.arange(0, BLOCK)
            logit = tl.load(row + at * step, mask=at < size, other=float("-inf")).to(tl.float32)
            total += tl.where((at < size) & (_keys(logit) >= floor), tl.exp(logit * factor - top), 0.0)
        floor = _threshold(row, step, size, factor, top, floor, mass * tl.sum(total, axis=0), True, BLOCK)
    ratio = tl.load(min_p + index)
    least = tl.where(ratio > 0, top + tl.log(tl.maximum(ratio, 1e-37)), float("-inf"))

    seed, zero = tl.load(seeds + index), tl.zeros([BLOCK], tl.uint32)
    position = zero + tl.load(positions + index).to(tl.uint32)
    best, chosen = tl.full([], float("-inf"), tl.float32), tl.zeros([], tl.int32)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        logit = tl.load(row + at * step, mask=at < size, other=float("-inf")).to(tl.float32)
        score = logit
        if heat > 0:
            word, _two, _three, _four = tl.philox(seed, at.to(tl.uint32), position, zero, zero)
            uniform = ((word >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
            scaled = logit * factor
            score = scaled - tl.log(-tl.log(uniform))
            score = tl.where((_keys(logit) >= floor) & (scaled >= least), score, float("-inf"))
        most, where = tl.max(score, axis=0, return_indices=True)
        if most > best:
            best, chosen = most, start + where
    tl.store(out + index, chosen)
