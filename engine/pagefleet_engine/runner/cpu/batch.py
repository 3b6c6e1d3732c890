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
    counts = [work.count for work in work_items]
    first = numpy.zeros(len(work_items) + 1, dtype=numpy.int32)
    numpy.cumsum(counts, out=first[1:])
    positions = numpy.empty(first[-1], dtype=numpy.int32)
    slots = numpy.empty(first[-1], dtype=numpy.int32)
    table = numpy.zeros((len(work_items), max(len(work.sequence.pages) for work in work_items)), dtype=numpy.int32)
    for index, work in enumerate(work_items):
        begin, end = first[index], first[index + 1]
        tokens += work.tokens
        pages = table[index, : len(work.sequence.pages)]
        pages[:] = work.sequence.pages
        own = numpy.arange(work.start, work.start + work.count, dtype=numpy.int32)
        positions[begin:end] = own
        slots[begin:end] = pages[own // page_size] * page_size + own % page_size
        if work.samples:
            sampled += range(end - 1 - work.drafts, end)
    batch = Batch(
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        first=torch.from_numpy(first),
        context=torch.tensor([work.start + work.count for work in work_items], dtype=torch.int32),
        table=torch.from_numpy(table),
        sampled=torch.tensor(sampled, dtype=torch.long),
    )
    return torch.tensor(tokens, dtype=torch.long), batch
