"""Protects what a step computes: the budget, chunks, the order of service, preemption, prefix reuse, static batches."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from support.engine.scheduler_steps import EOS, LIMITS, request, results, run, step

from pagefleet_engine.core.requests import Batching, EngineRequest, Policy, SamplingParams, TokenOutput
from pagefleet_engine.core.scheduler import Scheduler


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


def test_who_needs_a_page_that_is_being_computed_waits_for_it() -> None:
    scheduler = Scheduler(replace(LIMITS, max_chunk_tokens=8))
    for name in ("a", "b", "c"):
        scheduler.add(request(name, 20, 1, first=0 if name == "c" else 10))
    assert step(scheduler)[0] == {"a": 8, "c": 8}
    assert step(scheduler)[0] == {"a": 8, "c": 8}
    # What "a" had computed before is known now, its last page is not.
    assert step(scheduler)[0] == {"a": 4, "c": 4}
    assert step(scheduler)[0] == {"b": 4}
    scheduler.add(request("d", 20, 9, first=30))
    scheduler.add(request("e", 20, 1, first=30))
    step(scheduler)
    scheduler.abort("d")
    assert step(scheduler)[0] == {"e": 8}


def test_many_that_wait_for_the_pages_of_one_document_cost_no_time() -> None:
    """They are looked at again when its last common page is there, or does not come any more. The bound is for a busy machine: it took
    ten times as long."""
    scheduler = Scheduler(
        replace(
            LIMITS, pages=4000, max_num_seqs=99, max_num_batched_tokens=999, max_chunk_tokens=400, max_model_len=9999
        )
    )
    document = tuple(range(900)) * 10
    for index in range(150):
        scheduler.add(EngineRequest(str(index), (*document, index, index), SamplingParams(1), 1.0))
    for _ in range(13):
        step(scheduler)
    times = []
    for _ in range(7):
        before = time.thread_time()
        assert step(scheduler)[0] == {"0": 400}
        times.append(time.thread_time() - before)
    assert sorted(times)[3] < 0.02, times
    scheduler.abort("0")
    assert step(scheduler)[0] == {"1": 400}
    assert scheduler.running[0].cached_tokens == 8000


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
    batches = [set(step(scheduler)[0]) for _ in range(6)]
    assert batches == [{"a", "b"}, {"a", "b"}, {"b"}, {"b"}, {"b"}, {"c"}]


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
    assert scheduler.commit(works, results(works, 5)) == []
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
        ({"priority": 1}, "priority 1 needs the scheduling policy priority"),
    ],
)
def test_what_could_never_be_served_is_refused(change: dict[str, object], message: str) -> None:
    scheduler = Scheduler(replace(LIMITS, pages=16, policy=Policy.FCFS))
    scheduler.add(request("used", 3))
    with pytest.raises(ValueError, match=message):
        scheduler.add(replace(request("a", 3), **change))  # type: ignore[arg-type]


def test_a_long_prompt_leaves_budget_to_those_beside_it() -> None:
    scheduler = Scheduler(replace(LIMITS, max_chunk_tokens=10))
    scheduler.add(request("a", 40))
    scheduler.add(request("b", 6))
    assert step(scheduler)[0] == {"a": 10, "b": 6}
    assert step(scheduler)[0] == {"a": 10, "b": 1}
    # What the step has room for is not long.
    scheduler = Scheduler(replace(LIMITS, max_chunk_tokens=10, long_prompt_tokens=14))
    scheduler.add(request("a", 14))
    scheduler.add(request("b", 15))
    assert step(scheduler)[0] == {"a": 14, "b": 2}
    assert step(scheduler)[0] == {"a": 1, "b": 10}
    assert step(scheduler)[0] == {"a": 1, "b": 3}
    # A prompt that came first never takes the token of a stream behind it.
    scheduler = Scheduler(replace(LIMITS, max_num_batched_tokens=8))
    scheduler.add(request("a", 4, 9))
    step(scheduler)
    scheduler.add(request("c", 30, priority=1))
    for _ in range(3):
        counts = step(scheduler)[0]
        assert counts == {"c": 7, "a": 1}


def test_a_higher_priority_takes_a_seat() -> None:
    scheduler = Scheduler(replace(LIMITS, max_num_seqs=2))
    for name in ("a", "b"):
        scheduler.add(request(name, 4, 9))
    step(scheduler)
    scheduler.add(request("c", 4, 1, priority=1))
    assert step(scheduler)[0] == {"a": 1, "c": 4}
    assert [output.request_id for output in run(scheduler) if output.finish_reason] == ["a", "b"]


def test_a_higher_priority_that_waits_for_a_page_takes_no_seat() -> None:
    """The page is being computed, so nobody would get the seat but who has just lost it: in every step of a long document."""
    scheduler = Scheduler(replace(LIMITS, max_num_seqs=2, max_chunk_tokens=8))
    scheduler.add(request("l", 4, 60))
    step(scheduler)
    for name in ("a", "b"):
        scheduler.add(request(name, 80, 2, first=10, priority=1))
    for _ in range(10):
        assert step(scheduler)[0] == {"a": 8, "l": 1}
    assert scheduler.preemptions == 0
    assert step(scheduler)[0] == {"a": 1, "b": 4}
    assert scheduler.preemptions == 1
    scheduler = Scheduler(replace(LIMITS, max_num_seqs=1, max_chunk_tokens=8))
    scheduler.add(request("l", 80, 2, first=10))
    step(scheduler)
    scheduler.add(request("a", 80, 2, first=10, priority=1))  # the page comes from who loses the seat
    assert step(scheduler)[0] == {"a": 8}


def test_nobody_waits_for_the_pages_of_a_lower_priority() -> None:
    """It may get one token a step beside others of the higher one, who would overtake."""
    scheduler = Scheduler(replace(LIMITS, max_num_batched_tokens=9, max_chunk_tokens=4))
    scheduler.add(request("l", 80, 2, first=10))
    step(scheduler)
    scheduler.add(request("a", 80, 2, first=10, priority=1))
    scheduler.add(request("b", 80, 2, first=10, priority=1))
    for name in ("c", "d"):
        scheduler.add(request(name, 80, 2, priority=1))
    assert step(scheduler)[0] == {"l": 4, "a": 4, "c": 1}
    assert step(scheduler)[0] == {"a": 4, "c": 4, "l": 1}


def test_prefixes_are_shared_within_one_salt_and_scope_only() -> None:
    scheduler = Scheduler(LIMITS)
    for name, salt, scope, hit in (
        ("a", "", "", 0), ("b", "", "", 8), ("c", "s", "", 0), ("d", "s", "", 8), ("e", "", "s", 0), ("f", "s", "s", 0),
    ):  # fmt: skip
        scheduler.add(replace(request(name, 12, 1, first=10), cache_salt=salt), scope)
        assert run(scheduler)[0].cached_tokens == hit
    unshared = Scheduler(replace(LIMITS, prefix_caching=False))
    for name in ("a", "b"):
        unshared.add(request(name, 12, 1, first=10))
        assert run(unshared)[0].cached_tokens == 0
    assert unshared.pool.cached == 0


def test_sizes_with_which_nothing_could_run_are_refused() -> None:
    for name, value in (("pages", 0), ("page_size", 0), ("max_num_seqs", 0), ("max_model_len", 1)):
        with pytest.raises(ValueError, match=name):
            replace(LIMITS, **{name: value})
