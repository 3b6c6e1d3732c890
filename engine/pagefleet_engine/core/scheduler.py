"""Decides what each step computes: one token budget for prefill and decode together, first come first served.

Running sequences go first, one token each (or the next chunk of a prompt); what is left of the budget goes to waiting
ones, in chunks. When pages run out the newest running sequence is preempted: its pages are released and it is computed
again later (recompute; Kwon et al., SOSP 2023, section 4.5), usually helped by the prefix cache.
Static batching is here only to be compared with: a batch runs to completion before the next is admitted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pagefleet_engine.core.blocks import OutOfPages, PagePool, page_hashes
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


@dataclass(frozen=True)
class Limits:
    """Of one scheduler. `eos_token_ids` end a sequence unless its request ignores them."""

    page_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    batching: Batching
    eos_token_ids: frozenset[int]


class Scheduler:
    """Owns the sequences. `schedule` and `commit` alternate; nothing here knows tensors or clocks."""

    def __init__(self, limits: Limits, pool: PagePool) -> None:
        self._limits, self.pool = limits, pool
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises ValueError when it could never be served."""
        prompt, capacity = len(request.prompt_token_ids), self.pool.total * self._limits.page_size
        if not 1 <= prompt < self._limits.max_model_len:
            raise ValueError(f"a prompt has 1 to {self._limits.max_model_len - 1} tokens, not {prompt}")
        if min(prompt + request.sampling.max_tokens, self._limits.max_model_len) > capacity:
            raise ValueError(f"prompt and output may need more than the {capacity} tokens of the KV cache")
        self.waiting.append(Sequence.of(request))

    def abort(self, request_id: str) -> bool:
        """Forget a request; whether it was there."""
        for sequence in self.running:
            if sequence.request.request_id == request_id:
                self._release(sequence)
                self.running.remove(sequence)
                return True
        for sequence in self.waiting:
            if sequence.request.request_id == request_id:
                self.waiting.remove(sequence)
                return True
        return False

    def schedule(self, now: float) -> list[Work]:
        """The next step's work, its pages allocated; empty when there is nothing to do."""
        budget, works = self._limits.max_num_batched_tokens, []
        preempted = False
        for sequence in list(self.running):
            if sequence not in self.running or budget <= 0:
                continue
            count = min(sequence.pending, budget)
            while not self._reserve(sequence, count):
                preempted = True
                victim = self.running[-1]
                works = [work for work in works if work.sequence is not victim]
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                works.append(Work(sequence, sequence.computed, count))
                budget = self._limits.max_num_batched_tokens - sum(work.count for work in works)
        if not preempted and self._admits():
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
            token = sampled[sequence.request.request_id]
            finish = sequence.append(token, self._limits.eos_token_ids, self._limits.max_model_len)
            if finish is not None:
                self._release(sequence)
                self.running.remove(sequence)
            outputs.append(self._output(sequence, token, finish, first))
        return outputs

    def check_idle(self) -> None:
        """Raises PageError when the pool is inconsistent, or pages are held while nothing runs."""
        self.pool.check()
        if not self.running and self.pool.available != self.pool.total:
            raise OutOfPages("pages are held although no sequence runs")

    def _admits(self) -> bool:
        return self._limits.batching is Batching.CONTINUOUS or not self.running

    def _admit(self, budget: int, now: float) -> list[Work]:
        works = []
        # A static batch is complete from its start; who finds no budget in this step gets it in the next ones.
        static = self._limits.batching is Batching.STATIC
        while self.waiting and (budget > 0 or static) and len(self.running) < self._limits.max_num_seqs:
            sequence = self.waiting[0]
            self._reuse_prefix(sequence)
            count = min(sequence.pending, budget)
            if not self._reserve(sequence, count):
                self._release(sequence)
                break
            self.waiting.popleft()
            self.running.append(sequence)
            if sequence.first_scheduled is None:
                sequence.first_scheduled = now
            if count:
                works.append(Work(sequence, sequence.computed, count))
            budget -= count
        return works

    def _reuse_prefix(self, sequence: Sequence) -> None:
        """Hold the cached pages of the longest known prefix; at least one token is always computed."""
        size = self._limits.page_size
        hashes = page_hashes(sequence.tokens, size)
        usable = (len(sequence.tokens) - 1) // size
        pages = self.pool.find(hashes[:usable])
        self.pool.hold(pages)
        sequence.pages, sequence.hashes = pages, hashes[: len(pages)]
        sequence.computed = len(pages) * size
        self.prefix_queries += len(sequence.tokens)
        self.prefix_hits += sequence.computed
        if sequence.generated == 0:
            sequence.cached_tokens = sequence.computed

    def _reserve(self, sequence: Sequence, count: int) -> bool:
        """Pages for the next `count` tokens; whether there were enough."""
        size = self._limits.page_size
        needed = -(-(sequence.computed + count) // size) - len(sequence.pages)
        if needed > self.pool.available:
            return False
        if needed > 0:
            sequence.pages += self.pool.allocate(needed)
        return True

    def _register(self, sequence: Sequence) -> None:
        """Make the pages that have just become full findable."""
        size, known = self._limits.page_size, len(sequence.hashes)
        full = sequence.computed // size
        if full > known:
            parent = sequence.hashes[-1] if sequence.hashes else b""
            fresh = page_hashes(sequence.tokens[: full * size], size, parent, known * size)
            sequence.hashes += fresh
            for page, digest in zip(sequence.pages[known:full], fresh, strict=True):
                self.pool.register(page, digest)

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self._release(sequence)
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.pages)
        sequence.pages, sequence.hashes, sequence.computed = [], [], 0

    def _output(self, sequence: Sequence, token: int, finish: Finish | None, first: bool) -> TokenOutput:
        queued = None
        if first and sequence.first_scheduled is not None:
            queued = sequence.first_scheduled - sequence.request.arrival
        return TokenOutput(
            sequence.request.request_id,
            (token,),
            finish.value if finish else None,
            sequence.prompt_tokens,
            sequence.cached_tokens,
            queued,
        )
