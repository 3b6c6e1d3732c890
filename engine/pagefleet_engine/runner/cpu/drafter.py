"""The forward passes of a draft model on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from pagefleet_engine.core.work import Work
from pagefleet_engine.model.decoder import Decoder
from pagefleet_engine.runner.common.sampling import Sampler
from pagefleet_engine.runner.cpu import batch
from pagefleet_kernels.cpu import KVPages, Operations


class CpuDrafter:
    """Draws each token with the number that the served model draws its own with."""

    def __init__(
        self, model: Decoder, cache: list[KVPages], page_size: int, sampler: Sampler, operations: Operations
    ) -> None:
        self._model, self._cache, self._size = model, cache, page_size
        self._sampler, self._operations = sampler, operations

    def forward(self, work_items: list[Work]) -> None:
        self._states(work_items)

    def draft(self, places: Sequence[list[Work]]) -> Iterator[list[int]]:
        for ahead, step in enumerate(places):
            logits = self._model.logits(self._states(step))
            draws = [self._sampler.draw(work.sequence, row, ahead) for row, work in enumerate(step)]
            yield self._operations.sample(logits, draws)

    def _states(self, work_items: list[Work]) -> torch.Tensor:
        tokens, laid_out = batch.lay_out(work_items, self._size)
        return self._model.forward(tokens, laid_out, self._cache)
