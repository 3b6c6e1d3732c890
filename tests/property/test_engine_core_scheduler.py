"""Protects the pool and the scheduler under any order of requests, steps, guesses, deadlines, aborts, failures and pins: nothing
leaks, the KV events tell exactly what is cached, nobody writes to a shared page, a pinned page keeps its content, all finish beside the pins.

PAGEFLEET_MACHINE_STEPS sets how many operations are tried in all (nightly: a million).
"""

from __future__ import annotations

import math
import os
from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.engine.kv_events import View

from pagefleet_engine.core.blocks import page_hashes, root_hash
from pagefleet_engine.core.kv_events import EventBatch, Journal, block_hash, events_of
from pagefleet_engine.core.limits import Limits, pinnable
from pagefleet_engine.core.pins import PinRefused
from pagefleet_engine.core.requests import Batching, EngineRequest, SamplingParams, TokenOutput
from pagefleet_engine.core.scheduler import Scheduler

STEPS = int(os.environ.get("PAGEFLEET_MACHINE_STEPS", "100000"))
PER_RULE, RULES = 100, 10


class Machine(RuleBasedStateMachine):
    """Any engine size; tokens from a tiny vocabulary, so that prefixes are often shared and guesses often right."""

    @initialize(
        page_size=st.sampled_from([1, 2, 4]),
        pages=st.integers(1, 24),
        seqs=st.integers(1, 6),
        budget=st.integers(1, 12),
        chunk=st.integers(1, 12),
        batching=st.sampled_from([Batching.CONTINUOUS] * 4 + [Batching.STATIC]),
        caching=st.booleans(),
        long=st.integers(0, 20),
        longest=st.sampled_from([8, 16, 40]),
        share=st.sampled_from([0.0, 0.25, 1.0]),
    )
    def start(
        self,
        page_size: int,
        pages: int,
        seqs: int,
        budget: int,
        chunk: int,
        batching: Batching,
        caching: bool,
        long: int,
        longest: int,
        share: float,
    ) -> None:
        self.limits = Limits(
            page_size, pages, seqs, budget, longest, 4, batching, frozenset({3}), chunk, caching, long_prompt_tokens=long,
            max_pinned_pages=pinnable(pages, share if caching else 0.0, page_size, longest),
        )  # fmt: skip
        self.journal, self.view = Journal(page_size), View()
        self.scheduler = Scheduler(self.limits, self.journal)
        self.open: dict[str, EngineRequest] = {}
        self.left: dict[str, set[int]] = {}
        self.produced: dict[tuple[str, int], int] = {}
        self.added, self.now = 0, 0.0
        self.copied: list[tuple[int, int]] = []  # pages that are to be copied since the last step
        self.prompts: list[tuple[tuple[int, ...], bytes]] = []  # that may be pinned, with what their hashes begin with
        self.hashes: dict[str, list[bytes]] = {}  # by the name of a pin
        self.found: dict[str, list[int]] = {}  # the pages of each pin

    @rule(seed=st.integers(0, 2**32))
    def operate(self, seed: int) -> None:
        """Many operations for one draw: Hypothesis finds the sizes and shrinks the seed."""
        random = Random(seed)
        for _ in range(PER_RULE):
            self.pin(random)
            match random.randrange(10):
                case 0 | 1 | 2:
                    self.add(random)
                case 3 if self.open:
                    self.abort(random.choice(sorted(self.open)))
                case 4 if random.random() < 0.02:
                    self.start_over()
                case _:
                    self.step(random)

    def add(self, random: Random) -> None:
        if len(self.open) > 12:
            return
        self.added += 1
        request = EngineRequest(
            str(self.added),
            tuple(random.choices((0, 0, 1, 2), k=random.randint(1, 30))),
            SamplingParams(random.randint(1, 10)),
            self.now,
            priority=random.choice((0, 0, 0, 1)),
            n=random.choice((1, 1, 1, 2, 3)),
            cache_salt=random.choice(("", "", "s")),
            deadline=random.choice((None, None, None, self.now + random.randint(1, 30))),
            embed=random.random() < 0.1,
        )
        if self.limits.refusal(request) is None:
            self.scheduler.add(request)
            self.open[request.request_id] = request
            self.left[request.request_id] = {0} if request.embed else set(range(request.n))
            root = root_hash(request.cache_salt, "")
            self.prompts = [*self.prompts[-20:], (request.prompt_token_ids, root)]

    def pin(self, random: Random) -> None:
        """Pin a prompt or end a pin, sometimes. Pages that were found for a pin before must be found still."""
        pins = self.scheduler.pool.pins
        living = pins.late(math.inf)
        for name in living:
            pages = self.scheduler.pool.find(self.hashes[name])
            assert pages[: len(before := self.found.get(name, []))] == before
            self.found[name] = pages
        self.found = {name: self.found[name] for name in living}
        if self.prompts and random.random() < 0.1:
            tokens, root = random.choice(self.prompts)
            name = f"{root!r} {tokens}"
            self.hashes[name] = page_hashes(tokens, self.limits.page_size, root)
            new = [digest for digest in self.hashes[name] if digest not in pins]
            if pins.pages + len(new) <= pins.most:
                self.scheduler.pin(name, tokens, root, self.now + random.choice((5, 50, 500, math.inf)))
            else:
                with pytest.raises(PinRefused):
                    self.scheduler.pin(name, tokens, root, self.now)
        if living and random.random() < 0.05:
            self.scheduler.pool.unpin(random.choice(living))

    def abort(self, request_id: str) -> None:
        assert self.scheduler.abort(request_id)
        del self.open[request_id], self.left[request_id]

    def start_over(self) -> None:
        before, self.scheduler = self.scheduler, Scheduler(self.limits, self.journal)
        self.journal.cleared()
        self.found = {}
        self.take(self.scheduler.inherit(before))
        assert all(sequence.first_scheduled is None for sequence in self.scheduler.waiting)

    def step(self, random: Random) -> None:
        self.now += 1.0
        self.take(self.scheduler.expire(self.now))
        for sequence in self.scheduler.running:
            if sequence.pending == 1 and random.random() < 0.5:
                sequence.draft = tuple(random.choices((0, 1), k=random.randint(1, 4)))
        works = self.scheduler.schedule(self.now)
        self.scheduler.check()
        held = {page for sequence in self.scheduler.running for page in sequence.pages}
        for origin, target in self.scheduler.take_copies() if works else ():  # before the step, as on a device
            assert target in held
            assert (origin, target) in self.copied
        assert sum(work.count for work in works) <= self.limits.max_num_batched_tokens
        assert len(self.scheduler.running) <= self.limits.max_num_seqs
        for work in works:
            long = len(work.sequence.tokens) > self.limits.long_prompt_tokens
            most = self.limits.max_chunk_tokens if long else self.limits.max_num_batched_tokens
            assert 0 < work.count <= max(most, work.drafts + 1)
            assert work.start == work.sequence.computed
            assert len(work.tokens) == work.count
            assert len(work.sequence.pages) * self.limits.page_size >= work.start + work.count
            assert work.start + work.count <= self.limits.max_model_len
        # A page that is written has one owner: shared pages are only ever read.
        written = [page for work in works for page in work.sequence.pages[work.start // self.limits.page_size :]]
        assert len(written) == len(set(written))
        results: list[tuple[tuple[int, ...], ...]] = []
        for work in works:
            drawn = random.choices((0, 0, 1, 2, 3), k=work.drafts + 1)
            draft, right = work.sequence.draft, 0
            while right < work.drafts and draft[right] == drawn[right]:
                right += 1
            first = tuple(drawn[: right + 1])
            others = ((random.choice((0, 1, 3)),) for _ in range(work.answers - 1))
            results.append((first, *others) if work.samples else ())
            if work.samples and random.random() < 0.02:
                results[-1] = (*results[-1][:-1], (*results[-1][-1][:-1], random.choice((-1, self.limits.vocab_size))))
        if works and random.random() < 0.02:
            self.take(self.scheduler.fail(random.choice(works).sequence.request_id))
        part = random.randrange(len(works) + 1) if random.random() < 0.1 else len(works)  # computed in two parts
        for begin, end in ((0, part), (part, len(works))):
            self.take(self.scheduler.commit(works[begin:end], results[begin:end]))
        self.copied = self.scheduler.copies[:]
        if random.random() < 0.5:  # after the step, as on the CPU
            self.scheduler.take_copies()
        if random.random() < 0.5:  # a batch has the changes of one step or of several
            self.view.take(msgspec.msgpack.encode(EventBatch(self.now, events_of(self.journal.take()))))
            assert self.view.blocks.keys() == {block_hash(digest) for digest in self.scheduler.pool.known}

    def take(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            request, key = self.open[output.request_id], (output.request_id, output.index)
            assert output.index in self.left[output.request_id]
            self.produced[key] = self.produced.get(key, 0) + len(output.token_ids)
            assert self.produced[key] <= request.sampling.max_tokens
            if output.finish_reason is not None:
                self.left[key[0]].discard(key[1])
                if not self.left[key[0]]:
                    del self.left[key[0]], self.open[key[0]]

    @invariant()
    def nothing_leaks(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check()
        known = {sequence.request_id for sequence in [*self.scheduler.running, *self.scheduler.waiting]}
        assert known == set(self.open)

    def teardown(self) -> None:
        """Whatever happened before, everything finishes beside the pins, and with the last pin every page comes back."""
        if not hasattr(self, "scheduler"):
            return
        random = Random(0)
        for _ in range(6000):
            if not self.open:
                break
            self.step(random)
        assert not self.open
        self.scheduler.expire(math.inf)
        assert self.scheduler.pool.available == self.scheduler.pool.total


TestScheduler = Machine.TestCase
TestScheduler.settings = settings(
    max_examples=max(1, STEPS // (PER_RULE * RULES)), stateful_step_count=RULES,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
