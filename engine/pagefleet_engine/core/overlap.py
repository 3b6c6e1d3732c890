"""A scheduler that decides the next step while the one before it still runs. Pure: it never waits for results.

    work_items = schedule(now); launch(work_items); outputs = settle(results of the step before); advance(work_items)

`advance` counts a step as done before its tokens are known. Each unknown token has a placeholder, which the runner fills
on the device, where the token lies already. A sequence that its length ends is not scheduled again. A sequence that an
end-of-text token ends has been scheduled once too often, and `settle` drops that result. Its pages are free at once:
later writes to them are launched later, and steps run in the order of their launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet_engine.core.kv_events import Journal
from pagefleet_engine.core.limits import Limits
from pagefleet_engine.core.offload import Move, OffloadPool
from pagefleet_engine.core.requests import TokenOutput
from pagefleet_engine.core.scheduler import Scheduler
from pagefleet_engine.core.sequence import TokenSequence
from pagefleet_engine.core.work import Work, output_of

PENDING = -1  # the placeholder of a token that the device knows and the host does not


@dataclass(frozen=True)
class LaunchedStep:
    """A step under way, and the sequences of which it returns a token, in this order."""

    work_items: tuple[Work, ...]
    awaited: tuple[TokenSequence, ...]


class OverlapScheduler(Scheduler):
    """At most one step is under way while the next is scheduled. `host_places`: cached pages stored on the host, 0: none."""

    def __init__(self, limits: Limits, host_places: int = 0, journal: Journal | None = None) -> None:
        super().__init__(limits, journal)
        self._offload: OffloadPool | None = None
        if host_places:
            self.pool = self._offload = OffloadPool(limits.pages, host_places, limits.max_pinned_pages, journal)
        self._launched: LaunchedStep | None = None

    @property
    def in_flight(self) -> bool:
        return self._launched is not None

    @property
    def flown(self) -> tuple[Work, ...]:
        """Return the work items of the step that is on its way."""
        return self._launched.work_items if self._launched is not None else ()

    @property
    def must_wait(self) -> bool:
        """Whether the step under way has to be settled before the next is scheduled.

        A sequence that loses its seat could get one again in the same step. Its tokens must be known for that.
        """
        return bool(
            self.in_flight
            and self.waiting
            and len(self.running) >= self.limits.max_num_seqs
            and self.waiting[0].request.priority > self.running[-1].request.priority
        )

    def take_moves(self) -> list[Move]:
        """Return the copies between host and device that come before the next step."""
        if self._offload is None:
            return []
        moves, self._offload.moves = self._offload.moves, []
        return moves

    def advance(self, work_items: list[Work]) -> None:
        """Note that the step of `work_items` is launched. None of them has draft tokens, several answers or an embedding."""
        if self._launched is not None:
            raise RuntimeError("the step before has not been settled")
        awaited = []
        for work in work_items:
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
        self._launched = LaunchedStep(tuple(work_items), tuple(awaited))

    def settle(self, tokens: Sequence[int]) -> list[TokenOutput]:
        """Take the tokens of the step under way, one for each of its work items that samples, in their order."""
        if self._launched is None:
            raise RuntimeError("no step is under way")
        awaited, self._launched = self._launched.awaited, None
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

    def _hold_prefix(self, sequence: TokenSequence) -> None:
        super()._hold_prefix(sequence)
        if self._offload is None or not self.limits.prefix_caching or sequence.whole:
            return
        known, size = len(sequence.pages), self.limits.page_size
        hashes = sequence.hashes[known : (len(sequence.tokens) - 1) // size]
        # An admitted sequence needs a page at once, and each running one has a spare page.
        pages, back = self._offload.fetch(hashes, spare=len(self.running) + 1)
        if (journal := self._offload.journal) is not None:
            for at in back:
                journal.stored(sequence, known + at)
        sequence.pages += pages
        sequence.registered = len(sequence.pages)
        sequence.computed = len(sequence.pages) * size

    def _awaits(self, sequence: TokenSequence) -> bool:
        """Whether the sequence still exists and ends with a placeholder. It may wait again, if it was preempted meanwhile."""
        known = any(one is sequence for one in self._by_id.get(sequence.request_id, ()))
        return known and sequence.tokens[-1] == PENDING
