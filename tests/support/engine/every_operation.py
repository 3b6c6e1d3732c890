"""Every compiled operation on small random inputs, to compare libraries with one another."""

from __future__ import annotations

from dataclasses import replace

import torch
from support.engine.compiled_operations import coded, paged, random

from pagefleet_kernels.cpu import ACTIVATIONS, FINE_GROUP, GROUP, Attention, Coded, DenseLayer, Draw, KVPages, native

ROWS = (1, 3, 4, 6, 7, 13)
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER = 6, 2, 32, 96, 64


def results(ops: native.Native) -> dict[str, torch.Tensor]:
    """Return each operation's result by a name that says what it is."""
    return products(ops) | mlps(ops) | attention(ops) | layers(ops) | rows_alone(ops)


def products(ops: native.Native) -> dict[str, torch.Tensor]:
    found = {}
    small = {
        "bfloat16": random(70, 191, seed=2).bfloat16(),
        "float16": random(70, 191, seed=2).half(),
        "4 bits": coded(70, 192, 4, 32),
        "8 bits": coded(70, 192, 8, 16),
    }
    for rows in ROWS:
        for int8, group in ((False, GROUP), (True, GROUP), (True, FINE_GROUP)):
            x, norm = random(rows, 100, seed=rows), (random(100, seed=1), 1e-5)
            linear = ops.linear(random(70, 100, seed=2), random(70, seed=3), int8, group)
            found[f"product of {rows} rows, int8 {int8}, groups of {group}"] = linear(x, norm=norm)
        for stored, weight in small.items():
            x = random(rows, 191 if stored.endswith("float16") else 192, seed=rows)
            found[f"product of {rows} rows, {stored}"] = ops.linear(weight, None, False)(x, random(rows, 70, seed=4))
        x, weight = random(rows, 192, seed=rows), coded(70, 192, 4, FINE_GROUP)
        found[f"product of {rows} rows, int8 with codes"] = ops.linear(weight, random(70, seed=3), True)(x)
    return found


def mlps(ops: native.Native) -> dict[str, torch.Tensor]:
    found = {}
    for int8 in (False, True):
        for activation in ACTIVATIONS:
            gate_up = ops.linear(random(96, 80, seed=1), random(96, seed=2), int8, gated=activation)
            down = ops.linear(random(80, 48, seed=3), None, int8)
            found[f"{activation} MLP, int8 {int8}"] = ops.mlp(random(7, 80), (random(80, seed=4), 1e-5), gate_up, down)
        first = [ops.linear(random(96, 80, seed=one), None, int8, gated="silu") for one in range(3)]
        second = [ops.linear(random(80, 48, seed=one), None, int8) for one in range(3)]
        chosen = torch.tensor([[0, 1], [1, 2], [0, 2], [1, 0]], dtype=torch.int32)
        found[f"experts, int8 {int8}"] = ops.experts(first, second)(random(4, 80), chosen, random(4, 2, seed=5))
    return found


def rotation() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor, float]]:
    """The cosines and sines of 90 positions, and the norms of each query's and each key's head."""
    angles = random(90, HEAD_DIM // 2, seed=1)
    return (angles.cos(), angles.sin()), (random(HEAD_DIM, seed=2), random(HEAD_DIM, seed=3), 1e-6)


def filled(count: int, dtype: torch.dtype, seed: int) -> KVPages:
    """Pages full of other sequences' keys and values."""
    keys, values = (
        random(count, KV_HEADS, 1, HEAD_DIM, 16, seed=seed),
        random(count, KV_HEADS, 16, HEAD_DIM, seed=seed + 1),
    )
    return KVPages(keys.to(dtype), values.to(dtype))


def attention(ops: native.Native) -> dict[str, torch.Tensor]:
    """Keys and values are written to the pages, then attended to."""
    found = {}
    batch, count = paged([(1, 70), (9, 90), (5, 5)], 16)
    tables, norms = rotation()
    for dtype in (torch.float32, torch.float16):
        for window, cap, sinks in ((0, 0.0, False), (24, 0.0, True), (0, 5.0, False)):
            pages, qkv = filled(count, dtype, seed=4), random(15, HEADS + 2 * KV_HEADS, HEAD_DIM, seed=6)
            ops.rope_write(qkv, tables, norms if window else None, pages, batch)
            name = f"{dtype}, window {window}, cap {cap}, sinks {sinks}"
            found[f"positions, {name}"] = qkv
            found[f"keys, {name}"], found[f"values, {name}"] = pages.keys, pages.values
            settings = Attention(HEAD_DIM**-0.5, window, cap, random(HEADS, seed=7) if sinks else None)
            found[f"attention, {name}"] = ops.attend(qkv, pages, batch, settings)
    return found


def dense_layers(ops: native.Native, kind: str) -> list[DenseLayer]:
    """Two layers with a bias, head norms and a window here and there. `kind`: float32, int8 or codes."""

    def product(n: int, k: int, seed: int, bias: bool = False, gated: str = "") -> native.NativeLinear:
        weight: torch.Tensor | Coded = random(n, k, seed=seed) * k**-0.5
        if kind == "codes":
            codes = coded(n, k, 4, FINE_GROUP)
            weight = replace(codes, scales=codes.scales * 0.02, offsets=codes.offsets * 0.02)
        return ops.linear(weight, random(n, seed=seed) if bias else None, kind != "float32", gated=gated)

    tables, norms = rotation()
    return [
        DenseLayer(
            tables,
            None if one else (random(HIDDEN, seed=8), 1e-5),
            product((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN, 10 + one, bias=bool(one)),
            norms if one else None,
            Attention(HEAD_DIM**-0.5, 24 * one, 0.0, random(HEADS, seed=7) if one else None),
            product(HIDDEN, HEADS * HEAD_DIM, 20 + one),
            (random(HIDDEN, seed=9), 1e-6),
            product(2 * INNER, HIDDEN, 30 + one, gated=("silu", "gelu_tanh")[one]),
            product(HIDDEN, INNER, 40 + one),
        )
        for one in range(2)
    ]


def layer_pages(count: int, dtype: torch.dtype) -> list[KVPages]:
    """The pages of two layers."""
    return [filled(count, dtype, seed=50 + 2 * one) for one in range(2)]


def layers(ops: native.Native) -> dict[str, torch.Tensor]:
    found = {}
    batch, count = paged([(1, 70), (9, 90), (5, 5)], 16)
    for kind in ("float32", "int8", "codes"):
        for dtype in (torch.float32, torch.float16):
            pages, x = layer_pages(count, dtype), random(15, HIDDEN, seed=6)
            ops.layers(dense_layers(ops, kind))(x, pages, batch)
            found[f"layers, {kind}, {dtype}"] = x
            found[f"last keys, {kind}, {dtype}"] = pages[-1].keys
    return found


def rows_alone(ops: native.Native) -> dict[str, torch.Tensor]:
    found = {"norm": ops.rms_norm(random(5, 100), random(100, seed=1), 1e-5)}
    for activation in ACTIVATIONS:
        found[activation] = ops.gated(random(5, 200) * 30, activation)
    logits = random(6, 1000, seed=2) * 3
    logits[4, 7], logits[5, 9] = float("nan"), float("inf")
    for temperature in (0.0, 0.7):
        for cuts in ({}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.05}):
            draws = [Draw(row % 6, row * 0.618 % 1.0, temperature, **cuts) for row in range(24)]  # type: ignore[arg-type]
            found[f"draws at {temperature} with {cuts}"] = torch.tensor(ops.sample(logits, draws))
    return found
