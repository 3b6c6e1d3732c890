"""The paged attention kernel equals its torch reference, and the reference torch's own attention, for any mix of decode
and chunked prefill, group and page size, whatever lies in unused pages.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.engine.kernels_attention_case import MIXED, SCALED, Case, case
from torch.nn import functional

from pagefleet_kernels.attention.paged_attention import (
    paged_attention,
    paged_attention_reference,
    paged_attention_triton,
)


@pytest.mark.parametrize(
    ("lengths", "heads", "kv_heads", "dim", "page"),
    [
        (MIXED, 3, 1, 64, 16),
        (SCALED, 8, 2, 32, 32),
        (((1, 5), (1, 200), (1, 17), (1, 64)), 9, 3, 64, 16),  # decode alone
        (((1, 70), (40, 40)), 4, 4, 80, 16),  # no group; a head size that is no power of two
        (((7, 90), (1, 33)), 32, 1, 16, 8),  # one KV head; pages smaller than a tile's part
        (((0, 20), (3, 50), (0, 1), (1, 9)), 6, 2, 32, 128),  # sequences without new tokens
    ],
)
def test_the_kernel_equals_its_reference(
    lengths: tuple[tuple[int, int], ...], heads: int, kv_heads: int, dim: int, page: int
) -> None:
    made = case(lengths, heads, kv_heads, dim, page)
    expected = paged_attention_reference(*made.arguments)
    assert torch.isfinite(expected).all()
    torch.testing.assert_close(paged_attention_triton(*made.arguments), expected, rtol=1e-4, atol=1e-5)


def test_the_reference_equals_torchs_attention() -> None:
    made = case(MIXED, 9, 3, 64, 16)
    answered = paged_attention(*made.arguments)
    for row, (new, kv) in enumerate(MIXED):
        begin = int(made.starts[row])
        pages = made.tables[row, : -(-kv // 16)].long()
        k = made.keys[pages].flatten(0, 1)[:kv].transpose(0, 1)[None]
        v = made.values[pages].flatten(0, 1)[:kv].transpose(0, 1)[None]
        q = made.q[begin : begin + new].transpose(0, 1)[None]
        mask = torch.ones(new, kv, dtype=torch.bool).tril(kv - new)
        expected = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        torch.testing.assert_close(answered[begin : begin + new], expected[0].transpose(0, 1), rtol=1e-4, atol=1e-5)


def test_strided_queries_caches_and_tables_are_read_as_they_lie() -> None:
    made = case(((5, 30), (1, 47)), 6, 2, 32, 16)
    merged = torch.randn(made.q.shape[0], 10, 64)
    q = merged[:, 2:8, ::2]
    q.copy_(made.q)
    both = torch.stack((made.keys, made.values), dim=3)
    tables = made.tables.t().contiguous().t()
    strided = Case(q, both[:, :, :, 0], both[:, :, :, 1], tables, made.starts, made.kv_lens, made.scale, made.longest)
    assert not strided.q.is_contiguous() and not strided.keys.is_contiguous() and not tables.is_contiguous()
    expected = paged_attention_reference(*made.arguments)
    torch.testing.assert_close(paged_attention_triton(*strided.arguments), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_computed_in_float32(dtype: torch.dtype) -> None:
    made = case(((3, 40), (1, 25)), 4, 2, 32, 16)
    low = (made.q.to(dtype), made.keys.to(dtype), made.values.to(dtype), *made.arguments[3:])
    expected = paged_attention_reference(*low)
    torch.testing.assert_close(paged_attention_triton(*low), expected, rtol=1.5e-2, atol=1.5e-2)


def test_a_chunked_prefill_equals_a_whole_one() -> None:
    whole = case(((96, 96),), 6, 2, 32, 16)
    expected = paged_attention_triton(*whole.arguments)
    pieces = []
    for begin, end in ((0, 33), (33, 34), (34, 96)):
        starts = torch.tensor([0, end - begin], dtype=torch.int32)
        kv_lens = torch.tensor([end], dtype=torch.int32)
        pieces.append(
            paged_attention_triton(
                whole.q[begin:end], whole.keys, whole.values, whole.tables, starts, kv_lens, whole.scale, end - begin
            )
        )
    torch.testing.assert_close(torch.cat(pieces), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("options", [{}, {"window": 20}, {"window": 1}, {"cap": 1.5}, {"sinks": (2.0, -1.0, 4.0)}])
def test_windows_caps_sinks_and_splits(splits: int, options: dict[str, Any]) -> None:
    made = case(SCALED, 3, 1, 32, 16)
    if "sinks" in options:
        options = {"sinks": torch.tensor(options["sinks"])}
    expected = paged_attention_reference(*made.arguments, **options)
    answered = paged_attention_triton(*made.arguments, **options, splits=splits)
    torch.testing.assert_close(answered, expected, rtol=1e-4, atol=1e-5)
    assert options == {} or not torch.allclose(expected, paged_attention_reference(*made.arguments), atol=1e-2)


@pytest.mark.parametrize(("dim", "page"), [(64, 128), (80, 64), (96, 256), (128, 16), (256, 32)])
def test_head_and_page_sizes(dim: int, page: int) -> None:
    made = case(((3, 150), (1, 40), (1, 300)), 4, 2, dim, page)
    expected = paged_attention_reference(*made.arguments)
    for splits in (1, 3):
        answered = paged_attention_triton(*made.arguments, splits=splits)
        torch.testing.assert_close(answered, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("splits", [1, 4])
def test_a_padding_sequence_has_no_tokens_and_gives_zeros(splits: int) -> None:
    """A captured decode graph pads its batch with sequences of one new token and length 0; every split is empty."""
    made = case(((1, 70), (1, 1), (1, 33)), 6, 2, 32, 16)
    made.kv_lens[1] = 0
    expected = paged_attention_reference(*made.arguments)
    answered = paged_attention_triton(*made.arguments, splits=splits)
    torch.testing.assert_close(answered, expected, rtol=1e-4, atol=1e-5)
    assert not answered[1].any()


def test_every_output_and_partial_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **rest: real(*shape, **rest).fill_(torch.nan))
    made = case(((1, 70), (4, 9), (1, 33)), 6, 2, 80, 16)
    for splits in (1, 9):  # nine: more than the tiles, so that some are empty
        assert paged_attention_triton(*made.arguments, splits=splits).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_fp8_caches(dtype: torch.dtype) -> None:
    made = case(((1, 90), (5, 18)), 6, 2, 32, 16)
    caches = [cache.to(torch.float8_e4m3fn) for cache in (made.keys, made.values)]
    low = (made.q.to(dtype), *caches, *made.arguments[3:])
    expected = paged_attention_reference(*low)
    exact = paged_attention_reference(*made.arguments)
    tolerance = 1e-4 if dtype is torch.float32 else 1.5e-2
    for splits in (1, 2):
        answered = paged_attention_triton(*low, splits=splits)
        torch.testing.assert_close(answered, expected, rtol=tolerance, atol=tolerance)
    assert (expected.float() - exact).abs().mean() < 0.05  # three bits of mantissa


def test_more_pages_than_an_int16_can_name() -> None:
    """One table of 33,000 columns, and page ids beyond 32,768 in a pool that is mostly unused (NaN)."""
    long = case(((1, 33_000),), 2, 1, 16, 1)
    torch.testing.assert_close(
        paged_attention_triton(*long.arguments, splits=2),
        paged_attention_reference(*long.arguments),
        rtol=1e-4,
        atol=1e-5,
    )
    wide = case(((1, 300), (4, 80), (1, 1)), 2, 1, 16, 4, spare=40_000)
    assert wide.tables[wide.tables < 2**30].max() > 32_768
    expected = paged_attention_reference(*wide.arguments)
    torch.testing.assert_close(paged_attention_triton(*wide.arguments), expected, rtol=1e-4, atol=1e-5)
