"""Rotary position embedding (Su et al., 2021) of queries and keys, and the write of keys and values to their KV pages.

Floor: q is read and written, k and v are read once and written once into their slots, so
n * head_dim * itemsize * (2 * heads + 4 * kv_heads) bytes, plus n * head_dim of the tables; 3 flops an element of q
and k. One launch takes the place of four: the rotated keys never exist outside their pages.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import torch

from pagefleet_kernels.language import jit, power_of_two, runs_on, tl


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
) -> torch.Tensor:
    """Rotated q [n, heads, head_dim]; `keys` and `values` [slots, kv_heads, head_dim] are written at `slots` [n].

    q [n, heads, head_dim]; k and v [n, kv_heads, head_dim]; cos and sin [positions, head_dim / 2] float32, halves as
    Hugging Face lays them out; positions and slots [n] integers. A token whose slot is negative is not written: it
    pads the batch.
    """
    run = rope_write_triton if runs_on(q) else rope_write_reference
    return run(q, k, v, cos, sin, positions, slots, keys, values)


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
) -> torch.Tensor:
    c, s = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    real = slots >= 0
    keys[slots[real].long()] = _rotated(k, c, s)[real]
    values[slots[real].long()] = v[real]
    return _rotated(q, c, s)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


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
) -> torch.Tensor:
    tokens, heads, head_dim = q.shape
    kv_heads, half = k.shape[1], head_dim // 2
    out = torch.empty(tokens, heads, head_dim, dtype=q.dtype, device=q.device)
    if tokens:
        tensors = (q, k, v, cos, sin, keys, values)
        strides = [stride for tensor in tensors for stride in tensor.stride()]
        block = power_of_two(half)
        _kernel[(tokens, heads + kv_heads)](*tensors, positions, slots, out, *strides, heads, half, BLOCK=block)
    return out


@jit
def _kernel(
    q, k, v, cos, sin, keys, values, positions, slots, out,
    q_token, q_head, q_dim, k_token, k_head, k_dim, v_token, v_head, v_dim, cos_row, cos_column, sin_row, sin_column,
    keys_slot, keys_head, keys_dim, values_slot, values_head, values_dim, heads, half, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per token and head: the first `heads` rotate q, the others write a key and its value."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pair = tl.arange(0, BLOCK)
    inside = pair < half
    position = tl.load(positions + token).to(tl.int64)
    c = tl.load(cos + position * cos_row + pair * cos_column, mask=inside, other=0.0)
    s = tl.load(sin + position * sin_row + pair * sin_column, mask=inside, other=0.0)
    if head < heads:
        source = q + token * q_token + head * q_head
        low = tl.load(source + pair * q_dim, mask=inside, other=0.0)
        high = tl.load(source + (pair + half) * q_dim, mask=inside, other=0.0)
        target = out + (token * heads + head) * 2 * half
        tl.store(target + pair, (low * c - high * s).to(low.dtype), mask=inside)
        tl.store(target + pair + half, (high * c + low * s).to(low.dtype), mask=inside)
    else:
        slot = tl.load(slots + token).to(tl.int64)
        if slot >= 0:
            kv_head = head - heads
            source = k + token * k_token + kv_head * k_head
            low = tl.load(source + pair * k_dim, mask=inside, other=0.0)
            high = tl.load(source + (pair + half) * k_dim, mask=inside, other=0.0)
            target = keys + slot * keys_slot + kv_head * keys_head
            tl.store(target + pair * keys_dim, (low * c - high * s).to(low.dtype), mask=inside)
            tl.store(target + (pair + half) * keys_dim, (high * c + low * s).to(low.dtype), mask=inside)
            source = v + token * v_token + kv_head * v_head
            target = values + slot * values_slot + kv_head * values_head
            lower = tl.load(source + pair * v_dim, mask=inside, other=0.0)
            upper = tl.load(source + (pair + half) * v_dim, mask=inside, other=0.0)
            tl.store(target + pair * values_dim, lower, mask=inside)
            tl.store(target + (pair + half) * values_dim, upper, mask=inside)
