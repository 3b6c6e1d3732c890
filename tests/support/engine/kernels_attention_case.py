"""Cases of paged attention: random pages in random order, NaN wherever nothing may be read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

MIXED = ((1, 1328), (5, 18), (129, 463), (1, 1), (16, 16), (1, 64), (33, 97))
SCALED = ((1, 332), (5, 18), (33, 117), (1, 1))  # the same kinds, for a loaded machine


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


def case(
    lengths: tuple[tuple[int, int], ...], heads: int, kv_heads: int, dim: int, page: int, spare: int = 3, seed: int = 0
) -> Case:
    """Make a case. Every unused slot holds NaN, every unused table entry an invalid page; `spare` pages are unused."""
    random = torch.Generator(torch.get_default_device()).manual_seed(seed)
    needed = [-(-kv // page) for _, kv in lengths]
    order = torch.randperm(sum(needed) + spare, generator=random).to(torch.int32)
    tables = torch.full((len(lengths), max(needed)), 2**30, dtype=torch.int32)
    shape = (len(order), page, kv_heads, dim)
    keys, values = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
    taken = 0
    for row, ((_, kv), pages) in enumerate(zip(lengths, needed, strict=True)):
        tables[row, :pages] = order[taken : taken + pages]
        taken += pages
        at = torch.arange(kv)
        for cache in (keys, values):
            cache[tables[row, at // page].long(), at % page] = torch.randn(kv, kv_heads, dim, generator=random)
    starts = torch.tensor([0, *torch.tensor([q for q, _ in lengths]).cumsum(0).tolist()], dtype=torch.int32)
    q = torch.randn(int(starts[-1]), heads, dim, generator=random)
    kv_lens = torch.tensor([kv for _, kv in lengths], dtype=torch.int32)
    return Case(q, keys, values, tables, starts, kv_lens, dim**-0.5, max(q for q, _ in lengths))
