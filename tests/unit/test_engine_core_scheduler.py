"""Protects what a step computes: the budget, chunks, the order of service, preemption, prefix reuse, static batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagefleet_engine.core.limits import Limits
from pagefleet_engine.core.requests import Batching, EngineRequest, Policy, SamplingParams, TokenOutput
from pagefleet_engine.core.scheduler import Scheduler
from pagefleet_engine.core.work import Work

EOS = 99
LIMITS = Limits(
    page_size=4, pages=64, max_num_seqs=8, max_num_batched_tokens=16, max_model_len=128, vocab_size=1000,
    batching=Batching.CONTINUOUS, eos_token_ids=frozenset({EOS}),
)  # fmt: skip


def request(name: str, prompt: int, most: int = 4, *, first: int = 0, priority: int = 0) -> EngineRequest:
    tokens = tuple((first or 100 * (ord(name[0]) - 96)) % 900 + index for index in range(prompt))
    return EngineRequest(name, tokens, SamplingParams(most), arrival=1.0, priority=priority)


def results(works: list[Work], token: int) -> list[tuple[tuple[int, ...], ...]]:
    """As if the model said `token` everywhere: no guess stands, unless it is that."""
    found: list[tuple[tuple[int, ...], ...]] = []
    for work in works:
        draft = work.sequence.draft[: work.drafts]
        right = next((index for index, guess in enumerate(draft) if guess != token), len(draft))
        found.append(tuple((token,) * (right + 1) for _ in range(work.answers)) if work.samples else ())
    return found


def step(scheduler: Scheduler, token: int = 5, now: float = 2.0) -> tuple[dict[str, int], list[TokenOutput]]:
    """One step in which everything samples `token`: {request: tokens computed}, and the outputs."""
    works = scheduler.schedule(now)
    scheduler.check()
    counts = {work.sequence.request_id: work.count for work in works}
    outputs = scheduler.commit(works, results(works, token))
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
    # A prompt that came first never takes the token of a stream behind it.
    scheduler = Scheduler(replace(LIMITS, max_num_batched_tokens=8))
    scheduler.add(request("a", 4, 9))
    step(scheduler)
    scheduler.add(request("c", 30, priority=1))
    for _ in range(3):
        counts = step(scheduler)[0]
        assert counts == {"c": 7, "a": 1}


def test_answers_share_full_pages_and_copy_the_one_they_write() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.add(replace(request("a", 10, 3), n=3))
    _, outputs = step(scheduler)
    assert [(output.index, output.token_ids, output.queue_seconds) for output in outputs] == [
        (0, (5,), 1.0), (1, (5,), 1.0), (2, (5,), 1.0),
    ]  # fmt: skip
    first, second, third = scheduler.running
    assert first.pages[:2] == second.pages[:2] == third.pages[:2]
    assert scheduler.copies == [(first.pages[2], second.pages[2]), (first.pages[2], third.pages[2])]
    assert len({first.pages[2], second.pages[2], third.pages[2]}) == 3
    assert [work.start for work in scheduler.schedule(2.0)] == [10, 10, 10]
    assert scheduler.abort("a") == (0, 1, 2)
    assert scheduler.pool.available == scheduler.pool.total


def test_answers_without_a_seat_or_page_wait_and_all_end() -> None:
    for limits in (replace(LIMITS, max_num_seqs=2), replace(LIMITS, pages=4)):
        scheduler = Scheduler(limits)
        scheduler.add(replace(request("a", 9, 4), n=4))
        ended = [output.index for output in run(scheduler) if output.finish_reason == "length"]
        assert sorted(ended) == [0, 1, 2, 3]
        assert scheduler.pool.available == scheduler.pool.total


def test_one_answer_can_be_given_up_without_the_others() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.add(replace(request("a", 10, 4), n=3))
    step(scheduler)
    assert scheduler.abort("a", 1) == (1,)
    assert scheduler.abort("a", 1) == ()
    scheduler.check()
    assert {output.index for output in run(scheduler)} == {0, 2}
    assert scheduler.pool.available == scheduler.pool.total


def test_an_answer_that_ends_with_its_first_token_leaves_the_others() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.add(replace(request("a", 10, 3), n=2))
    works = scheduler.schedule(2.0)
    outputs = scheduler.commit(works, [((EOS,), (5,))])
    assert [(output.index, output.finish_reason) for output in outputs] == [(0, "stop"), (1, None)]
    scheduler.check()
    assert {output.index for output in run(scheduler)} == {1}


def test_a_deadline_ends_every_answer_wherever_it_is() -> None:
    scheduler = Scheduler(replace(LIMITS, max_num_seqs=1))
    scheduler.add(replace(request("a", 4, 9), deadline=5.0))
    scheduler.add(replace(request("b", 4, 9), deadline=5.0, n=2))
    scheduler.add(request("c", 4, 1))
    step(scheduler)
    assert scheduler.expire(4.9) == []
    assert [(output.request_id, output.index) for output in scheduler.expire(5.0)] == [("a", 0), ("b", 0), ("b", 1)]
    scheduler.check()
    assert [output.request_id for output in run(scheduler)] == ["c"]


def test_guesses_stand_up_to_the_first_wrong_one() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.add(request("a", 6, 9))
    step(scheduler)
    sequence = scheduler.running[0]
    sequence.draft = (5, 5, 7)
    assert step(scheduler)[0] == {"a": 4}
    assert sequence.tokens[6:] == [5, 5, 5, 5]
    assert (sequence.computed, sequence.draft, scheduler.drafted, scheduler.accepted) == (9, (), 3, 2)
    sequence.draft = (5,) * 20  # more than it may still say
    _, [last] = step(scheduler)
    assert (last.token_ids, last.finish_reason) == ((5,) * 5, "length")
    assert scheduler.pool.available == scheduler.pool.total


def test_guesses_never_preempt_anybody() -> None:
    scheduler = Scheduler(replace(LIMITS, pages=5))
    for name in ("a", "b"):
        scheduler.add(request(name, 6, 2))
    step(scheduler)
    for sequence in scheduler.running:
        sequence.draft = (1, 2, 3)
    assert step(scheduler)[0] == {"a": 1, "b": 1}
    assert scheduler.preemptions == 0


def test_a_higher_priority_takes_a_seat() -> None:
    scheduler = Scheduler(replace(LIMITS, max_num_seqs=2))
    for name in ("a", "b"):
        scheduler.add(request(name, 4, 9))
    step(scheduler)
    scheduler.add(request("c", 4, 1, priority=1))
    assert step(scheduler)[0] == {"a": 1, "c": 4}
    assert [output.request_id for output in run(scheduler) if output.finish_reason] == ["a", "b"]


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


def test_a_request_to_embed_ends_with_its_prompt_and_takes_nothing_from_the_cache() -> None:
    scheduler = Scheduler(replace(LIMITS, max_num_batched_tokens=8))
    scheduler.add(request("a", 12, 1, first=10))
    run(scheduler)
    scheduler.add(replace(request("b", 12, 1, first=10), embed=True))
    assert step(scheduler) == ({"b": 8}, [])
    _, [output] = step(scheduler)
    assert (output.token_ids, output.finish_reason, output.cached_tokens) == ((), "stop", 0)
    assert scheduler.pool.available == scheduler.pool.total


def test_sizes_with_which_nothing_could_run_are_refused() -> None:
    for name, value in (("pages", 0), ("page_size", 0), ("max_num_seqs", 0), ("max_model_len", 1)):
        with pytest.raises(ValueError, match=name):
            replace(LIMITS, **{name: value})
