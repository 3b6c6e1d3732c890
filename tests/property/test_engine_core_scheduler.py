"""Protects the pool and the scheduler under any order of requests, steps and aborts: nothing leaks, all finish."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagefleet_engine.core.limits import Limits
from pagefleet_engine.core.requests import Batching, EngineRequest, SamplingParams
from pagefleet_engine.core.scheduler import Scheduler


class Machine(RuleBasedStateMachine):
    """Any engine size; tokens from a tiny vocabulary, so that prefixes are often shared."""

    @initialize(
        page_size=st.sampled_from([1, 2, 4]),
        pages=st.integers(1, 24),
        seqs=st.integers(1, 5),
        budget=st.integers(1, 12),
        batching=st.sampled_from(Batching),
    )
    def start(self, page_size: int, pages: int, seqs: int, budget: int, batching: Batching) -> None:
        self.limits = Limits(page_size, pages, seqs, budget, 40, 4, batching, frozenset({3}))
        self.scheduler = Scheduler(self.limits)
        self.open: dict[str, EngineRequest] = {}
        self.produced: dict[str, int] = {}
        self.added = 0

    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=30),
        most=st.integers(1, 10),
        priority=st.sampled_from([0, 0, 0, 1]),
    )
    def add(self, prompt: list[int], most: int, priority: int) -> None:
        self.added += 1
        request = EngineRequest(str(self.added), tuple(prompt), SamplingParams(most), 0.0, priority)
        if self.limits.refusal(request) is None:
            self.scheduler.add(request)
            self.open[request.request_id] = request
            self.produced[request.request_id] = 0

    @precondition(lambda self: bool(self.open))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.open)))
        assert self.scheduler.abort(request_id)
        del self.open[request_id]

    @rule(tokens=st.lists(st.sampled_from([0, 0, 1, 2, 3]), min_size=1, max_size=4))
    def step(self, tokens: list[int]) -> None:
        works = self.scheduler.schedule(0.0)
        self.scheduler.check()
        assert sum(work.count for work in works) <= self.limits.max_num_batched_tokens
        assert len(self.scheduler.running) <= self.limits.max_num_seqs
        for work in works:
            assert work.count > 0
            assert work.start == work.sequence.computed
            assert len(work.sequence.pages) * self.limits.page_size >= work.start + work.count
        # A page that is written has one owner: shared pages are only ever read.
        written = [page for work in works for page in work.sequence.pages[work.start // self.limits.page_size :]]
        assert len(written) == len(set(written))
        sampled = {
            work.sequence.request_id: tokens[index % len(tokens)] for index, work in enumerate(works) if work.samples
        }
        for output in self.scheduler.commit(works, sampled):
            self.produced[output.request_id] += len(output.token_ids)
            if output.finish_reason is not None:
                request = self.open.pop(output.request_id)
                assert self.produced[output.request_id] <= request.sampling.max_tokens

    @invariant()
    def nothing_leaks(self) -> None:
        self.scheduler.check()
        known = {sequence.request_id for sequence in [*self.scheduler.running, *self.scheduler.waiting]}
        assert known == set(self.open)

    def teardown(self) -> None:
        """Whatever happened before, everything finishes and every page comes back."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(4000):
            if not self.open:
                break
            self.step([0])
        assert not self.open
        assert self.scheduler.pool.available == self.scheduler.pool.total


TestScheduler = Machine.TestCase
TestScheduler.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
