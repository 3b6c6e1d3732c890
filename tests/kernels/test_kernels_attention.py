"""The paged attention kernel equals its torch reference, and the reference torch's own attention, for any mix of decode
and chunked prefill, group and page size, whatever lies in unused pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional

from pagefleet_kernels.paged_attention import paged_attention, paged_attention_reference, paged_attention_triton

MIXED = ((1, 1328), (5, 18), (129, 463), (1, 1), (16, 16), (1, 64), (33, 97))


@dataclass(frozen=True)
class Case:
    q: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    tables: torch.Tensor
    starts: torch.Tensor
    kv_lens: torch.Tensor
    scale: float
    longest: int

    @property
    def arguments(self) -> tuple[object, ...]:
        return (
            self.q, self.keys, self.values, self.tables, self.starts, self.kv_lens, self.scale, self.longest,
        )  # fmt: skip


def case(lengths: tuple[tuple[int, int], ...], heads: int, kv_heads: int, dim: int, page: int, seed: int = 0) -> Case:
    """Random pages in random order; every slot that no sequence uses holds NaN, every unused table entry nonsense."""
    random = torch.Generator().manual_seed(seed)
    needed = [-(-kv // page) for _, kv in lengths]
    order = torch.randperm(sum(needed) + 3, generator=random).to(torch.int32)
    tables = torch.full((len(lengths), max(needed)), 2**30, dtype=torch.int32)
    shape = (len(order), page, kv_heads, dim)
    keys, values = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
    taken = 0
    for row, ((_, kv), pages) in enumerate(zip(lengths, needed, strict=True)):
        tables[row, :pages] = order[taken : taken + pages]
        taken += pages
        for cache in (keys, values):
            for index in range(pages):
                used = min(page, kv - index * page)
                cache[tables[row, index], :used] = torch.randn(used, kv_heads, dim, generator=random)
    starts = torch.tensor([0, *torch.tensor([q for q, _ in lengths]).cumsum(0).tolist()], dtype=torch.int32)
    q = torch.randn(int(starts[-1]), heads, dim, generator=random)
    kv_lens = torch.tensor([kv for _, kv in lengths], dtype=torch.int32)
    return Case(q, keys, values, tables, starts, kv_lens, dim**-0.5, max(q for q, _ in lengths))


@pytest.mark.parametrize(
    ("lengths", "heads", "kv_heads", "dim", "page"),
    [
        (MIXED, 9, 3, 64, 16),
        (MIXED[:4], 8, 2, 32, 32),
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
        seen = torch.ones(new, kv, dtype=torch.bool).tril(kv - new)
        expected = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
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


def test_bfloat16_is_computed_in_float32() -> None:
    made = case(((3, 40), (1, 25)), 4, 2, 32, 16)
    low = Case(
        made.q.bfloat16(), made.keys.bfloat16(), made.values.bfloat16(), *made.arguments[3:]  # type: ignore[arg-type]
    )  # fmt: skip
    expected = paged_attention_reference(*low.arguments)
    torch.testing.assert_close(paged_attention_triton(*low.arguments), expected, rtol=2e-2, atol=1e-2)


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
