"""Gives sequences their draft tokens: from their own text, or from a smaller model whose KV lies in the same pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from pagefleet_engine.core.overlap import PENDING
from pagefleet_engine.core.requests import Speculation
from pagefleet_engine.core.scheduler import Scheduler
from pagefleet_engine.core.sequence import TokenSequence
from pagefleet_engine.core.speculation import AcceptanceRates, DraftPlanner, NgramIndex
from pagefleet_engine.core.work import Work
from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.common.recovery import report

FIELD = "spec.model.speculation.model"
Key = tuple[str, int]


def _key(answer: TokenSequence) -> Key:
    return answer.request_id, answer.index


Offer = tuple[TokenSequence, tuple[int, ...]]  # an answer, and the draft tokens that it could have


class Speculator:
    """Call `planned` before a step is scheduled, `fill` after it, `learn` with its results, `copied` and `replaced` for pages."""

    def __init__(self, settings: Speculation) -> None:
        self.planner = DraftPlanner(settings.tokens)
        self._rates = AcceptanceRates()
        self._indexes: dict[Key, NgramIndex] = {}

    def planned(self, scheduler: Scheduler) -> None:
        """As `plan`. Draft tokens change only the speed: where planning raises, the step has none."""
        try:
            self.plan(scheduler)
        except Exception as error:
            report("draft tokens could not be planned: this step has none", error)
            for sequence in scheduler.running:
                sequence.draft = ()

    def plan(self, scheduler: Scheduler) -> None:
        """Give each sequence that is past its prompt as many draft tokens as make it faster."""
        ready = [
            answer
            for answer in scheduler.running
            if answer.pending == 1 and answer.request.sampling.plain and not answer.request.embed
        ]
        for answer in ready:
            answer.draft = ()
        offers = self._offers(ready)
        keys = [_key(answer) for answer, _ in offers]
        rates = [
            (self._rates.rate(key, self._kind(key)), len(tokens)) for key, (_, tokens) in zip(keys, offers, strict=True)
        ]
        chosen = []
        counts = self.planner.plan(len(ready), rates)
        for key, (answer, tokens), count in zip(keys, offers, counts, strict=True):
            if count:
                chosen.append((answer, tokens[:count]))
            else:
                self._rates.fade(key, self._kind(key))
        self._draft(chosen)

    def fill(self, work_items: Sequence[Work]) -> None:
        """Replace placeholders, now that pages are reserved."""

    def learn(self, work_items: Sequence[Work], seconds: float) -> None:
        """Learn from a step whose results are committed, and which took `seconds`."""
        for work in work_items:
            if work.drafts and work.sequence.runs:
                accepted = len(work.sequence.tokens) - (work.start + work.count - work.drafts) - 1
                key = _key(work.sequence)
                self._rates.observe(key, self._kind(key), work.drafts, accepted)
        if all(work.count == work.drafts + 1 for work in work_items):
            self._observe(work_items, seconds)

    def copied(self, origin: int, target: int) -> None:
        """Note that page `target` is now a copy of page `origin`."""

    def replaced(self, page: int) -> None:
        """Note that the page has other contents now, which no step has computed."""

    def forget(self, request_id: str, index: int) -> None:
        self._indexes.pop((request_id, index), None)
        self._rates.forget((request_id, index))

    def _observe(self, work_items: Sequence[Work], seconds: float) -> None:
        self.planner.observe(len(work_items), sum(work.count for work in work_items), seconds)

    def _kind(self, key: Key) -> int:
        """Return the kind of an answer's last draft: how many tokens of the text's end matched. Three predict better than two."""
        return self._indexes[key].matched

    def _offers(self, ready: list[TokenSequence]) -> list[Offer]:
        offers = []
        for answer in ready:
            index = self._indexes.setdefault(_key(answer), NgramIndex())
            if tokens := index.draft(answer.tokens, self.planner.limit):
                offers.append((answer, tokens))
        return offers

    def _draft(self, chosen: list[Offer]) -> None:
        for answer, tokens in chosen:
            answer.draft = tokens


class Drafter(Protocol):
    """A smaller model's forward passes. Its KV lies in pages of its own, at the slots of the served model's."""

    def forward(self, work_items: list[Work]) -> None:
        """Compute the KV of the work items' tokens."""

    def draft(self, places: Sequence[list[Work]]) -> Iterator[list[int]]:
        """Draw the token after each work item, place by place. The tokens of a place are in the drafts when the next is asked for."""


