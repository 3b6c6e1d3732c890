"""Rotary position embedding (Su et al., 2021) of queries and keys, and the write of keys and values to their KV pages.

With norm weights, each head of q and k goes through RMSNorm first (Qwen3's q/k norm). Keys and values are rounded to
the pages' dtype; beyond the largest number of float8_e4m3fn they saturate.

Floor: q is read and written, k and v are read once and written once into their slots, so
n * head_dim * (itemsize * (2 * heads + 2 * kv_heads) + 2 * kv_heads * page itemsize) bytes, plus n * head_dim of the
float32 tables; 3 flops an element of q and k, 7 with the norm. One launch takes the place of four to eight: the
rotated keys never exist outside their pages.

Tolerance against the reference: float32 1e-5; fp16 2e-3; bf16 2e-2; FP8 pages one unit in the last place (1/8).
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import torch

from pagefleet_kernels.launch.language import FP8_MAX, INTERPRETED, jit, power_of_two, runs_on, tl, to_fp8

HEADS = 8  # of one program


def rope_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> torch.Tensor:
    """Rotated q [n, heads, head_dim]; `keys` and `values` [slots, kv_heads, head_dim] are written at `slots` [n].

    q [n, heads, head_dim]; k and v [n, kv_heads, head_dim]; cos and sin [positions, head_dim / 2] float32, halves as
    Hugging Face lays them out; positions and slots [n] integers. A token whose slot is negative is not written: it
    pads the batch. q_norm and k_norm [head_dim], both or neither.
    """
    run = rope_write_triton if runs_on(q) else rope_write_reference
    return run(
        q, k, v, cos, sin, positions, slots, keys, values, q_norm=q_norm, k_norm=k_norm, eps=eps,
    )  # fmt: skip


def rope_write_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> torch.Tensor:
    c, s = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    real = slots >= 0
    if q_norm is not None and k_norm is not None:
        q, k = _normed(q, q_norm, eps), _normed(k, k_norm, eps)
    keys[slots[real].long()] = _stored(_rotated(k, c, s)[real], keys.dtype)
    values[slots[real].long()] = _stored(v[real], values.dtype)
    return _rotated(q, c, s)


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    scaled = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    return (weight * scaled).to(x.dtype)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


def _stored(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype != torch.float8_e4m3fn:
        return x.to(dtype)
    return x.float().clamp(-FP8_MAX, FP8_MAX).to(dtype)


def rope_write_triton(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> torch.Tensor:
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    out = torch.empty(tokens, heads, head_dim, dtype=q.dtype, device=q.device)
    if tokens:
        tensors = (q, k, v, cos, sin, keys, values)
        strides = [stride for tensor in tensors for stride in tensor.stride()]
        normed = q_norm is not None and k_norm is not None
        norms = (q_norm.contiguous(), k_norm.contiguous()) if q_norm is not None and k_norm is not None else (q, q)
        _kernel[(tokens, -(-heads // HEADS) + -(-kv_heads // HEADS))](
            *tensors, *norms, positions, slots, out, *strides, heads, kv_heads, eps,
            HALF=head_dim // 2, NORMED=normed, FP8=keys.dtype == torch.float8_e4m3fn, GROUP=HEADS,
            BLOCK=power_of_two(head_dim // 2), WIDEN=INTERPRETED, num_warps=4,
        )  # fmt: skip
    return out


@jit
def _stored_as(x, kind: tl.constexpr, FP8: tl.constexpr, WIDEN: tl.constexpr):
    if FP8:
        return to_fp8(x.to(tl.float32), WIDEN)
    return x.to(kind)


@jit
def _kernel(
    q, k, v, cos, sin, keys, values, q_norm, k_norm, positions, slots, out,
    q_token, q_head, q_dim, k_token, k_head, k_dim, v_token, v_head, v_dim, cos_row, cos_column, sin_row, sin_column,
    keys_slot, keys_head, keys_dim, values_slot, values_head, values_dim, heads, kv_heads, eps,
    HALF: tl.constexpr, NORMED: tl.constexpr, FP8: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """One program per token and GROUP heads: the first programs of a token rotate q, the others write keys, values."""
    token, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    query_blocks = tl.cdiv(heads, GROUP)
    is_query = block < query_blocks
    slot = tl.load(slots + token).to(tl.int64)
    if not is_query and slot < 0:
        return
    pair = tl.arange(0, BLOCK)
    head = tl.where(is_query, block, block - query_blocks) * GROUP + tl.arange(0, GROUP)
    dims = pair < HALF
    inside = (head < tl.where(is_query, heads, kv_heads))[:, None] & dims[None, :]
    position = tl.load(positions + token).to(tl.int64)
    c = tl.load(cos + position * cos_row + pair * cos_column, mask=dims, other=0.0)[None, :]
    s = tl.load(sin + position * sin_row + pair * sin_column, mask=dims, other=0.0)[None, :]
    if is_query:
        source = q + token * q_token + (head * q_head)[:, None] + (pair * q_dim)[None, :]
        step, weight = HALF * q_dim, q_norm + pair
    else:
        source = k + token * k_token + (head * k_head)[:, None] + (pair * k_dim)[None, :]
        step, weight = HALF * k_dim, k_norm + pair
    low, high = tl.load(source, mask=inside, other=0.0), tl.load(source + step, mask=inside, other=0.0)
    dtype = low.dtype
    low, high = low.to(tl.float32), high.to(tl.float32)
    if NORMED:  # rounded where Hugging Face rounds
        mean = (tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / (2 * HALF)
        factor = (1.0 / tl.sqrt(mean + eps))[:, None]
        low_weight = tl.load(weight, mask=dims, other=0.0).to(tl.float32)[None, :]
        high_weight = tl.load(weight + HALF, mask=dims, other=0.0).to(tl.float32)[None, :]
        low = ((low * factor).to(dtype).to(tl.float32) * low_weight).to(dtype).to(tl.float32)
        high = ((high * factor).to(dtype).to(tl.float32) * high_weight).to(dtype).to(tl.float32)
    turned_low, turned_high = (low * c - high * s).to(dtype), (high * c + low * s).to(dtype)
    if is_query:
        target = out + (token * heads + head)[:, None] * (2 * HALF) + pair[None, :]
        tl.store(target, turned_low, mask=inside)
        tl.store(target + HALF, turned_high, mask=inside)
    else:
        kind: tl.constexpr = keys.dtype.element_ty
        place = keys + slot * keys_slot + (head * keys_head)[:, None] + (pair * keys_dim)[None, :]
        tl.store(place, _stored_as(turned_low, kind, FP8, WIDEN), mask=inside)
        tl.store(place + HALF * keys_dim, _stored_as(turned_high, kind, FP8, WIDEN), mask=inside)
        source = v + token * v_token + (head * v_head)[:, None] + (pair * v_dim)[None, :]
        place = values + slot * values_slot + (head * values_head)[:, None] + (pair * values_dim)[None, :]
        lower, upper = tl.load(source, mask=inside, other=0.0), tl.load(source + HALF * v_dim, mask=inside, other=0.0)
        tl.store(place, _stored_as(lower, kind, FP8, WIDEN), mask=inside)
        tl.store(place + HALF * values_dim, _stored_as(upper, kind, FP8, WIDEN), mask=inside)
