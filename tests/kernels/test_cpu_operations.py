"""Protects the compiled CPU operations: they compute what torch computes, and a row's result is its own, bit by bit."""

from __future__ import annotations

import pytest
import torch
from support.engine.compiled_operations import coded, paged, random

from pagefleet_kernels.cpu import FINE_GROUP, GROUP, Attention, Batch, Coded, Draw, KVPages, native, reference

PLAIN = reference.Reference()


@pytest.mark.parametrize("rows", [*range(1, 14), 64, 97, 200])
@pytest.mark.parametrize(("n", "k"), [(96, 64), (33, 100), (1000, 576), (5, 16)])
def test_linear_is_the_product(compiled: native.Native, rows: int, n: int, k: int) -> None:
    x, weight, bias = random(rows, k, seed=1), random(n, k, seed=2), random(n, seed=3)
    for int8, group in ((False, GROUP), (True, GROUP), (True, FINE_GROUP)):
        product = compiled.linear(weight, bias, int8, group)(x)
        expected = PLAIN.linear(weight, bias, int8, group)(x)
        torch.testing.assert_close(product, expected, rtol=1e-5, atol=1e-5 * k)
    into = random(rows, n, seed=4)
    added = compiled.linear(weight, None, False)(x, into.clone())
    torch.testing.assert_close(added, into + x @ weight.t(), rtol=1e-5, atol=1e-5 * k)


def test_int8_stays_close_to_the_weights_it_stands_for(compiled: native.Native) -> None:
    x, weight = random(32, 576, seed=1), random(400, 576, seed=2)
    exact = x @ weight.t()
    coarse, fine = (
        (compiled.linear(weight, None, True, group)(x) - exact).norm() / exact.norm() for group in (GROUP, FINE_GROUP)
    )
    assert 0 < fine < coarse < 0.01


@pytest.mark.parametrize(("int8", "group"), [(False, GROUP), (True, GROUP), (True, FINE_GROUP)])
def test_a_row_does_not_depend_on_its_batch(compiled: native.Native, int8: bool, group: int) -> None:
    x, linear = random(150, 576, seed=1), compiled.linear(random(960, 576, seed=2), None, int8, group)
    whole = linear(x)
    for begin, end in ((0, 1), (3, 10), (97, 150), (140, 147)):
        assert torch.equal(linear(x[begin:end].contiguous()), whole[begin:end])


STORED = {
    "bfloat16": random(100, 191, seed=2).bfloat16(),
    "float16": random(100, 191, seed=2).half(),
    **{f"{bits} bits, {group}": coded(100, 192, bits, group) for bits in (4, 8) for group in (16, 32)},
}


