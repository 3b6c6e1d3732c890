"""Assigns rows ("seats") of the device's state to running sequences, and lists the changes of those rows. Pure.

A seat is taken with a sequence's first work and given up when the sequence no longer runs. Nothing waits for the
device: a later write to a seat or a page is launched after every step that still uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pagefleet_engine.core.sequence import TokenSequence
from pagefleet_engine.core.work import Work
from pagefleet_engine.runner.common.adapters import number_of
from pagefleet_engine.runner.device.steps.step import DeviceStep, Drawing, Numbers, none

EVERY = np.iinfo(np.int32).max  # a top_k that keeps all


@dataclass
class Seat:
    number: int
    pages: list[int]  # as the device's table has them


class Seats:
    """`seed` gives a sequence's own seed of 64 bits. Raises RuntimeError when more sequences run than there are seats."""

    def __init__(self, count: int, seed: Callable[[TokenSequence], int]) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._taken: dict[TokenSequence, Seat] = {}
        self._seed = seed

    def describe(
        self,
        work_items: Sequence[Work],
        copies: Sequence[tuple[int, int]] = (),
        moves: Sequence[tuple[int, int, int]] = (),
        chosen_by_host: bool = False,
    ) -> DeviceStep:
        self._give_up()
        tokens: list[int] = []
        owners: list[int] = []
        changes: list[tuple[int, int, int]] = []
        new: list[tuple[int, TokenSequence]] = []
        numbers: list[int] = []
        prompt_rows: list[tuple[int, int]] = []
        for index, work in enumerate(work_items):
            if count := _prompt_row_count(work):
                prompt_rows.append((len(tokens), count))
            tokens += work.tokens
            if work.samples:
                owners.append(index)
            numbers.append(self._take(work.sequence, new, changes))
        return DeviceStep(
            tokens=np.array(tokens, np.int32),
            counts=np.array([work.count for work in work_items], np.int32),
            starts=np.array([work.start for work in work_items], np.int32),
            seats=np.array(numbers, np.int32),
            owners=np.array(owners, np.int32),
            pages=_rows(changes, 3),
            drawing=self._drawing(new),
            copies=_rows(copies, 2),
            moves=_rows(moves, 3),
            prompt_rows=_rows(prompt_rows, 2),
            chosen_by_host=chosen_by_host,
            drafts=np.array([work.drafts for work in work_items], np.int32),
            adapters=np.array([number_of(work.sequence.request.adapter) for work in work_items], np.int32),
        )

    def _give_up(self) -> None:
        for answer in [answer for answer in self._taken if not answer.runs]:
            self._free.append(self._taken.pop(answer).number)

    def _take(
        self, answer: TokenSequence, new: list[tuple[int, TokenSequence]], changes: list[tuple[int, int, int]]
    ) -> int:
        seat = self._taken.get(answer)
        if seat is None:
            if not self._free:
                raise RuntimeError(f"{len(self._taken)} sequences run, and there is no seat left")
            seat = self._taken[answer] = Seat(self._free.pop(), [])
            new.append((seat.number, answer))
        if (known := len(seat.pages)) != len(answer.pages) or seat.pages != answer.pages:
            same = known if answer.pages[:known] == seat.pages else 0
            changes += [(seat.number, place, answer.pages[place]) for place in range(same, len(answer.pages))]
            seat.pages = answer.pages[:]
        return seat.number

    def _drawing(self, new: list[tuple[int, TokenSequence]]) -> Drawing:
        if not new:
            return Drawing.none()
        samplings = [answer.request.sampling for _, answer in new]
        return Drawing(
            np.array([number for number, _ in new], np.int32),
            np.array([min(one.top_k, EVERY) for one in samplings], np.int32),
            np.array(
                [
                    [one.temperature for one in samplings],
                    [one.top_p for one in samplings],
                    [one.min_p for one in samplings],
                ],
                np.float32,
            ),
            np.array([self._seed(answer) for _, answer in new], np.int64),
        )


def _prompt_row_count(work: Work) -> int:
    """Count the tokens whose logits give log probabilities of the prompt: all but the prompt's last."""
    request = work.sequence.request
    if request.embed or request.sampling.prompt_logprobs is None or work.sequence.generated:
        return 0
    return min(work.count, work.sequence.prompt_tokens - 1 - work.start)


def _rows(values: Sequence[tuple[int, ...]], width: int) -> Numbers:
    return np.array(values, np.int32).reshape(-1, width) if values else none(0, width)
