"""Decides what each step computes: one token budget for prefill and decode together, by priority, then arrival.

Running sequences go first, one token each (or the next chunk of a prompt); what is left of the budget goes to waiting
ones, in chunks. When pages run out the last running sequence is preempted: its pages are released and it is computed
again later (recompute; Kwon et al., SOSP 2023, section 4.5), usually helped by the prefix cache.
Static batching is here only to be compared with: a batch runs to completion before the next is admitted.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from pagefleet_engine.core.blocks import PageError, PagePool, page_hashes
from pagefleet_engine.core.limits import Limits
from pagefleet_engine.core.requests import Batching, EngineRequest, Finish, TokenOutput
from pagefleet_engine.core.sequence import Sequence


@dataclass(frozen=True)
class Work:
    """Compute `count` tokens of `sequence` from position `start`; sample when that reaches its last token."""

    sequence: Sequence
    start: int
    count: int

    @property
    def samples(self) -> bool:
        return self.start + self.count == len(self.sequence.tokens)


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank


class Scheduler:
    """Owns the sequences. `schedule` and `commit` alternate; nothing here knows tensors or clocks.

    `waiting` and `running` are in the order of service. `prefix_queries` and `prefix_hits` count prompt tokens at
    their first admission.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits, self.pool = limits, PagePool(limits.pages)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._by_id: dict[str, Sequence] = {}
        self._added = 0

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises ValueError when it could never be served, or its id is in use."""
        refusal = self.limits.refusal(request)
        if refusal is None and request.request_id in self._by_id:
            refusal = f"the request id {request.request_id!r} is in use"
        if refusal is not None:
            raise ValueError(refusal)
        sequence = Sequence.of(request, self._added)
        self._added += 1
        self._by_id[request.request_id] = sequence
        insort(self.waiting, sequence, key=_rank)

    def abort(self, request_id: str) -> bool:
        """Forget a request; whether it was there."""
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return False
        if sequence in self.running:
            self._release(sequence)
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        return True

    def schedule(self, now: float) -> list[Work]:
        """The next step's work, its pages allocated; empty when there is nothing to do.

        `now` is seconds of the clock of the requests' arrival.
        """
        budget = self.limits.max_num_batched_tokens
        works: list[Work] = []
        before = self.preemptions
        for sequence in list(self.running):
            count = min(sequence.pending, budget)
            if count == 0 or sequence not in self.running:
                continue
            if self._make_room(sequence, count):
                works.append(Work(sequence, sequence.computed, count))
                budget -= count
        # Victims come last in the order of service, so none of them has work in this step yet.
        if self.preemptions == before and self._admits():
            works += self._admit(budget, now)
        return works

    def commit(self, works: list[Work], sampled: dict[str, int]) -> list[TokenOutput]:
        """Take a step's results: {request id: token} for the works that sample."""
        outputs = []
        for work in works:
            sequence = work.sequence
            if sequence not in self.running:
                continue  # aborted while the step ran
            sequence.computed += work.count
            self._register(sequence)
            if not work.samples:
                continue
            first = sequence.generated == 0
            token = sampled[sequence.request_id]
            finish = sequence.append(token, self.limits.eos_token_ids, self.limits.max_model_len)
            if finish is not None:
                self._release(sequence)
                self.running.remove(sequence)
                del self._by_id[sequence.request_id]
            outputs.append(_output(sequence, token, finish, first))
        return outputs

    def check(self) -> None:
        """Raises PageError unless blank + cached + held = total and exactly the running sequences hold pages."""
        self.pool.check()
        held = {page for sequence in self.running for page in sequence.pages}
        if self.pool.available + len(held) != self.pool.total:
            raise PageError(f"{self.pool.total - self.pool.available} pages are held, {len(held)} have a sequence")

    def _admits(self) -> bool:
        return self.limits.batching is Batching.CONTINUOUS or not self.running

    def _admit(self, budget: int, now: float) -> list[Work]:
        works = []
        # A static batch is complete from its start; who finds no budget in this step gets it in the next ones.
        static = self.limits.batching is Batching.STATIC
        while self.waiting and (budget > 0 or static) and len(self.running) < self.limits.max_num_seqs:
            sequence = self.waiting[0]
            self._hold_prefix(sequence)
            count = min(sequence.pending, budget)
            # A spare page for each sequence that runs: or the newcomer would be preempted again within a few tokens.
            if not self._reserve(sequence, count, spare=len(self.running)):
                self._release(sequence)
                break
            del self.waiting[0]
            insort(self.running, sequence, key=_rank)
            self._count_admission(sequence, now)
            if count:
                works.append(Work(sequence, sequence.computed, count))
            budget -= count
        return works

    def _count_admission(self, sequence: Sequence, now: float) -> None:
        if sequence.first_scheduled is not None:
            return  # preempted before: its own pages would count as hits
        sequence.first_scheduled = now
        sequence.cached_tokens = sequence.computed
        self.prefix_queries += sequence.prompt_tokens
        self.prefix_hits += sequence.computed

    def _hold_prefix(self, sequence: Sequence) -> None:
        """Hold the cached pages of the longest known prefix; at least one token is always computed."""
        size = self.limits.page_size
        self._hash(sequence, len(sequence.tokens) // size)
        pages = self.pool.find(sequence.hashes[: (len(sequence.tokens) - 1) // size])
        self.pool.hold(pages)
        sequence.pages, sequence.registered = pages, len(pages)
        sequence.computed = len(pages) * size

    def _reserve(self, sequence: Sequence, count: int, spare: int = 0) -> bool:
        """Pages for the next `count` tokens, leaving `spare` available; whether there were enough."""
        needed = -(-(sequence.computed + count) // self.limits.page_size) - len(sequence.pages)
        if needed + spare > self.pool.available:
            return False
        sequence.pages += self.pool.allocate(max(0, needed))
        return True

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Reserve, preempting from the end of the line; False when that reached `sequence` itself."""
        while not self._reserve(sequence, count):
            victim = self.running.pop()
            self.preemptions += 1
            self._release(victim)
            insort(self.waiting, victim, key=_rank)
            if victim is sequence:
                return False
        return True

    def _hash(self, sequence: Sequence, full: int) -> None:
        """Make sure that the hashes of the first `full` pages are known."""
        known, size = len(sequence.hashes), self.limits.page_size
        if full > known:
            parent = sequence.hashes[-1] if sequence.hashes else b""
            sequence.hashes += page_hashes(sequence.tokens[: full * size], size, parent, known * size)

    def _register(self, sequence: Sequence) -> None:
        """Make the pages that have just become full findable."""
        full = sequence.computed // self.limits.page_size
        self._hash(sequence, full)
        for index in range(sequence.registered, full):
            self.pool.register(sequence.pages[index], sequence.hashes[index])
        sequence.registered = full

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.pages)
        sequence.pages, sequence.registered, sequence.computed = [], 0, 0


def _output(sequence: Sequence, token: int, finish: Finish | None, first: bool) -> TokenOutput:
    queued = None
    if first and sequence.first_scheduled is not None:
        queued = sequence.first_scheduled - sequence.request.arrival
    return TokenOutput(
        sequence.request_id,
        (token,),
        finish.value if finish else None,
        sequence.prompt_tokens,
        sequence.cached_tokens,
        queued,
    )
