"""Sampling a token from logits: temperature, top-k, top-p, min-p, then the Gumbel-max trick (Gumbel, 1954).

The token with the largest logit / temperature + Gumbel noise has exactly the softmax's distribution (as far as noise of
23 bits allows: a token less likely than 1e-7 may never come). The noise of a token is a pure function of the request's
seed, the position and the token's id (Philox-4x32-10; Salmon et al., SC 2011): a request samples the same tokens
alone and in any batch. One call of Philox gives the noise of four tokens. Temperature 0 is the first largest logit.

Filters need no sorting. Each keeps the logits from a threshold on: the smallest one above which lie fewer than k
tokens, or less than top_p of the mass that top-k left; a search narrows 32-bit keys in the order of the floats
fourfold at a time. Equal logits stay or go together. min_p keeps tokens at least min_p times as likely as
the likeliest.

The search looks at the four largest logits of each of 4,096 lanes first. Where none of the fourth ones stays, these were
all that can stay (50 tokens of a vocabulary: practically always); else it goes through the row.

Floor: the row is read once, vocabulary * itemsize bytes; Philox costs some 20 integer operations an element. Rows with
top-k read it once more, those with top-p twice.

Tolerance: the same token, but where two sums, or a mass and top_p, agree to 1e-6.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import torch

from pagefleet_kernels.launch.language import jit, runs_on, tl

LANES, WARPS = 4096, 8  # logits at a time, and the warps that share them
WORDS = 2048  # calls of Philox at a time; each has four words: the noise of tokens that lie WORDS apart
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
    one, two = token // (4 * WORDS) * WORDS + token % WORDS, (positions & WORD)[:, None].expand_as(token)
    three = four = torch.zeros_like(token)
    low, high = (seeds & WORD)[:, None], ((seeds >> 32) & WORD)[:, None]
    for _ in range(10):  # int64 wraps, but the 64 bits of the products are right
        a, b = one * 0xD2511F53, three * 0xCD9E8D57
        one, two, three, four = ((b >> 32) & WORD) ^ two ^ low, b & WORD, ((a >> 32) & WORD) ^ four ^ high, a & WORD
        low, high = (low + 0x9E3779B9) & WORD, (high + 0xBB67AE85) & WORD
    word = torch.stack((one, two, three, four)).gather(0, (token // WORDS % 4)[None])[0]
    uniform = ((word >> 9).float() + 0.5) * 2**-23
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
            logits, temperature, top_k, top_p, min_p, seeds, positions, out, *logits.stride(), size, LANES=LANES, WORDS=WORDS,
            num_warps=WARPS,
        )  # fmt: skip
    return out


@jit
def _keys(logits):
    """int32 in the order of the floats."""
    bits = logits.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@jit
def _key_of(bound):
    """The int32 above which lie the keys above an int64."""
    return tl.minimum(bound, 0x7FFFFFFF).to(tl.int32)


@jit
def _weights(logit, key, factor, top, floor, MASS: tl.constexpr):
    """What each logit counts for: exp(logit * factor - top) with MASS, 1 without; nothing below the key `floor`."""
    weight = tl.exp(logit * factor - top) if MASS else tl.full(logit.shape, 1.0, tl.float32)
    return tl.where(key >= floor, weight, 0.0)


@jit
def _narrowed(low, width, limit, one, two, three, four):
    """The low end after a round: bounds that do not satisfy the limit come first, and the answer lies after the last of them."""
    failed = (tl.sum(one, axis=0) >= limit).to(tl.int64) + (tl.sum(two, axis=0) >= limit).to(tl.int64)
    failed += (tl.sum(three, axis=0) >= limit).to(tl.int64) + (tl.sum(four, axis=0) >= limit).to(tl.int64)
    return low + tl.maximum(failed - 1, 0) * width + tl.where((failed > 0) & (width == 1), 1, 0)


@jit
def _threshold(logit, factor, top, floor, limit, MASS: tl.constexpr):
    """The smallest key above which the logits, of those from `floor` on, weigh less than `limit`."""
    key = _keys(logit)
    weight = _weights(logit, key, factor, top, floor, MASS)
    low = floor.to(tl.int64)
    width = tl.full([], 1 << 32, tl.int64)
    while width > 1:
        width = width // 4
        one = tl.where(key > low.to(tl.int32), weight, 0.0)
        two = tl.where(key > _key_of(low + width), weight, 0.0)
        three = tl.where(key > _key_of(low + 2 * width), weight, 0.0)
        four = tl.where(key > _key_of(low + 3 * width), weight, 0.0)
        low = _narrowed(low, width, limit, one, two, three, four)
    return low.to(tl.int32)


@jit
def _row_threshold(row, step, size, factor, top, floor, limit, MASS: tl.constexpr, LANES: tl.constexpr):
    """The same of a whole row. Every lane adds up its own logits, and the lanes are added once a round."""
    low = floor.to(tl.int64)
    width = tl.full([], 1 << 32, tl.int64)
    while width > 1:
        width = width // 4
        one, two = tl.zeros([LANES], tl.float32), tl.zeros([LANES], tl.float32)
        three, four = tl.zeros([LANES], tl.float32), tl.zeros([LANES], tl.float32)
        for start in range(0, size, LANES):
            logit = _read(row, step, size, start + tl.arange(0, LANES))
            key = _keys(logit)
            weight = _weights(logit, key, factor, top, floor, MASS)
            one += tl.where(key > low.to(tl.int32), weight, 0.0)
            two += tl.where(key > _key_of(low + width), weight, 0.0)
            three += tl.where(key > _key_of(low + 2 * width), weight, 0.0)
            four += tl.where(key > _key_of(low + 3 * width), weight, 0.0)
        low = _narrowed(low, width, limit, one, two, three, four)
    return low.to(tl.int32)


@jit
def _read(row, step, size, at):
    """Logits of a row as float32, -inf beyond its end."""
    return tl.load(row + at * step, mask=at < size, other=float("-inf")).to(tl.float32)


@jit
def _largest(row, step, size, LANES: tl.constexpr):
    """The four largest logits of each lane: the first ones, all of them [4 * LANES], and the fourth ones."""
    one, two = tl.full([LANES], float("-inf"), tl.float32), tl.full([LANES], float("-inf"), tl.float32)
    three, four = one, two
    for start in range(0, size, LANES):
        logit = _read(row, step, size, start + tl.arange(0, LANES))
        one, logit = tl.maximum(one, logit), tl.minimum(one, logit)
        two, logit = tl.maximum(two, logit), tl.minimum(two, logit)
        three, logit = tl.maximum(three, logit), tl.minimum(three, logit)
        four = tl.maximum(four, logit)
    return one, tl.reshape(tl.join(tl.join(one, two), tl.join(three, four)), [4 * LANES]), four


@jit
def _first_kept(
    row, step, size, some, fourth, factor, top, floor, limit, MASS: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """The threshold of a row, by the largest logits of its lanes where these are all that can stay."""
    found = _threshold(some, factor, top, floor, limit, MASS)
    if tl.max(((_keys(fourth) >= found) & (fourth > float("-inf"))).to(tl.int32), axis=0) > 0:
        found = _row_threshold(row, step, size, factor, top, floor, limit, MASS, LANES)
    return found


@jit
def _better(best, chosen, score, at):
    """The larger scores of each lane and their tokens; of equal ones the earlier."""
    better = score > best
    return tl.where(better, score, best), tl.where(better, at, chosen)


@jit
def _noisy(row, step, size, at, word, factor, floor, least):
    """Scores with the noise of a word of Philox; -inf where a filter leaves the token out."""
    logit = _read(row, step, size, at)
    scaled = logit * factor
    score = scaled - tl.log(-tl.log(((word >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07))
    return tl.where((_keys(logit) >= floor) & (scaled >= least), score, float("-inf"))


@jit
def _kernel(
    logits, temperature, top_k, top_p, min_p, seeds, positions, out, row_step, step, size, LANES: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """One program per row."""
    index = tl.program_id(0)
    row = logits + index.to(tl.int64) * row_step
    heat = tl.load(temperature + index)
    count, mass, ratio = tl.load(top_k + index), tl.load(top_p + index), tl.load(min_p + index)
    factor = tl.where(heat > 0, 1.0 / tl.maximum(heat, 1e-30), 0.0)
    lowest = _keys(tl.full([], float("-inf"), tl.float32))
    floor, least = lowest, tl.full([], float("-inf"), tl.float32)
    first = (heat > 0) & (count > 0) & (count < size)
    if (heat > 0) & (first | (mass < 1.0) | (ratio > 0)):
        highest, some, fourth = _largest(row, step, size, LANES)
        top = tl.max(highest, axis=0) * factor
        if ratio > 0:
            least = top + tl.log(tl.maximum(ratio, 1e-37))
        fewest = count.to(tl.float32)
        if first:
            floor = _first_kept(row, step, size, some, fourth, factor, top, lowest, fewest, False, LANES)
        if mass < 1.0:
            before, total = floor, tl.zeros([LANES], tl.float32)
            for start in range(0, size, LANES):
                logit = _read(row, step, size, start + tl.arange(0, LANES))
                total += _weights(logit, _keys(logit), factor, top, before, True)
            most = mass * tl.sum(total, axis=0)
            floor = _first_kept(row, step, size, some, fourth, factor, top, before, most, True, LANES)

    lane = tl.arange(0, WORDS)
    best, chosen = tl.full([WORDS], float("-inf"), tl.float32), tl.zeros([WORDS], tl.int32)
    if heat > 0:
        seed, zero = tl.load(seeds + index), tl.zeros([WORDS], tl.uint32)
        position = zero + tl.load(positions + index).to(tl.uint32)
        for start in range(0, size, 4 * WORDS):
            words = tl.philox(seed, (start // 4 + lane).to(tl.uint32), position, zero, zero)
            for part in tl.static_range(4):
                at = start + part * WORDS + lane
                best, chosen = _better(best, chosen, _noisy(row, step, size, at, words[part], factor, floor, least), at)
    else:
        for start in range(0, size, WORDS):
            at = start + lane
            best, chosen = _better(best, chosen, _read(row, step, size, at), at)
    winner = tl.max(best, axis=0)
    tl.store(out + index, tl.min(tl.where(best == winner, chosen, size), axis=0))
