"""Protects the KV pages: free + cached + held = total at every step, owners are counted, nothing leaks, and every
request gets exactly the tokens it asked for, whatever is added, aborted, preempted or shared."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pagefleet_engine.core.blocks import OutOfPages, PageError, PagePool, page_hashes
from pagefleet_engine.core.limits import Limits
from pagefleet_engine.core.requests import Batching, EngineRequest, SamplingParams
from pagefleet_engine.core.scheduler import Scheduler

PAGE = 4
# Few prefixes: requests share pages often.
PREFIXES = [tuple(range(10)), tuple(range(9, -1, -1)), (7,) * 9]


class Pages(RuleBasedStateMachine):
    @initialize(
        total=st.integers(6, 24),
        seqs=st.integers(1, 6),
        budget=st.integers(6, 40),
        batching=st.sampled_from(list(Batching)),
    )
    def start(self, total: int, seqs: int, budget: int, batching: Batching) -> None:
        limits = Limits(PAGE, total, seqs, budget, 64, 100, batching, frozenset({99}))
        self.scheduler = Scheduler(limits)
        self.capacity = total * PAGE
        self.wanted: dict[str, int] = {}
        self.got: Counter[str] = Counter()
        self.count = 0

    @rule(prefix=st.sampled_from(PREFIXES), tail=st.lists(st.integers(0, 50), max_size=8), tokens=st.integers(1, 12))
    def add(self, prefix: tuple[int, ...], tail: list[int], tokens: int) -> None:
        prompt = (*prefix, *tail)
        if len(prompt) + tokens > self.capacity:
            return
        self.count += 1
        name = str(self.count)
        self.scheduler.add(EngineRequest(name, prompt, SamplingParams(tokens, ignore_eos=True), 0.0))
        self.wanted[name] = tokens

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.wanted:
            name = data.draw(st.sampled_from(sorted(self.wanted)))
            assert self.scheduler.abort(name)
            del self.wanted[name]

    @rule()
    def step(self) -> None:
        works = self.scheduler.schedule(0.0)
        assert bool(works) == bool(self.scheduler.running), "whoever runs makes progress"
        assert sum(work.count for work in works) <= self.scheduler.limits.max_num_batched_tokens
        sampled = {w.sequence.request.request_id: (len(w.sequence.tokens) * 7) % 50 for w in works if w.samples}
        for output in self.scheduler.commit(works, sampled):
            self.got[output.request_id] += len(output.token_ids)
            if output.finish_reason:
                assert self.got[output.request_id] == self.wanted.pop(output.request_id)

    @invariant()
    def whole(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        pool = self.scheduler.pool
        self.scheduler.check()
        owners = Counter(page for sequence in self.scheduler.running for page in sequence.pages)
        assert {page: count for page, count in enumerate(pool._owners) if count} == dict(owners)
        for sequence in self.scheduler.running:
            assert sequence.computed <= len(sequence.pages) * PAGE
        assert {s.request.request_id for s in (*self.scheduler.running, *self.scheduler.waiting)} == set(self.wanted)

    def teardown(self) -> None:
        if hasattr(self, "scheduler"):
            for _ in range(3000):
                if not self.wanted:
                    break
                self.step()
            assert not self.wanted, "every request ends"
            self.scheduler.check()
            assert self.scheduler.pool.available == self.scheduler.pool.total


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)


def test_a_double_free_raises() -> None:
    pool = PagePool(4)
    pages = pool.allocate(2)
    pool.release(pages)
    with pytest.raises(PageError):
        pool.release(pages)


def test_blank_pages_cannot_be_held_and_too_many_not_allocated() -> None:
    pool = PagePool(2)
    with pytest.raises(PageError):
        pool.hold([0])
    with pytest.raises(OutOfPages):
        pool.allocate(3)
    assert pool.available == 2


def test_the_oldest_cached_page_is_reused_first_and_the_head_of_a_prefix_last() -> None:
    pool = PagePool(3)
    pages = pool.allocate(3)
    hashes = page_hashes(range(12), PAGE)
    for page, digest in zip(pages, hashes, strict=True):
        pool.register(page, digest)
    pool.release(pages)
    assert pool.find(hashes) == pages
    assert pool.allocate(1) == [pages[-1]]
    assert pool.find(hashes) == pages[:-1]


def test_a_hash_stands_for_everything_before_it() -> None:
    assert page_hashes([1] * 8, PAGE)[0] != page_hashes([1] * 8, PAGE)[1]
    assert page_hashes([2, 1, 1, 1, 1, 1, 1, 1], PAGE)[1] != page_hashes([1] * 8, PAGE)[1]
