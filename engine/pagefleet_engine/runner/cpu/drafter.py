"""The forward passes of a draft model and of an EAGLE-3 head on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from pagefleet_engine.core.requests import EngineConfig, Speculation
from pagefleet_engine.core.work import Work
from pagefleet_engine.model.decoder import Decoder
from pagefleet_engine.model.heads.head import EagleHead
from pagefleet_engine.model.heads.states import StatePages
from pagefleet_engine.runner.common.head_drafts import HeadDrafts, following
from pagefleet_engine.runner.common.sampling import Sampler
from pagefleet_engine.runner.common.speculator import DraftModel, Speculator
from pagefleet_engine.runner.cpu import batch
from pagefleet_engine.runner.cpu.loading import Loaded
from pagefleet_kernels.cpu import Batch, KVPages, Operations


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
            yield _drawn(self._sampler, self._operations, logits, step, ahead)

    def _states(self, work_items: list[Work]) -> torch.Tensor:
        tokens, laid_out = batch.lay_out(work_items, self._size)
        return self._model.forward(tokens, laid_out, self._cache)


class CpuHeadDrafter:
    """As CpuDrafter, with a head. Its work items are positions, of which it reads the tokens one place later."""

    def __init__(
        self,
        head: EagleHead,
        states: StatePages,
        cache: KVPages,
        page_size: int,
        sampler: Sampler,
        operations: Operations,
    ) -> None:
        self._head, self._states, self._cache, self._size = head, states, cache, page_size
        self._sampler, self._operations = sampler, operations

    def forward(self, work_items: list[Work]) -> None:
        tokens, laid_out = self._laid_out(work_items)
        self._head.write(tokens, self._states.read(laid_out.slots), laid_out, self._cache)

    def draft(self, places: Sequence[list[Work]]) -> Iterator[list[int]]:
        rows: dict[int, int] = {}  # of the outputs of the place before, by sequence
        outputs = torch.empty(0)
        for ahead, step in enumerate(places):
            tokens, laid_out = self._laid_out(step)
            own = [rows[id(work.sequence)] for work in step] if ahead else []
            states = outputs[own] if ahead else self._states.read(laid_out.slots)
            last = laid_out.first[1:].long() - 1
            outputs = self._head.forward(tokens, states, laid_out, self._cache, last)
            rows = {id(work.sequence): row for row, work in enumerate(step)}
            yield _drawn(self._sampler, self._operations, self._head.logits(outputs), step, ahead)

    def _laid_out(self, work_items: list[Work]) -> tuple[torch.Tensor, Batch]:
        return torch.tensor(following(work_items)), batch.lay_out(work_items, self._size)[1]


def speculator(
    config: EngineConfig, settings: Speculation, loaded: Loaded, sampler: Sampler, operations: Operations
) -> Speculator:
    """Return what gives sequences draft tokens, as the settings say."""
    size, most = config.page_size, config.max_num_batched_tokens
    if loaded.head is not None and loaded.states is not None:
        head = CpuHeadDrafter(loaded.head, loaded.states, loaded.draft_cache[0], size, sampler, operations)
        return HeadDrafts(settings, head, size, most)
    if loaded.draft is not None:
        drafter = CpuDrafter(loaded.draft, loaded.draft_cache, size, sampler, operations)
        return DraftModel(settings, drafter, size, most)
    return Speculator(settings)


def _drawn(
    sampler: Sampler, operations: Operations, logits: torch.Tensor, work_items: Sequence[Work], ahead: int
) -> list[int]:
    """Draw the token `ahead` places after the last known one, for each row of the logits."""
    return operations.sample(logits, [sampler.draw(work.sequence, row, ahead) for row, work in enumerate(work_items)])
