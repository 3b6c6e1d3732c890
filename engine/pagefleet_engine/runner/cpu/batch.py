"""Turns scheduled work into the tensors of one forward pass: tokens, positions, slots, page tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import torch

from pagefleet_engine.core.work import Work
from pagefleet_kernels.cpu import Batch


def lay_out(work_items: Sequence[Work], page_size: int) -> tuple[torch.Tensor, Batch]:
    """Return the tokens [n] int64 of `work_items` in their order, and the batch that they form.

    `sampled` are the last rows of each work item that samples: one, and one more for each draft token.
    """
    tokens: list[int] = []
    sampled: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    first, context = [0], []
    table = numpy.zeros((len(work_items), max(len(work.sequence.pages) for work in work_items)), dtype=numpy.int32)
    for index, work in enumerate(work_items):
        pages, own = work.sequence.pages, range(work.start, work.start + work.count)
        tokens += work.tokens
        positions += own
        slots += [pages[position // page_size] * page_size + position % page_size for position in own]
        first.append(len(positions))
        context.append(own.stop)
        table[index, : len(pages)] = pages
        if work.samples:
            sampled += range(len(positions) - 1 - work.drafts, len(positions))
    batch = Batch(
        positions=_int32(positions),
        slots=_int32(slots),
        first=_int32(first),
        context=_int32(context),
        table=torch.from_numpy(table),
        sampled=torch.tensor(sampled, dtype=torch.long),
    )
    return torch.tensor(tokens, dtype=torch.long), batch


def _int32(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)
