"""A scheduler whose next step is decided while the one before it still runs. Pure: results come when they come.

    works = schedule(now); launch(works); outputs = settle(results of the step before); advance(works)

`advance` counts a step as done before its tokens are known: a placeholder stands for each of them, which the runner
fills on the device, where the token lies already. A sequence whose length ends it is not scheduled again; one that an
end-of-text token ends has been scheduled once too often, and `settle` drops what that brings. Its pages are free at
once: what is written to them later is launched later, and steps run in the order of their launch.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from pagefleet_engine.core.limits import Limits
from pagefleet_engine.core.offload import Move, OffloadPool
from pagefleet_engine.core.requests import TokenOutput
from pagefleet_engine.core.scheduler import Scheduler
from pagefleet_engine.core.sequence import Sequence
from pagefleet_engine.core.work import Work, output_of

PENDING = -1  # in place of a token that the device knows and the host does not


@dataclass(frozen=True)
class Flown:
    """A step that was launched, and the sequences whose tokens it brings, in this order."""

    works: tuple[Work, ...]
    awaited: tuple[Sequence, ...]


class OverlapScheduler(Scheduler):
    """At most one step is on its way while the next is scheduled. `host_places`: cached pages kept on the host, 0: none."""

    def __init__(self, limits: Limits, host_places: int = 0) -> None:
        super().__init__(limits)
        self._offload: OffloadPool | None = None
        if host_places:
            self.pool = self._offload = OffloadPool(limits.pages, host_places)
        self._flown: Flown | None = None

    @property
    def flying(self) -> bool:
        return self._flown is not None

    @property
    def flown(self) -> tuple[Work, ...]:
        """The works of the step that is on its way."""
        return self._flown.works if self._flown is not None else ()

    @property
    def must_wait(self) -> bool:
        """Whether the step on its way has to be settled before the next is scheduled.

        A sequence that loses its seat could be given one again in the same step: its tokens must be known for that.
        """
        return bool(
            self.flying
            and self.waiting
            and len(self.running) >= self.limits.max_num_seqs
            and self.waiting[0].request.priority > self.running[-1].request.priority
        )

    def take_moves(self) -> list[Move]:
        """What is to be copied between host and device before the next step."""
        if self._offload is None:
            return []
        moves, self._offload.moves = self._offload.moves, []
        return moves

    def advance(self, works: list[Work]) -> None:
        """The step of `works` is launched. None of them has guesses, several answers or wants an embedding."""
        if self._flown is not None:
            raise RuntimeError("the step before has not been settled")
        awaited = []
        for work in works:
            sequence = work.sequence
            samples = work.samples
            if samples:
                awaited.append(sequence)
            if not sequence.runs:
                continue  # aborted, or ended by the token that was settled meanwhile
            sequence.computed += work.count
            self._register(sequence)
            if samples:
                sequence.tokens.append(PENDING)
                sampling = sequence.request.sampling
                sequence.closing = (
                    sequence.generated >= sampling.max_tokens or len(sequence.tokens) >= self.limits.max_model_len
                )
        self._flown = Flown(tuple(works), tuple(awaited))

    def settle(self, tokens: Items[int]) -> list[TokenOutput]:
        """Take the tokens of the step on its way, one for each of its works that sample, in their order."""
        if self._flown is None:
            raise RuntimeError("no step is on its way")
        awaited, self._flown = self._flown.awaited, None
        if len(tokens) != len(awaited):
            raise RuntimeError(f"{len(tokens)} tokens came, {len(awaited)} were awaited")
        outputs = []
        for sequence, token in zip(awaited, tokens, strict=True):
            if not self._awaits(sequence):
                continue
            if not self.limits.has_token(token):
                outputs += self.fail(sequence.request_id)
                continue
            sequence.tokens.pop()
            sequence.closing = False
            first = sequence.generated == 0
            finish = sequence.append(token, self.limits.eos_token_ids, self.limits.max_model_len)
            outputs.append(output_of(sequence, (token,), finish, first))
            if finish is not None:
                self._remove(sequence)
        return outputs

    def _hold_prefix(self, sequence: Sequence) -> None:
        super()._hold_prefix(sequence)
        if self._offload is None or not self.limits.prefix_caching or sequence.whole:
            return
        known, size = len(sequence.pages), self.limits.page_size
        hashes = sequence.hashes[known : (len(sequence.tokens) - 1) // size]
        # What is admitted needs a page at once, and one is spared for each that runs.
        pages = self._offload.fetch(hashes, spare=len(self.running) + 1)
        sequence.pages += pages
        sequence.registered = len(sequence.pages)
        sequence.computed = len(sequence.pages) * size

    def _awaits(self, sequence: Sequence) -> bool:
        """Whether it still exists and a placeholder stands for the token: it may wait again, preempted meanwhile."""
        known = any(one is sequence for one in self._by_id.get(sequence.request_id, ()))
        return known and sequence.tokens[-1] == PENDING