class DraftModel(Speculator):
    """Drafts with a smaller model. Its tokens are drawn with the same noise as the model's own.

    The smaller model has pages of its own, with its KV at the same slots. It computes nothing while drafts do not pay. The
    tokens that it missed meanwhile it computes just before it drafts again, at most `limit` tokens a step, so that no
    step becomes a long one.
    """

    def __init__(self, settings: Speculation, drafter: Drafter, page_size: int, limit: int) -> None:
        super().__init__(settings)
        self._drafter, self._size, self._limit = drafter, page_size, limit
        self._known: dict[int, int] = {}  # by page: how many of its first positions hold the smaller model's KV
        # By answer: its list of pages, and how many of the first ones are known in full. Nothing is written to these again
        # while the answer holds them, and an answer that was preempted has another list.
        self._whole: dict[Key, tuple[list[int], int]] = {}
        self._caught_up = False

    def fill(self, work_items: Sequence[Work]) -> None:
        # A work that writes to a page overwrites the smaller model's KV from that position on.
        for work in work_items:
            self._set(work, work.start)
        if drafting := [work for work in work_items if work.drafts]:
            self._chain(drafting)

    def _chain(self, drafting: Sequence[Work]) -> None:
        """Draft the tokens of the works that have some."""
        # The token before each draft token. Works with fewer draft tokens are done.
        places = [
            [Work(work.sequence, work.start + place, 1) for work in drafting if work.drafts > place]
            for place in range(max(work.drafts for work in drafting))
        ]
        self._fill(places)
        # The KV of the last draft tokens: all of them may be accepted.
        self._drafter.forward([Work(work.sequence, work.start + work.drafts, 1, 1) for work in drafting])
        for work in drafting:
            self._set(work, work.start + work.count)

    def _fill(self, places: Sequence[list[Work]]) -> None:
        """Replace the placeholders of draft tokens, place by place."""
        for place, (step, tokens) in enumerate(zip(places, self._drafter.draft(places), strict=True)):
            for work, token in zip(step, tokens, strict=True):
                draft = work.sequence.draft
                work.sequence.draft = (*draft[:place], token, *draft[place + 1 :])

    def copied(self, origin: int, target: int) -> None:
        self._known[target] = self._known.get(origin, 0)

    def replaced(self, page: int) -> None:
        self._known.pop(page, None)

    def forget(self, request_id: str, index: int) -> None:
        super().forget(request_id, index)
        self._whole.pop((request_id, index), None)

    def _observe(self, work_items: Sequence[Work], seconds: float) -> None:
        if (
            not self._caught_up
        ):  # a step in which the smaller model catches up costs more than others: it is not observed
            super()._observe(work_items, seconds)

    def _kind(self, key: Key) -> int:
        return 0

    def _offers(self, ready: list[TokenSequence]) -> list[Offer]:
        return [(answer, (PENDING,) * self.planner.limit) for answer in ready]

    def _draft(self, chosen: list[Offer]) -> None:
        missed, left = [], self._limit
        for answer, tokens in chosen:
            begin, due = self._begin(answer), self._due(answer)
            missing = max(0, min(due - begin, left))
            if missing:
                missed.append(Work(answer, begin, missing))
                left -= missing
            if begin + missing >= due:
                answer.draft = tokens
        self._caught_up = bool(missed)
        if missed:
            self._drafter.forward(missed)
            for work in missed:
                self._set(work, work.start + work.count)

    def _due(self, answer: TokenSequence) -> int:
        """Return the position before which all have to be computed before tokens are drafted."""
        return answer.computed

    def _begin(self, answer: TokenSequence) -> int:
        """The first computed position of the answer that the smaller model has not computed."""
        key, pages, most = _key(answer), answer.pages, answer.computed // self._size
        held, whole = self._whole.get(key, (pages, 0))
        whole = min(whole, most) if held is pages else 0
        while whole < most and self._known.get(pages[whole], 0) == self._size:
            whole += 1
        self._whole[key] = pages, whole
        rest = self._known.get(pages[whole], 0) if whole < len(pages) else 0
        return min(whole * self._size + rest, answer.computed)

    def _set(self, work: Work, end: int) -> None:
        """Note that in the pages that `work` writes, the smaller model's KV ends before position `end`."""
        for index in range(work.start // self._size, -(-(work.start + work.count) // self._size)):
            page, known = work.sequence.pages[index], max(0, min(self._size, end - index * self._size))
            self._known[page] = min(known, self._known.get(page, 0)) if end == work.start else known


def check_draft(draft: ModelConfig, model: ModelConfig, length: int) -> None:
    """Raises ModelError when the smaller model cannot draft for requests of up to `length` tokens of the served one."""
    if draft.vocab_size != model.vocab_size:
        raise ModelError(
            FIELD, f"the draft model has {draft.vocab_size} tokens, the served one {model.vocab_size}: they must agree"
        )
    if draft.max_position < length:
        raise ModelError(FIELD, f"the draft model's length is {draft.max_position}, less than the served {length}")
