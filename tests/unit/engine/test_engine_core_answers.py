"""Protects a request in the scheduler beyond one plain answer: several answers that share pages, draft tokens, deadlines,
and requests that only embed."""

from __future__ import annotations

from dataclasses import replace

from support.engine.scheduler_steps import EOS, LIMITS, request, run, step

from pagefleet_engine.core.scheduler import Scheduler


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


def test_a_page_that_is_copied_for_an_answer_stays_until_it_is_copied() -> None:
    """Its owner ends with its first token, in the moment in which the pool has no other blank page left."""
    scheduler = Scheduler(replace(LIMITS, pages=8))
    scheduler.add(request("w", 12, 1))
    run(scheduler)  # three pages are cached
    scheduler.add(replace(request("a", 10, 3), n=2))
    scheduler.commit(scheduler.schedule(2.0), [((EOS,), (5,))])
    [(origin, target)] = scheduler.copies
    scheduler.add(request("b", 12, 1))
    assert [work.sequence.request_id for work in scheduler.schedule(2.0)] == ["a", "b"]
    assert origin not in {page for sequence in scheduler.running for page in sequence.pages}
    assert scheduler.take_copies() == [(origin, target)]
    scheduler.check()
    run(scheduler)
    assert scheduler.pool.available == scheduler.pool.total


def test_a_copy_for_an_answer_that_was_given_up_is_not_made() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.add(replace(request("a", 10, 4), n=3))
    step(scheduler)
    kept = scheduler.copies[1]
    scheduler.abort("a", 1)
    assert scheduler.copies == [kept]
    scheduler.abort("a")
    assert scheduler.take_copies() == []
    assert scheduler.pool.available == scheduler.pool.total


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


def test_draft_tokens_are_accepted_up_to_the_first_wrong_one() -> None:
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


def test_drafts_never_preempt_anybody() -> None:
    scheduler = Scheduler(replace(LIMITS, pages=5))
    for name in ("a", "b"):
        scheduler.add(request(name, 6, 2))
    step(scheduler)
    for sequence in scheduler.running:
        sequence.draft = (1, 2, 3)
    assert step(scheduler)[0] == {"a": 1, "b": 1}
    assert scheduler.preemptions == 0


def test_a_request_to_embed_ends_with_its_prompt_and_takes_nothing_from_the_cache() -> None:
    scheduler = Scheduler(replace(LIMITS, max_num_batched_tokens=8))
    scheduler.add(request("a", 12, 1, first=10))
    run(scheduler)
    scheduler.add(replace(request("b", 12, 1, first=10), embed=True))
    assert step(scheduler) == ({"b": 8}, [])
    _, [output] = step(scheduler)
    assert (output.token_ids, output.finish_reason, output.cached_tokens) == ((), "stop", 0)
    assert scheduler.pool.available == scheduler.pool.total
