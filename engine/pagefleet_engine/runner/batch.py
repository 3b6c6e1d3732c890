"""Lays a step's work out as tensors: tokens, positions, slots; decodes first, then chunks."""

from __future__ import annotations

import torch

from pagefleet_engine.core.scheduler import Work
from pagefleet_engine.model.attention import Batch, Chunk


def lay_out(works: list[Work], page_size: int) -> tuple[list[Work], torch.Tensor, Batch]:
    """The works in row order, their tokens [n] int64, and the batch."""
    decodes = [work for work in works if work.count == 1]
    chunks = [work for work in works if work.count > 1]
    ordered = decodes + chunks
    tokens: list[int] = []
    positions: list[int] = []
    sampled: list[int] = []
    slots: list[torch.Tensor] = []
    laid: list[Chunk] = []
    contexts = [context_slots(work, page_size) for work in ordered]
    for work, context in zip(ordered, contexts, strict=True):
        begin, end = work.start, work.start + work.count
        row = len(tokens)
        tokens += work.sequence.tokens[begin:end]
        positions += range(begin, end)
        slots.append(context[begin:])
        if work.samples:
            sampled.append(len(tokens) - 1)
        if work.count > 1:
            laid.append(Chunk(row, len(tokens), context))
    padded = (
        torch.nn.utils.rnn.pad_sequence(contexts[: len(decodes)], batch_first=True) if decodes else torch.zeros(0, 0)
    )
    lengths = torch.tensor([len(context) for context in contexts[: len(decodes)]])
    mask = torch.arange(padded.shape[1]).unsqueeze(0) < lengths.unsqueeze(1)
    batch = Batch(
        positions=torch.tensor(positions),
        slots=torch.cat(slots),
        sampled=torch.tensor(sampled, dtype=torch.long),
        decodes=len(decodes),
        decode_slots=padded.long(),
        decode_mask=mask.view(len(decodes), 1, 1, padded.shape[1]),
        chunks=tuple(laid),
    )
    return ordered, torch.tensor(tokens), batch


def context_slots(work: Work, page_size: int) -> torch.Tensor:
    """Slots of positions 0 .. start+count-1: page * page_size + offset, int64."""
    pages = torch.tensor(work.sequence.pages)
    grid = pages.unsqueeze(1) * page_size + torch.arange(page_size).unsqueeze(0)
    return grid.view(-1)[: work.start + work.count]
