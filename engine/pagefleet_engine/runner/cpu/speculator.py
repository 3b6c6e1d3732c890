"""Fills sequences' guesses: from their own text, or by a smaller model that keeps its KV in the same pages."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagefleet_engine.core.requests import Speculation
from pagefleet_engine.core.scheduler import Scheduler
from pagefleet_engine.core.sequence import Sequence as Answer
from pagefleet_engine.core.speculation import NgramIndex, Pace, Standing
from pagefleet_engine.core.work import Work
from pagefleet_engine.model.llama import Llama
from pagefleet_engine.runner.common.sampling import Sampler
from pagefleet_engine.runner.cpu import batch
from pagefleet_kernels.cpu import KVPages, Operations

PLACEHOLDER = 0
Key = tuple[str, int]


def _key(answer: Answer) -> Key:
    return answer.request_id, answer.index


Offer = tuple[Answer, tuple[int, ...]]  # guesses that could be made for an answer


class Speculator:
    """`plan` before a step is scheduled, `fill` after; `learn` when its results are in, `copied` for each page copied."""

    def __init__(self, settings: Speculation) -> None:
        self.pace = Pace(settings.tokens)
        self._standing = Standing()
        self._indexes: dict[Key, NgramIndex] = {}

    def plan(self, scheduler: Scheduler) -> None:
        """Give each sequence that is past its prompt its guesses, as many as pay."""
        ready = [answer for answer in scheduler.running if answer.pending == 1 and answer.request.sampling.plain]
        for answer in ready:
            answer.draft = ()
        offers = self._offers(ready)
        keys = [_key(answer) for answer, _ in offers]
        chances = [
            (self._standing.chance(key, self._kind(key)), len(tokens))
            for key, (_, tokens) in zip(keys, offers, strict=True)
        ]
        chosen = []
        counts = self.pace.guesses(len(ready), chances)
        for key, (answer, tokens), count in zip(keys, offers, counts, strict=True):
            if count:
                chosen.append((answer, tokens[:count]))
            else:
                self._standing.fade(key, self._kind(key))
        self._guess(chosen)

    def fill(self, works: Sequence[Work]) -> None:
        """Replace placeholders, now that pages are reserved."""

    def learn(self, works: Sequence[Work], seconds: float) -> None:
        """A step whose results are committed took `seconds`."""
        for work in works:
            if work.drafts and work.sequence.runs:
                right = len(work.sequence.tokens) - (work.start + work.count - work.drafts) - 1
                key = _key(work.sequence)
                self._standing.learn(key, self._kind(key), work.drafts, right)
        if all(work.count == work.drafts + 1 for work in works):
            self._took(works, seconds)

    def copied(self, origin: int, target: int) -> None:
        """A page holds now what another does."""

    def forget(self, request_id: str, index: int) -> None:
        self._indexes.pop((request_id, index), None)
        self._standing.forget((request_id, index))

    def _took(self, works: Sequence[Work], seconds: float) -> None:
        self.pace.took(len(works), sum(work.count for work in works), seconds)

    def _kind(self, key: Key) -> int:
        """Of an answer's last guesses: by how many tokens the text's end was found. Three say more than two."""
        return self._indexes[key].matched

    def _offers(self, ready: list[Answer]) -> list[Offer]:
        offers = []
        for answer in ready:
            index = self._indexes.setdefault(_key(answer), NgramIndex())
            if tokens := index.guess(answer.tokens, self.pace.most):
                offers.append((answer, tokens))
        return offers

    def _guess(self, chosen: list[Offer]) -> None:
        for answer, tokens in chosen:
            answer.draft = tokens


class DraftModel(Speculator):
    """Guesses what the smaller model would say next, with the draw's own noise.

    Its KV lies at the same slots of pages of its own. It computes nothing while guessing does not pay: what it has
    missed by then it makes up for just before it guesses, `most` tokens a step, so that no step becomes a long one.
    """

    def __init__(
        self,
        settings: Speculation,
        model: Llama,
        cache: list[KVPages],
        sampler: Sampler,
        operations: Operations,
        most: int,
    ) -> None:
        super().__init__(settings)
        self._model, self._cache, self._sampler, self._operations = model, cache, sampler, operations
        self._most, self._size = most, cache[0].page_size
        self._known: dict[int, int] = {}  # by page: how many of its first positions have the smaller model's KV
        self._caught_up = False

    def fill(self, works: Sequence[Work]) -> None:
        # Who writes a page's position ends what was known of it from there on.
        for work in works:
            self._set(work, work.start)
        guessing = [work for work in works if work.drafts]
        for place in range(max((work.drafts for work in guessing), default=0)):
            # The token before each guess; those that guess fewer are done.
            step = [Work(work.sequence, work.start + place, 1) for work in guessing if work.drafts > place]
            tokens = self._next(step, place)
            for work, token in zip(step, tokens, strict=True):
                draft = work.sequence.draft
                work.sequence.draft = (*draft[:place], token, *draft[place + 1 :])
        if guessing:  # the last guesses' own KV: they may all be right
            self._forward([Work(work.sequence, work.start + work.drafts, 1, 1) for work in guessing])
        for work in guessing:
            self._set(work, work.start + work.count)

    def copied(self, origin: int, target: int) -> None:
        self._known[target] = self._known.get(origin, 0)

    def _took(self, works: Sequence[Work], seconds: float) -> None:
        if not self._caught_up:  # such a step says nothing of what steps cost
            super()._took(works, seconds)

    def _kind(self, key: Key) -> int:
        return 0

    def _offers(self, ready: list[Answer]) -> list[Offer]:
        return [(answer, (PLACEHOLDER,) * self.pace.most) for answer in ready]

    def _guess(self, chosen: list[Offer]) -> None:
        missed, left = [], self._most
        for answer, tokens in chosen:
            begin = self._begin(answer)
            missing = min(answer.computed - begin, left)
            if missing:
                missed.append(Work(answer, begin, missing))
                left -= missing
            if begin + missing == answer.computed:
                answer.draft = tokens
        self._caught_up = bool(missed)
        if missed:
            self._forward(missed)
            for work in missed:
                self._set(work, work.start + work.count)

    def _begin(self, answer: Answer) -> int:
        """The first of its computed positions that the smaller model has not computed."""
        begin = 0
        for page in answer.pages:
            known = self._known.get(page, 0)
            begin += known
            if known < self._size:
                break
        return min(begin, answer.computed)

    def _set(self, work: Work, end: int) -> None:
        """Of the pages that `work` writes, the positions before `end` are known, and no more."""
        for index in range(work.start // self._size, -(-(work.start + work.count) // self._size)):
            page, known = work.sequence.pages[index], max(0, min(self._size, end - index * self._size))
            self._known[page] = min(known, self._known.get(page, 0)) if end == work.start else known

    def _next(self, step: list[Work], ahead: int) -> list[int]:
        logits = self._model.logits(self._forward(step))
        draws = [self._sampler.draw(work.sequence, row, ahead) for row, work in enumerate(step)]
        return self._operations.sample(logits, draws)

    def _forward(self, works: list[Work]) -> torch.Tensor:
        tokens, laid_out = batch.lay_out(works, self._size)
        return self._model.forward(tokens, laid_out, self._cache)
