"""Protects what a step computes: the budget, chunks, the order of service, preemption, prefix reuse, static batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagefleet_engine.core.limits import Limits
from pagefleet_engine.core.requests import Batching, EngineRequest, SamplingParams, TokenOutput
from pagefleet_engine.core.scheduler import Scheduler

EOS = 99
LIMITS = Limits(
    page_size=4, pages=64, max_num_seqs=8, max_num_batched_tokens=16, max_model_len=128, vocab_size=1000,
    batching=Batching.CONTINUOUS, eos_token_ids=frozenset({EOS}),
)  # fmt: skip


def request(name: str, prompt: int, most: int = 4, *, first: int = 0, priority: int = 0) -> EngineRequest:
    tokens = tuple((first or 100 * (ord(name[0]) - 96)) % 900 + index for index in range(prompt))
    return EngineRequest(name, tokens, SamplingParams(most), arrival=1.0, priority=priority)


def step(scheduler: Scheduler, token: int = 5, now: float = 2.0) -> tuple[dict[str, int], list[TokenOutput]]:
    """One step in which everything samples `token`: {request: tokens computed}, and the outputs."""
    works = scheduler.schedule(now)
    scheduler.check()
    counts = {work.sequence.request_id: work.count for work in works}
    outputs = scheduler.commit(works, {work.sequence.request_id: token for work in works if work.samples})
    scheduler.check()
    return counts, outputs


def run(scheduler: Scheduler, steps: int = 500) -> list[TokenOutput]:
    outputs: list[TokenOutput] = []
    for _ in range(steps):
        if not (scheduler.waiting or scheduler.running):
            return outputs
        outputs += step(scheduler)[1]
    raise AssertionError("the scheduler makes no progress")


def test_a_long_prompt_is_computed_in_chunks_beside_decodes() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.add(request("a", 3, 9))
    assert step(scheduler)[0] == {"a": 3}
    scheduler.add(request("b", 40))
    assert step(scheduler)[0] == {"a": 1, "b": 15}
    assert step(scheduler)[0] == {"a": 1, "b": 15}
    counts, outputs = step(scheduler)
    assert counts == {"a": 1, "b": 10}
    assert [output.request_id for output in outputs] == ["a", "b"]


def test_outputs_tell_queueing_once_and_why_a_request_ended() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.add(request("a", 3, 2))
    _, [first] = step(scheduler, now=4.5)
    assert first == TokenOutput("a", (5,), None, 3, 0, 3.5)
    _, [last] = step(scheduler)
    assert last == TokenOutput("a", (5,), "length", 3, 0, None)
    assert scheduler.pool.available == scheduler.pool.total


def test_end_of_text_stop_tokens_and_the_models_length_end_a_request() -> None:
    for token, sampling, reason in (
        (EOS, SamplingParams(9), "stop"),
        (EOS, SamplingParams(9, ignore_eos=True), None),
        (7, SamplingParams(9, stop_token_ids=(7,)), "stop"),
        (EOS, SamplingParams(9, stop_token_ids=(EOS,), ignore_eos=True), "stop"),
        (8, SamplingParams(1), "length"),
    ):
        scheduler = Scheduler(LIMITS)
        scheduler.add(replace(request("a", 3), sampling=sampling))
        assert step(scheduler, token)[1][0].finish_reason == reason
    scheduler = Scheduler(replace(LIMITS, max_model_len=6))
    scheduler.add(request("a", 3, 100))
    assert [output.finish_reason for output in run(scheduler)] == [None, None, "length"]


def test_the_newest_is_preempted_and_everyone_still_finishes() -> None:
    scheduler = Scheduler(replace(LIMITS, pages=6))
    scheduler.add(request("a", 7, 12))
    scheduler.add(request("b", 7, 12))
    outputs = run(scheduler)
    assert scheduler.preemptions > 0
    assert [output.request_id for output in outputs if output.finish_reason] == ["a", "b"]
    assert sum(len(output.token_ids) for output in outputs) == 24
    assert [output.queue_seconds for output in outputs].count(1.0) == 2


def test_a_newcomer_is_not_admitted_into_the_last_pages_that_running_ones_grow_into() -> None:
    scheduler = Scheduler(replace(LIMITS, pages=3))
    scheduler.add(request("a", 4, 8))
    step(scheduler)
    scheduler.add(request("b", 8, 2))
    step(scheduler)
    assert [sequence.request_id for sequence in scheduler.running] == ["a"]
    run(scheduler)
    assert scheduler.preemptions == 0


def test_a_known_prefix_is_not_computed_again() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.add(request("a", 12, first=10))
    run(scheduler)
    scheduler.add(request("b", 12, first=10))
    counts, outputs = step(scheduler)
    # The last page is computed again: a step must compute at least one token to sample from.
    assert (counts, outputs[0].cached_tokens) == ({"b": 4}, 8)
    assert (scheduler.prefix_queries, scheduler.prefix_hits) == (24, 8)


def test_waiting_for_pages_is_not_counted_as_prefix_queries() -> None:
    scheduler = Scheduler(replace(LIMITS, pages=4))
    scheduler.add(request("a", 8, 8))
    step(scheduler)
    scheduler.add(request("b", 12, 2))
    for _ in range(3):
        step(scheduler)
    assert scheduler.prefix_queries == 8


def test_a_higher_priority_overtakes_and_is_preempted_last() -> None:
    scheduler = Scheduler(replace(LIMITS, max_num_seqs=1))
    for name, priority in (("a", 0), ("b", 0), ("c", 1)):
        scheduler.add(request(name, 4, 1, priority=priority))
    assert [output.request_id for output in run(scheduler)] == ["c", "a", "b"]
    scheduler = Scheduler(replace(LIMITS, pages=6))
    scheduler.add(request("a", 7, 12))
    scheduler.add(request("b", 7, 12, priority=1))
    assert [output.request_id for output in run(scheduler) if output.finish_reason] == ["b", "a"]


def test_a_static_batch_runs_to_completion_before_the_next_is_admitted() -> None:
    scheduler = Scheduler(replace(LIMITS, batching=Batching.STATIC, max_num_seqs=2))
    for name, most in (("a", 2), ("b", 5), ("c", 1)):
        scheduler.add(request(name, 4, most))
    seen = [set(step(scheduler)[0]) for _ in range(6)]
    assert seen == [{"a", "b"}, {"a", "b"}, {"b"}, {"b"}, {"b"}, {"c"}]


def test_a_static_batch_is_whole_even_when_the_budget_is_not_enough_for_its_first_step() -> None:
    scheduler = Scheduler(replace(LIMITS, batching=Batching.STATIC, max_num_seqs=2))
    scheduler.add(request("a", 20, 1))
    scheduler.add(request("b", 4, 1))
    step(scheduler)
    assert len(scheduler.running) == 2
    assert [output.request_id for output in run(scheduler)] == ["a", "b"]


def test_an_aborted_request_leaves_nothing_behind() -> None:
    scheduler = Scheduler(replace(LIMITS, max_num_seqs=1))
    scheduler.add(request("a", 6, 9))
    scheduler.add(request("b", 6, 9))
    works = scheduler.schedule(2.0)
    assert scheduler.abort("a")
    assert scheduler.commit(works, {"a": 5}) == []
    assert scheduler.abort("b")
    assert not scheduler.abort("b")
    assert (scheduler.running, scheduler.waiting) == ([], [])
    assert scheduler.pool.available == scheduler.pool.total
    scheduler.add(request("a", 6, 1))  # its id is free again
    assert len(run(scheduler)) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_token_ids": ()}, "1 to 127 tokens, not 0"),
        ({"prompt_token_ids": (1,) * 128}, "1 to 127 tokens, not 128"),
        ({"prompt_token_ids": (1, 1000)}, "token ids are 0 to 999"),
        ({"prompt_token_ids": (-1,)}, "token ids are 0 to 999"),
        ({"sampling": SamplingParams(0)}, "max_tokens must be at least 1"),
        ({"sampling": SamplingParams(1, temperature=float("nan"))}, "temperature"),
        ({"sampling": SamplingParams(62)}, "more than the 64 tokens of the KV cache"),
        ({"request_id": "used"}, "in use"),
    ],
)
def test_what_could_never_be_served_is_refused(change: dict[str, object], message: str) -> None:
    scheduler = Scheduler(replace(LIMITS, pages=16))
    scheduler.add(request("used", 3))
    with pytest.raises(ValueError, match=message):
        scheduler.add(replace(request("a", 3), **change))  # type: ignore[arg-type]


def test_sizes_with_which_nothing_could_run_are_refused() -> None:
    for name, value in (("pages", 0), ("page_size", 0), ("max_num_seqs", 0), ("max_model_len", 1)):
        with pytest.raises(ValueError, match=name):
            replace(LIMITS, **{name: value})