@pytest.mark.parametrize("rows", [1, 7, 12, 13, 40, 193, 400])
@pytest.mark.parametrize("stored", STORED)
def test_weights_that_are_stored_small_give_float32s_bits(compiled: native.Native, stored: str, rows: int) -> None:
    weight, bias = STORED[stored], random(100, seed=4)
    floats = weight.floats() if isinstance(weight, Coded) else weight.float()
    x, into = random(rows, floats.shape[1], seed=5), random(rows, 100, seed=6)
    small, expected = compiled.linear(weight, bias, False), compiled.linear(floats, bias, False)
    assert torch.equal(small(x), expected(x))
    assert torch.equal(small(x, into.clone()), expected(x, into.clone()))
    assert torch.equal(PLAIN.linear(weight, bias, False)(x), PLAIN.linear(floats, bias, False)(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("group", [GROUP, FINE_GROUP])
@pytest.mark.parametrize("columns", [191, 192, 16, 5])
def test_int8_is_the_same_of_weights_that_are_stored_small(
    compiled: native.Native, dtype: torch.dtype, group: int, columns: int
) -> None:
    weight, x = random(100, columns, seed=2).to(dtype), random(7, columns, seed=5)
    assert torch.equal(
        compiled.linear(weight, None, True, group)(x), compiled.linear(weight.float(), None, True, group)(x)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("int8", [False, True])
def test_parts_below_one_another_are_one_weight(compiled: native.Native, dtype: torch.dtype, int8: bool) -> None:
    # A view with gaps between its rows, one whose columns lie apart, and one row.
    parts = [random(48, 130, seed=1)[:, :80], random(80, 33, seed=2).t(), random(1, 80, seed=3)]
    parts = [part.to(dtype) for part in parts]
    assert not parts[1].is_contiguous()
    x = random(5, 80, seed=4)
    for operations in (compiled, PLAIN):
        whole = operations.linear(torch.cat(parts), None, int8)
        assert torch.equal(operations.linear(parts, None, int8)(x), whole(x))


@pytest.mark.parametrize("rows", [1, 6, 12, 13, 97, 200])
@pytest.mark.parametrize("scale", [1.0, 1 + 2**-20], ids=["float16", "float32"])
def test_int8_multiplies_the_codes_of_four_bits_themselves(compiled: native.Native, rows: int, scale: float) -> None:
    halves, bias = coded(100, 192, 4, FINE_GROUP), random(100, seed=4)
    weight = Coded(halves.codes, halves.scales * scale, halves.offsets * scale, 4)
    assert weight.kept_by_int8
    x, into = random(rows, 192, seed=5), random(rows, 100, seed=6)
    values, scales = reference.quantise(x, FINE_GROUP)
    expected = (values * scales.unsqueeze(2)).view(rows, 192).double() @ weight.floats().double().t() + bias
    for operations in (compiled, PLAIN):
        linear = operations.linear(weight, bias, True)
        torch.testing.assert_close(linear(x).double(), expected, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(linear(x, into.clone()), linear(x) + into, rtol=1e-5, atol=1e-4)
    linear = compiled.linear(weight, bias, True)
    assert all(torch.equal(linear(x[row : row + 1]), linear(x)[row : row + 1]) for row in (0, rows // 2, rows - 1))


def test_int8_makes_its_own_weights_of_other_codes(compiled: native.Native) -> None:
    x = random(3, 192, seed=5)
    for bits, group in ((8, 32), (8, 16), (4, 16)):
        weight = coded(100, 192, bits, group)
        assert not weight.kept_by_int8
        assert torch.equal(compiled.linear(weight, None, True)(x), compiled.linear(weight.floats(), None, True)(x))


def test_a_matrix_of_codes_alone_is_not_copied() -> None:
    """An output matrix is the largest of a model: a second copy would be the most memory that its load ever takes."""
    alone = coded(64, 192, 4, 32)
    assert Coded.below([alone]) is alone


def test_codes_below_one_another_have_the_finest_groups_and_the_most_bits(compiled: native.Native) -> None:
    parts = [coded(48, 96, 4, 32), coded(20, 96, 8, 16), coded(7, 96, 4, 16)]
    joined = Coded.below(parts)
    assert (joined.bits, joined.group) == (8, 16)
    assert torch.equal(joined.floats(), torch.cat([part.floats() for part in parts]))


@pytest.mark.parametrize("rows", [1, 6, 20, 129, 300])
@pytest.mark.parametrize(("int8", "group"), [(False, GROUP), (True, GROUP), (True, FINE_GROUP)])
@pytest.mark.parametrize("inner", [96, 100, 8])
def test_an_mlp_has_the_bits_of_its_parts(
    compiled: native.Native, rows: int, int8: bool, group: int, inner: int
) -> None:
    x, norm = random(rows, 80, seed=1), (random(80, seed=2), 1e-5)
    first, second = random(2 * inner, 80, seed=3), random(80, inner, seed=4)
    bias = random(2 * inner, seed=5)
    gate_up, plain = (compiled.linear(first, bias, int8, group, gated) for gated in ("silu", ""))
    down = compiled.linear(second, None, int8, group)
    normed = compiled.rms_norm(x, *norm)
    assert torch.equal(gate_up(normed), plain(normed))
    assert torch.equal(gate_up(x, norm=norm), plain(normed))
    expected = down(compiled.gated(plain(normed), "silu"), into=x.clone())
    fused, close = x.clone(), x.clone()
    compiled.mlp(fused, norm, gate_up, down)
    assert torch.equal(fused, expected)
    if not int8:
        PLAIN.mlp(close, norm, PLAIN.linear(first, bias, False, gated="silu"), PLAIN.linear(second, None, False))
        torch.testing.assert_close(fused, close, rtol=1e-4, atol=1e-3)


def test_zero_and_huge_rows(compiled: native.Native) -> None:
    weight = random(64, 128, seed=2)
    assert torch.equal(compiled.linear(weight, None, True)(torch.zeros(3, 128)), torch.zeros(3, 64))
    x = torch.full((1, 128), 1e30)
    torch.testing.assert_close(
        compiled.linear(weight, None, True)(x), PLAIN.linear(weight, None, True)(x), rtol=1e-4, atol=1e26
    )


@pytest.mark.parametrize("size", [16, 64, 100, 576])
def test_rms_norm_and_silu(compiled: native.Native, size: int) -> None:
    x, weight = random(9, size, seed=1), random(size, seed=2)
    torch.testing.assert_close(compiled.rms_norm(x, weight, 1e-5), PLAIN.rms_norm(x, weight, 1e-5))
    wide = random(9, 2 * size, seed=3) * 30
    torch.testing.assert_close(compiled.gated(wide, "silu"), PLAIN.gated(wide, "silu"), rtol=2e-6, atol=1e-6)


LENGTHS = [
    [(1, 1)],
    [(1, 1328), (5, 18), (129, 463)],
    [(1, context) for context in (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 128, 200)],
    [(40, 40), (1, 7), (3, 64), (70, 300)],
    [(1, 8192), (33, 8225), (1, 4097)],
]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 2, 16), (9, 3, 64), (4, 4, 80), (16, 1, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("window", [0, 24, 70])
def test_attention_over_pages(
    compiled: native.Native,
    lengths: list[tuple[int, int]],
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    window: int,
) -> None:
    batch, count = paged(lengths, 32)
    filled = KVPages.zeros(count, kv_heads, 32, head_dim, dtype)
    # What lies beyond a sequence's context belongs to somebody else, and may be anything.
    filled.keys.fill_(float("nan"))
    filled.values.fill_(float("nan"))
    for row, context in enumerate(batch.context.tolist()):
        position = torch.arange(context)
        page, within = batch.table[row, position // 32].long(), position % 32
        keys, values = random(2, context, kv_heads, head_dim, seed=row).to(dtype)
        filled.keys[page, :, within // 16, :, within % 16] = keys
        filled.values[page, :, within] = values
    rows = int(batch.first[-1])
    qkv = random(rows, heads + 2 * kv_heads, head_dim, seed=5)
    attention = Attention(head_dim**-0.5, window)
    attended = compiled.attend(qkv, filled, batch, attention)
    torch.testing.assert_close(attended, PLAIN.attend(qkv, filled, batch, attention), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("normed", [False, True])
def test_rope_writes_what_attention_reads(compiled: native.Native, dtype: torch.dtype, normed: bool) -> None:
    batch, count = paged([(1, 33), (20, 20), (5, 300)], 16)
    tables = random(300, 16, seed=1).cos(), random(300, 16, seed=1).sin()
    norms = (random(32, seed=2), random(32, seed=3), 1e-6) if normed else None
    qkv, results = random(26, 6 + 4, 32, seed=4), []
    for operations in (compiled, PLAIN):
        own, pages = qkv.clone(), KVPages.zeros(count, 2, 16, 32, dtype)
        operations.rope_write(own, tables, norms, pages, batch)
        results.append((own, pages.keys.float(), pages.values.float()))
    for rotated, expected in zip(*results, strict=True):
        torch.testing.assert_close(rotated, expected, rtol=1e-3 if dtype is torch.float16 else 1e-5, atol=1e-5)


def test_attention_of_a_row_does_not_depend_on_its_batch(compiled: native.Native) -> None:
    batch, count = paged([(30, 90), (1, 50), (17, 17)], 16)
    pages = KVPages(random(count, 3, 1, 64, 16, seed=1).contiguous(), random(count, 3, 16, 64, seed=2).contiguous())
    qkv, attention = random(48, 15, 64, seed=3), Attention(0.125)
    whole = compiled.attend(qkv, pages, batch, attention)
    for row, position in ((0, 60), (17, 77), (29, 89)):
        alone = Batch(
            batch.positions[:1], batch.slots[:1], torch.tensor([0, 1], dtype=torch.int32),
            torch.tensor([position + 1], dtype=torch.int32), batch.table[:1].contiguous(), batch.sampled,
        )  # fmt: skip
        assert torch.equal(compiled.attend(qkv[row : row + 1].contiguous(), pages, alone, attention)[0], whole[row])


@pytest.mark.parametrize(
    "cuts",
    [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 40, "top_p": 0.7, "min_p": 0.02}, {"top_p": 0.999}],
)
@pytest.mark.parametrize("vocab", [7, 1000, 49152])
def test_sampling_draws_what_torch_draws(compiled: native.Native, cuts: dict[str, float], vocab: int) -> None:
    logits = random(8, vocab, seed=1) * 3
    logits[3, 1:] = float("-inf")
    draws = [Draw(row % 8, (row * 0.61803) % 1.0, 0.2 + row % 5 * 0.4, **cuts) for row in range(64)]
    drawn, expected = compiled.sample(logits, draws), PLAIN.sample(logits, draws)
    assert sum(a != b for a, b in zip(drawn, expected, strict=True)) <= 1  # a sum may round across a boundary
    assert all(token == 0 for token, draw in zip(drawn, draws, strict=True) if draw.row == 3)


def test_sampling_follows_the_distribution(compiled: native.Native) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -50.0]])
    count = 20000
    tokens = compiled.sample(logits, [Draw(0, (index + 0.5) / count, 1.0) for index in range(count)])
    shares = torch.bincount(torch.tensor(tokens), minlength=4) / count
    torch.testing.assert_close(shares, logits[0].softmax(0), atol=2e-4, rtol=0)
