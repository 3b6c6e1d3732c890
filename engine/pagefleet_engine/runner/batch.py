"""Turns scheduled work into the tensors of one forward pass: tokens, positions, slots; decodes first, then chunks."""

from __future__ import annotations

import torch

from pagefleet_engine.core.scheduler import Work
from pagefleet_engine.model.attention import Batch, Chunk


def order(works: list[Work]) -> list[Work]:
    """Single tokens first: they run as one padded product."""
    return sorted(works, key=lambda work: work.count > 1)


def lay_out(ordered: list[Work], page_size: int) -> tuple[torch.Tensor, Batch]:
    """The tokens [n] int64 of works in `order`, and the batch they form."""
    tokens: list[int] = []
    positions: list[int] = []
    sampled: list[int] = []
    chunks: list[Chunk] = []
    contexts = [context_slots(work, page_size) for work in ordered]
    for work, context in zip(ordered, contexts, strict=True):
        end = work.start + work.count
        row = len(tokens)
        tokens += work.sequence.tokens[work.start : end]
        positions += range(work.start, end)
        if work.samples:
            sampled.append(len(tokens) - 1)
        if work.count > 1:
            mask = torch.ones(work.count, end, dtype=torch.bool).tril(diagonal=work.start)
            chunks.append(Chunk(row, len(tokens), context, mask))
    decodes = len(ordered) - len(chunks)
    padded, mask = _pad(contexts[:decodes])
    batch = Batch(
        positions=torch.tensor(positions),
        slots=torch.cat([context[work.start :] for work, context in zip(ordered, contexts, strict=True)]),
        sampled=torch.tensor(sampled, dtype=torch.long),
        decodes=decodes,
        decode_slots=padded,
        decode_mask=mask,
        chunks=tuple(chunks),
    )
    return torch.tensor(tokens), batch


def _pad(contexts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """[decodes, longest] slots, padded with slot 0, and the mask [decodes, 1, 1, longest] of those that are real."""
    if not contexts:
        return torch.zeros(0, 0, dtype=torch.long), torch.zeros(0, 1, 1, 0, dtype=torch.bool)
    padded = torch.nn.utils.rnn.pad_sequence(contexts, batch_first=True)
    lengths = torch.tensor([len(context) for context in contexts])
    mask = torch.arange(padded.shape[1]).unsqueeze(0) < lengths.unsqueeze(1)
    return padded, mask.view(len(contexts), 1, 1, -1)


def context_slots(work: Work, page_size: int) -> torch.Tensor:
    """Slots of positions 0 .. start+count-1: page * page_size + offset, int64."""
    pages = torch.tensor(work.sequence.pages)
    grid = pages.unsqueeze(1) * page_size + torch.arange(page_size).unsqueeze(0)
    return grid.view(-1)[: work.start + work.count]
