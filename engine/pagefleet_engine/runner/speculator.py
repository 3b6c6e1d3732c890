"""Fills sequences' guesses: from their own text, or by a smaller model that keeps its KV in the same pages."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagefleet_engine.core.requests import Speculation
from pagefleet_engine.core.scheduler import Scheduler, Work
from pagefleet_engine.core.sequence import Sequence as Answer
from pagefleet_engine.core.speculation import NgramIndex, Pace
from pagefleet_engine.model.llama import Llama
from pagefleet_engine.runner import batch
from pagefleet_engine.runner.sampling import Sampler
from pagefleet_kernels.cpu import KVPages, Operations

PLACEHOLDER = 0


class Speculator:
    """`plan` before a step is scheduled, `fill` after; `learn` when its results are in."""

    def __init__(self, settings: Speculation) -> None:
        self.pace = Pace(settings.tokens)
        self._indexes: dict[tuple[str, int], NgramIndex] = {}

    def plan(self, scheduler: Scheduler) -> None:
        """Give each sequence that is past its prompt its guesses, as many as pay."""
        ready = [answer for answer in scheduler.running if answer.pending == 1 and answer.request.sampling.plain]
        count = self.pace.guesses(len(ready))
        for answer in ready:
            answer.draft = self._guess(answer, count) if count else ()

    def fill(self, works: Sequence[Work]) -> None:
        """Replace placeholders, now that pages are reserved."""

    def learn(self, works: Sequence[Work], accepted: int, seconds: float) -> None:
        """A step took `seconds`, and `accepted` of its guesses stood."""
        if all(work.count == work.drafts + 1 for work in works):
            self.pace.took(sum(work.count for work in works), seconds)

    def forget(self, request_id: str, index: int) -> None:
        self._indexes.pop((request_id, index), None)

    def _guess(self, answer: Answer, count: int) -> tuple[int, ...]:
        index = self._indexes.setdefault((answer.request_id, answer.index), NgramIndex())
        return index.guess(answer.tokens, count)


class DraftModel(Speculator):
    """Guesses what the smaller model would say next, with the draw's own noise.

    Its KV lies at the same slots of pages of its own: whatever the served model computes, it computes as well.
    """

    def __init__(
        self, settings: Speculation, model: Llama, cache: list[KVPages], sampler: Sampler, operations: Operations
    ) -> None:
        super().__init__(settings)
        self._model, self._cache, self._sampler, self._operations = model, cache, sampler, operations

    def fill(self, works: Sequence[Work]) -> None:
        guessing = [work for work in works if work.drafts]
        for place in range(max((work.drafts for work in guessing), default=0)):
            # The token before each guess; those that guess fewer are done.
            step = [Work(work.sequence, work.start + place, 1) for work in guessing if work.drafts > place]
            tokens = self._next(step, place)
            for work, token in zip(step, tokens, strict=True):
                draft = work.sequence.draft
                work.sequence.draft = (*draft[:place], token, *draft[place + 1 :])
        rest = [
            Work(work.sequence, work.start + work.drafts, 1, min(work.drafts, 1)) if work.drafts else work
            for work in works
        ]
        self._forward(rest)

    def _guess(self, answer: Answer, count: int) -> tuple[int, ...]:
        return (PLACEHOLDER,) * count

    def _next(self, step: list[Work], ahead: int) -> list[int]:
        logits = self._model.logits(self._forward(step))
        draws = [self._sampler.draw(work.sequence, row, ahead) for row, work in enumerate(step)]
        return self._operations.sample(logits, draws)

    def _forward(self, works: list[Work]) -> torch.Tensor:
        tokens, laid_out = batch.lay_out(works, self._cache[0].page_size)
        return self._model.forward(tokens, laid_out, self._cache)
