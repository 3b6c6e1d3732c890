"""Random tensors, weights and pages, and the tests' parameters that need compiled CPU operations, for which a CPU can lack the instructions."""

from __future__ import annotations

import pytest
import torch

from pagefleet_kernels.compile import here
from pagefleet_kernels.cpu import Batch, Coded, library


def _needs(why: str | None, untested: str) -> pytest.MarkDecorator:
    """Return the mark that skips where the CPU lacks instructions. A library that is not built is no reason: tests fail."""
    return pytest.mark.skipif(
        "lacks" in (why or ""), reason=f"{why}: untested are the compiled CPU operations {untested}"
    )


NEEDS_COMPILED = _needs(library.missing(), "and the engine with them; torch's own run beside them")
# One parameter for each instruction set of this machine's architecture.
EACH_INSTRUCTIONS = [
    pytest.param(one.name, marks=_needs(library.lacking(one), f"for {one.name}; those for others run"))
    for one in here()
]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def coded(n: int, k: int, bits: int, group: int) -> Coded:
    codes = torch.randint(0, 2**bits, (n, k), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    scales, offsets = (random(n, k // group, seed=seed).half().float() for seed in (2, 3))
    return Coded(codes, scales, offsets, bits)


def paged(lengths: list[tuple[int, int]], page_size: int, seed: int = 0) -> tuple[Batch, int]:
    """A batch of (new tokens, context with them), its pages scattered over a pool, and the pool's size."""
    needed = [-(-context // page_size) for _, context in lengths]
    pages = sum(needed) + 3
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(seed)).tolist()
    table = torch.zeros(len(lengths), max(needed), dtype=torch.int32)
    positions, slots, first = [], [], [0]
    for row, ((count, context), size) in enumerate(zip(lengths, needed, strict=True)):
        own = [order.pop() for _ in range(size)]
        table[row, :size] = torch.tensor(own, dtype=torch.int32)
        for position in range(context - count, context):
            positions.append(position)
            slots.append(own[position // page_size] * page_size + position % page_size)
        first.append(first[-1] + count)
    integers = [torch.tensor(values, dtype=torch.int32) for values in (positions, slots, first)]
    context = torch.tensor([context for _, context in lengths], dtype=torch.int32)
    return Batch(*integers, context, table, torch.zeros(0, dtype=torch.int64)), pages
