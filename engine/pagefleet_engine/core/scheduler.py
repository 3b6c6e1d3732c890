"""Decides what each step computes: one token budget for prefill and decode together, by priority, then arrival.

Running sequences go first: one token each, with draft tokens where there are any, or the next chunk of a
prompt. A chunk never takes the budget of those behind it, and is capped, so that a long prompt neither stops the
streams nor the short prompts beside it. What is left goes to waiting ones. When pages run out the last running
sequence is preempted: its pages are released and it is computed again later (recompute; Kwon et al., SOSP 2023,
section 4.5), usually helped by the prefix cache. Answers to one prompt share its full pages; a page that is not full
is copied for each (copy on write: each writes to it in the next step).
Static batching is here for comparisons only: a batch runs to completion before the next is admitted.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from itertools import takewhile
from operator import attrgetter

from pagefleet_engine.core.blocks import PageError, PagePool, page_hashes, root_hash
from pagefleet_engine.core.kv_events import Journal
from pagefleet_engine.core.limits import Limits
from pagefleet_engine.core.requests import Batching, EngineRequest, Finish, TokenOutput
from pagefleet_engine.core.sequence import TokenSequence, pages_to_come
from pagefleet_engine.core.work import Results, Work, ended, output_of

_rank = attrgetter("rank")


class Scheduler:
    """Owns the sequences. `schedule` and `commit` alternate; nothing here knows tensors or clocks.

    `waiting` and `running` are in the order of service. `prefix_queries` and `prefix_hits` count prompt tokens at their first
    admission. `journal` learns what the prefix cache takes in and gives up. `copies` are pages to be copied, (from, to), before
    the next step: until they are taken nobody else gets the pages.
    """

    def __init__(self, limits: Limits, journal: Journal | None = None) -> None:
        self.limits, self.pool = limits, PagePool(limits.pages, limits.max_pinned_pages, journal)
        self.waiting: list[TokenSequence] = []
        self.running: list[TokenSequence] = []
        self.copies: list[tuple[int, int]] = []
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.drafted = 0
        self.accepted = 0
        self._by_id: dict[str, list[TokenSequence]] = {}
        self._added = 0

    def add(self, request: EngineRequest, scope: str = "") -> None:
        """Queue a request. Raises ValueError when it could never be served, or its id is in use.

        Prefixes are shared within one `scope` and cache salt: the scope names the adapter and its version.
        """
        refusal = self.limits.refusal(request)
        if refusal is None and request.request_id in self._by_id:
            refusal = f"the request id {request.request_id!r} is in use"
        if refusal is not None:
            raise ValueError(refusal)
        root = root_hash(request.cache_salt, scope)
        sequence = TokenSequence(request, self._added, root, list(request.prompt_token_ids))
        self._added += 1
        self._by_id[request.request_id] = [sequence]
        insort(self.waiting, sequence, key=_rank)

    def abort(self, request_id: str, index: int | None = None) -> tuple[int, ...]:
        """Forget a request, or one answer of it: the indexes of the answers that were given up, none if it is unknown."""
        sequences = [one for one in self._by_id.get(request_id, []) if index in (None, one.index)]
        for sequence in sequences:
            self._remove(sequence)
        return tuple(sequence.index for sequence in sequences)

    def expire(self, now: float) -> list[TokenOutput]:
        """End the requests whose deadline has passed, and the pins. `now` is seconds of the clock of the requests' arrival."""
        for name in self.pool.pins.late(now):
            self.pool.unpin(name)
        late = [sequence for sequence in (*self.running, *self.waiting) if sequence.late(now)]
        outputs = []
        for sequence in late:
            outputs += self._end(sequence, Finish.DEADLINE)
        return outputs

    def pin(self, name: str, tokens: Sequence[int], root: bytes, until: float) -> None:
        """Keep the full pages of a prefix, once they are computed, until a time. Raises PinRefused."""
        self.pool.pin(name, page_hashes(tokens, self.limits.page_size, root), until)

    def fail(self, request_id: str) -> list[TokenOutput]:
        """End a request that cannot be computed, with all its answers."""
        return [output for one in self._by_id.get(request_id, []) for output in self._end(one, Finish.ERROR)]

    def inherit(self, other: Scheduler) -> list[TokenOutput]:
        """Take over the pins of `other`, and its requests that no step has computed anything of; end the rest."""
        self.pool.pins = other.pool.pins
        outputs: list[TokenOutput] = []
        for sequence in (*other.running, *other.waiting):
            if sequence.first_scheduled is not None:
                outputs += ended(sequence, Finish.ERROR)
                continue
            self._by_id[sequence.request_id] = [sequence]
            insort(self.waiting, sequence, key=_rank)
        self._added = other._added
        return outputs

    def schedule(self, now: float) -> list[Work]:
        """The next step's work, its pages allocated; empty when there is nothing to do."""
        budget = self.limits.max_num_batched_tokens
        work_items: list[Work] = []
        self._make_seat()
        before = self.preemptions
        line = list(self.running)
        for place, sequence in enumerate(line):
            behind = len(line) - place - 1
            allowed = min(budget, max(1, budget - behind))  # a token is left for each of them
            if not sequence.runs or sequence.closing or allowed == 0:
                continue
            count, drafts = self._share(sequence, allowed)
            if drafts and not self._reserve(sequence, count, spare=len(line) - 1):
                count, drafts = count - drafts, 0
            if self._make_room(sequence, count):
                work_items.append(Work(sequence, sequence.computed, count, drafts))
                budget -= count
        # Victims come last in the order of service, so none of them has work in this step yet.
        if self.preemptions == before and (self.limits.batching is Batching.CONTINUOUS or not self.running):
            work_items += self._admit(budget, now)
        return work_items

    def commit(self, work_items: list[Work], results: Results) -> list[TokenOutput]:
        """Take a step's results, one for each work: empty for those that do not sample.

        A request whose token is none of the vocabulary ends with an error, and that token is not taken.
        """
        outputs: list[TokenOutput] = []
        for work, answers in zip(work_items, results, strict=True):
            sequence = work.sequence
            if not sequence.runs:
                continue  # aborted while the step ran
            if not work.ends:
                sequence.computed += work.count
                self._register(sequence)
            elif not all(self.limits.has_token(token) for tokens in answers for token in tokens):
                outputs += self.fail(sequence.request_id)
            elif sequence.request.embed:
                self._remove(sequence)
                outputs.append(output_of(sequence, (), Finish.STOP, first=True))
            else:
                outputs += self._take(work, answers)
        return outputs

    def take_copies(self) -> list[tuple[int, int]]:
        """Return the pages to copy before the next step. The pages that are copied may be reused from that step on."""
        copies, self.copies = self.copies, []
        self.pool.release([origin for origin, _ in copies])
        return copies

    def check(self) -> None:
        """Raises PageError unless blank + cached + kept + held = total and exactly the running sequences hold pages."""
        self.pool.check()
        held = {page for sequence in self.running for page in sequence.pages} | {origin for origin, _ in self.copies}
        if (known := self.pool.total - self.pool.available - self.pool.kept) != len(held):
            raise PageError(f"{known} pages are held, {len(held)} have a sequence")
        if (owners := len(self.copies) + sum(len(one.pages) for one in self.running)) != self.pool.owners:
            raise PageError(f"the pool counts {self.pool.owners} owners, the sequences hold {owners} pages")

    def _take(self, work: Work, answers: tuple[tuple[int, ...], ...]) -> list[TokenOutput]:
        sequence, first = work.sequence, work.sequence.generated == 0
        # The tokens up to the first rejected draft token count as computed. The last returned one is not computed yet.
        sequence.computed += work.count - work.drafts + len(answers[0]) - 1
        self.drafted += work.drafts
        self.accepted += len(answers[0]) - 1
        children = [sequence.fork(index) for index in range(1, len(answers))]
        outputs = [self._append(sequence, answers[0], first)]
        for child, (token,) in zip(children, answers[1:], strict=True):
            finish = child.append(token, self.limits.eos_token_ids, self.limits.max_model_len)
            outputs.append(output_of(child, (token,), finish, first))
            if finish is None:
                self._by_id[child.request_id] = [*self._by_id.get(child.request_id, []), child]
                self._seat(child, sequence)
        if outputs[0].finish_reason is not None:
            self._remove(sequence)
        return outputs

    def _append(self, sequence: TokenSequence, tokens: tuple[int, ...], first: bool) -> TokenOutput:
        finish, taken = None, 0
        for token in tokens:
            taken += 1
            finish = sequence.append(token, self.limits.eos_token_ids, self.limits.max_model_len)
            if finish is not None:
                break
        sequence.draft = ()
        sequence.computed = min(sequence.computed, len(sequence.tokens))
        self._register(sequence)
        return output_of(sequence, tokens[:taken], finish, first)

    def _seat(self, child: TokenSequence, parent: TokenSequence) -> None:
        """Let a new answer run on its parent's pages, or wait where there is no seat or page for it."""
        computed, size = parent.prompt_tokens, self.limits.page_size
        full = computed // size
        if len(self.running) >= self.limits.max_num_seqs or (computed % size and self.pool.available == 0):
            insort(self.waiting, child, key=_rank)
            return
        self.pool.hold(parent.pages[: -(-computed // size)])  # the last one, if it is not full, until it is copied
        child.pages, child.computed, child.registered = parent.pages[:full], computed, full
        if computed % size:
            child.pages += self.pool.allocate(1)
            self.copies.append((parent.pages[full], child.pages[full]))
        child.runs = True
        insort(self.running, child, key=_rank)

    def _end(self, sequence: TokenSequence, finish: Finish) -> list[TokenOutput]:
        self._remove(sequence)
        return ended(sequence, finish)

    def _remove(self, sequence: TokenSequence) -> None:
        """Forget one answer, and its request with the last."""
        if sequence.runs:
            self._release(sequence)
            self.running.remove(sequence)
            sequence.runs = False
        else:
            self.waiting.remove(sequence)
        left = [other for other in self._by_id[sequence.request_id] if other is not sequence]
        if left:
            self._by_id[sequence.request_id] = left
        else:
            del self._by_id[sequence.request_id]

    def _share(self, sequence: TokenSequence, allowed: int) -> tuple[int, int]:
        """Return how many tokens a running sequence computes, and how many of them are draft tokens."""
        if sequence.pending > 1:
            return min(sequence.pending, self.limits.most_of(len(sequence.tokens)), allowed), 0
        room = self.limits.max_model_len - len(sequence.tokens) - 1
        drafts = max(0, min(len(sequence.draft), allowed - 1, room))
        return 1 + drafts, drafts

    def _make_seat(self) -> None:
        """Preempt the last running sequence when all seats are taken and one of a higher priority waits for nothing but a seat."""
        full = len(self.running) >= self.limits.max_num_seqs
        urgent = [one for one in self.waiting if full and one.request.priority > self.running[-1].request.priority]
        coming = pages_to_come(self.running if urgent else ())
        for sequence in urgent:
            if not self._waits_for_page(sequence, coming):
                self._release(sequence)
                self._preempt(self.running[-1])
                self.preemptions += 1
                return

    def _waits_for_page(self, sequence: TokenSequence, coming: dict[bytes, int]) -> bool:
        """Hold a waiting sequence's prefix, unless the page that it needs next comes from no lower a priority: soon that costs nothing."""
        least = sequence.request.priority
        if coming.get(sequence.awaited, least - 1) >= least and not self.pool.find([sequence.awaited]):
            return True
        self._hold_prefix(sequence)
        awaited = list(takewhile(lambda digest: coming.get(digest, least - 1) >= least, sequence.unregistered))
        sequence.awaited = awaited[-1] if awaited else b""
        if awaited:
            self._release(sequence)
        return bool(awaited)

    def _admit(self, budget: int, now: float) -> list[Work]:
        work_items = []
        # A static batch is complete from its start. A sequence without budget in this step gets it in the next ones.
        static = self.limits.batching is Batching.STATIC
        coming, place = {} if static else pages_to_come(self.running), 0
        while place < len(self.waiting) and (budget > 0 or static) and len(self.running) < self.limits.max_num_seqs:
            sequence = self.waiting[place]
            if self._waits_for_page(sequence, coming):
                place += 1
                continue
            count = min(sequence.pending, self.limits.most_of(len(sequence.tokens)), budget)
            # Each running sequence has a spare page. Without them the new one would be preempted again within a few tokens.
            if not self._reserve(sequence, count, spare=len(self.running)):
                self._release(sequence)
                break
            del self.waiting[place]
            insort(self.running, sequence, key=_rank)
            sequence.runs = True
            coming |= {} if static else dict.fromkeys(sequence.unregistered, sequence.request.priority)
            self._count_admission(sequence, now)
            if count:
                work_items.append(Work(sequence, sequence.computed, count))
            budget -= count
        return work_items

    def _count_admission(self, sequence: TokenSequence, now: float) -> None:
        if sequence.first_scheduled is not None:
            return  # preempted before: its own pages would count as hits
        sequence.first_scheduled = now
        sequence.cached_tokens = sequence.computed
        self.prefix_queries += sequence.prompt_tokens
        self.prefix_hits += sequence.computed

    def _hold_prefix(self, sequence: TokenSequence) -> None:
        """Hold the cached pages of the longest known prefix; at least one token is always computed."""
        if not self.limits.prefix_caching or sequence.whole:
            return
        size = self.limits.page_size
        self._hash(sequence, len(sequence.tokens) // size)
        pages = self.pool.find(sequence.hashes[: (len(sequence.tokens) - 1) // size])
        self.pool.hold(pages)
        sequence.pages, sequence.registered = pages, len(pages)
        sequence.computed = len(pages) * size

    def _reserve(self, sequence: TokenSequence, count: int, spare: int = 0) -> bool:
        """Pages for the next `count` tokens, leaving `spare` available; whether there were enough."""
        needed = -(-(sequence.computed + count) // self.limits.page_size) - len(sequence.pages)
        if needed + spare > self.pool.available:
            return False
        sequence.pages += self.pool.allocate(max(0, needed))
        return True

    def _make_room(self, sequence: TokenSequence, count: int) -> bool:
        """Reserve, preempting from the end of the line; False when that reached `sequence` itself."""
        while not self._reserve(sequence, count):
            victim = self.running[-1]
            self._preempt(victim)
            self.preemptions += 1
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: TokenSequence) -> None:
        self.running.remove(victim)
        victim.runs, victim.draft = False, ()
        self._release(victim)
        insort(self.waiting, victim, key=_rank)

    def _hash(self, sequence: TokenSequence, full: int) -> None:
        """Make sure that the hashes of the first `full` pages are known."""
        known, size = len(sequence.hashes), self.limits.page_size
        if full > known:
            parent = sequence.hashes[-1] if sequence.hashes else sequence.root
            sequence.hashes += page_hashes(sequence.tokens[: full * size], size, parent, known * size)

    def _register(self, sequence: TokenSequence) -> None:
        """Make the pages that have just become full findable."""
        if not self.limits.prefix_caching:
            return
        full = sequence.computed // self.limits.page_size
        self._hash(sequence, full)
        for index in range(sequence.registered, full):
            new = self.pool.register(sequence.pages[index], sequence.hashes[index])
            if new and self.pool.journal is not None:
                self.pool.journal.stored(sequence, index)
        sequence.registered = max(sequence.registered, full)

    def _release(self, sequence: TokenSequence) -> None:
        dropped = [copy for copy in self.copies if copy[1] in sequence.pages]
        self.copies = [copy for copy in self.copies if copy not in dropped]
        self.pool.release([*(origin for origin, _ in dropped), *sequence.pages])
        sequence.pages, sequence.registered, sequence.computed = [], 0, 0
