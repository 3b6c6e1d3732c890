"""Protects what some model families need of the compiled CPU operations: other activations, bounded scores, attention sinks,
and mixtures of experts. They compute what torch computes, and a row's result is its own, bit by bit."""

from __future__ import annotations

import pytest
import torch
from support.engine.compiled_operations import random

from pagefleet_kernels.cpu import ACTIVATIONS, Attention, Batch, KVPages, native, reference

PLAIN = reference.Reference()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("inner", [8, 100, 576])
def test_activations_are_those_of_torch(compiled: native.Native, activation: str, inner: int) -> None:
    wide = random(9, 2 * inner, seed=3) * 12
    found = compiled.gated(wide, activation)
    torch.testing.assert_close(found, PLAIN.gated(wide.double(), activation).float(), rtol=1e-5, atol=1e-5)
    first, second = random(2 * inner, 80, seed=3), random(80, inner, seed=4)
    gate_up, plain = (compiled.linear(first, None, False, gated=gated) for gated in (activation, ""))
    down, x = compiled.linear(second, None, False), random(20, 80, seed=1)
    assert torch.equal(compiled.mlp(x, None, gate_up, down, add=False), down(compiled.gated(plain(x), activation)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("window", [0, 24])
@pytest.mark.parametrize(("cap", "sinks"), [(5.0, False), (0.0, True), (3.0, True)])
def test_bounded_scores_and_sinks(
    compiled: native.Native, dtype: torch.dtype, window: int, cap: float, sinks: bool
) -> None:
    lengths, heads, kv_heads, head_dim = [(1, 70), (30, 90), (5, 5)], 6, 2, 32
    first = torch.tensor([0, 1, 31, 36], dtype=torch.int32)
    table = torch.arange(18, dtype=torch.int32).view(3, 6)
    context = torch.tensor([context for _, context in lengths], dtype=torch.int32)
    empty = torch.zeros(0, dtype=torch.int32)
    batch = Batch(empty, empty, first, context, table, torch.zeros(0, dtype=torch.int64))
    pages = KVPages(
        random(18, kv_heads, 1, head_dim, 16, seed=1).to(dtype), random(18, kv_heads, 16, head_dim, seed=2).to(dtype)
    )
    qkv = random(36, heads + 2 * kv_heads, head_dim, seed=3) * 4
    attention = Attention(0.3, window, cap, random(heads, seed=4) * 3 if sinks else None)
    attended = compiled.attend(qkv, pages, batch, attention)
    torch.testing.assert_close(attended, PLAIN.attend(qkv, pages, batch, attention), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(attended, compiled.attend(qkv, pages, batch, Attention(0.3, window)), atol=1e-2)


@pytest.mark.parametrize("rows", [1, 7, 150])
@pytest.mark.parametrize("int8", [False, True])
def test_a_row_s_experts_are_added_as_if_it_were_alone(compiled: native.Native, rows: int, int8: bool) -> None:
    hidden, inner, experts, top = 80, 48, 5, 2
    products = {}
    for operations in (compiled, PLAIN):
        gate_up = [
            operations.linear(random(2 * inner, hidden, seed=one), random(2 * inner, seed=one), int8, gated="silu")
            for one in range(experts)
        ]
        down = [
            operations.linear(random(hidden, inner, seed=10 + one), random(hidden, seed=one), int8)
            for one in range(experts)
        ]
        products[operations.name] = operations.experts(gate_up, down)
    x = random(rows, hidden, seed=20)
    weights, chosen = random(rows, experts, seed=21).softmax(dim=-1).topk(top)
    chosen = chosen.int()
    found = products["native"](x, chosen, weights)
    torch.testing.assert_close(found, products["reference"](x, chosen, weights), rtol=1e-4, atol=2e-3 if int8 else 1e-4)
    for row in range(0, rows, 29):
        alone = products["native"](x[row : row + 1], chosen[row : row + 1], weights[row : row + 1].contiguous())
        assert torch.equal(alone[0], found[row])
