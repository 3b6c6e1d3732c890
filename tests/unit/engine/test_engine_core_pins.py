"""Protects pinned prefixes: nothing evicts their pages while the pin lives, its end frees them, and they never stop the engine."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.engine.scheduler_steps import LIMITS, request, run, step

from pagefleet_engine.core.blocks import PagePool, page_hashes, root_hash
from pagefleet_engine.core.limits import pinnable
from pagefleet_engine.core.overlap import OverlapScheduler
from pagefleet_engine.core.pins import MAX_PINS, PinRefused, Pins
from pagefleet_engine.core.scheduler import Scheduler

DOCUMENT = request("d", 33)  # eight full pages of four tokens, and one token
PINNED = 8
SMALL = replace(LIMITS, pages=24, max_pinned_pages=PINNED)


def pin(scheduler: Scheduler, until: float = 100.0, name: str = "pin") -> None:
    scheduler.pin(name, DOCUMENT.prompt_token_ids, b"", until)


def push_out(scheduler: Scheduler) -> None:
    """Compute more than the cache holds: all that may be evicted is."""
    for letter in "efghijk":
        scheduler.add(request(letter, 60, 2))
        run(scheduler)


def computed_again(scheduler: Scheduler) -> int:
    """Return how many tokens of the document a second request of it computes."""
    before = scheduler.prefix_hits
    scheduler.add(replace(DOCUMENT, request_id="again"))
    run(scheduler)
    return len(DOCUMENT.prompt_token_ids) - (scheduler.prefix_hits - before)


@pytest.mark.parametrize("made", [Scheduler, OverlapScheduler])
def test_a_pinned_prefix_outlives_what_evicts_everything_else(made: type[Scheduler]) -> None:
    for pinned, computed in ((True, 1), (False, 33)):
        scheduler = made(SMALL)
        if pinned:
            pin(scheduler)
        scheduler.add(DOCUMENT)
        run(scheduler)
        assert scheduler.pool.kept == (PINNED if pinned else 0)
        push_out(scheduler)
        assert computed_again(scheduler) == computed


def test_a_prefix_that_is_cached_already_can_be_pinned() -> None:
    scheduler = Scheduler(SMALL)
    scheduler.add(DOCUMENT)
    run(scheduler)
    pin(scheduler)
    scheduler.check()
    push_out(scheduler)
    assert computed_again(scheduler) == 1


def test_the_end_of_a_pin_frees_its_pages() -> None:
    scheduler = Scheduler(SMALL)
    pin(scheduler, until=10.0)
    scheduler.add(DOCUMENT)
    run(scheduler)
    assert scheduler.pool.pins.next_end() == 10.0
    scheduler.expire(9.9)
    assert (scheduler.pool.kept, scheduler.pool.available) == (PINNED, 16)
    scheduler.expire(10.0)
    assert (scheduler.pool.kept, scheduler.pool.available, len(scheduler.pool.pins)) == (0, 24, 0)
    scheduler.check()
    assert computed_again(scheduler) == 1  # it is cached as any prefix, until something else needs its pages
    push_out(scheduler)
    assert computed_again(scheduler) == 33


def test_the_tail_of_a_prefix_that_was_pinned_is_reused_first() -> None:
    pool = PagePool(4, 3)
    hashes = page_hashes([1, 2, 3], 1)
    pages = pool.allocate(3)
    for page, digest in zip(pages, hashes, strict=True):
        pool.register(page, digest)
    pool.pin("a", hashes, 1.0)
    pool.release(pages)
    pool.unpin("a")
    pool.allocate(2)
    assert pool.find(hashes) == pages[:2]


def test_the_same_prefix_twice_is_one_set_of_pages_and_lasts_longer() -> None:
    scheduler = Scheduler(SMALL)
    pin(scheduler, until=10.0)
    pin(scheduler, until=30.0)
    pin(scheduler, until=20.0)
    assert (len(scheduler.pool.pins), scheduler.pool.pins.pages) == (1, PINNED)
    pin(scheduler, until=40.0, name="somebody else's")
    assert (len(scheduler.pool.pins), scheduler.pool.pins.pages) == (2, PINNED)
    scheduler.add(DOCUMENT)
    run(scheduler)
    scheduler.expire(30.0)
    assert (len(scheduler.pool.pins), scheduler.pool.kept) == (1, PINNED)
    scheduler.pool.unpin("somebody else's")
    scheduler.pool.unpin("nobody's")
    assert (scheduler.pool.pins.pages, scheduler.pool.kept) == (0, 0)
    scheduler.check()


def test_a_pin_over_the_budget_is_refused_and_changes_nothing() -> None:
    scheduler = Scheduler(SMALL)
    pin(scheduler)
    with pytest.raises(PinRefused, match="would pin 2 more pages; 8 of at most 8 pages are pinned"):
        scheduler.pin("other", list(range(8)), b"", 50.0)
    with pytest.raises(PinRefused, match="another prefix"):
        scheduler.pin("pin", list(range(8)), b"", 50.0)
    assert (len(scheduler.pool.pins), scheduler.pool.pins.pages) == (1, 8)
    scheduler.pool.unpin("pin")
    scheduler.pin("other", list(range(8)), b"", 50.0)
    with pytest.raises(PinRefused, match="0 of at most 0"):
        Scheduler(LIMITS).pin("any", list(range(8)), b"", 50.0)


def test_the_number_of_pins_is_bounded() -> None:
    pins = Pins(1)
    for number in range(MAX_PINS):
        pins.add(str(number), [b"x"], math.inf)
    with pytest.raises(PinRefused, match=f"{MAX_PINS} prompts"):
        pins.add("one more", [b"x"], math.inf)
    assert pins.next_end() is None


def test_the_prefix_of_an_adapter_is_its_own() -> None:
    scheduler = Scheduler(SMALL)
    scheduler.pin("pin", DOCUMENT.prompt_token_ids, root_hash("", "adapter#1"), 100.0)
    scheduler.add(DOCUMENT)
    run(scheduler)
    assert scheduler.pool.kept == 0
    scheduler.add(DOCUMENT, "adapter#1")
    run(scheduler)
    assert scheduler.pool.kept == PINNED


def test_the_longest_request_is_served_beside_a_full_budget() -> None:
    limits = replace(LIMITS, pages=40, max_model_len=128, max_pinned_pages=pinnable(40, 1.0, 4, 128))
    assert limits.max_pinned_pages == 8
    scheduler = Scheduler(limits)
    pin(scheduler)
    scheduler.add(DOCUMENT)
    run(scheduler)
    for letter in "efg":
        scheduler.add(request(letter, 120, 8))
    outputs = run(scheduler)
    assert sorted(output.request_id for output in outputs if output.finish_reason == "length") == ["e", "f", "g"]
    assert computed_again(scheduler) == 1


def test_the_budget_is_a_share_of_the_pages_and_leaves_room_for_the_longest_request() -> None:
    assert pinnable(1000, 0.25, 16, 4096) == 250
    assert pinnable(300, 0.25, 16, 4096) == 44
    assert pinnable(256, 0.25, 16, 4096) == 0
    assert pinnable(100, 0.25, 16, 4096) == 0
    assert pinnable(1000, 0.0, 16, 16) == 0


def test_pins_outlive_a_step_that_raises() -> None:
    before, after = Scheduler(SMALL), Scheduler(SMALL)
    pin(before)
    before.add(DOCUMENT)
    run(before)
    after.inherit(before)
    assert (after.pool.pins.pages, after.pool.kept) == (PINNED, 0)
    after.add(DOCUMENT)  # computes the pages again: they are pinned as before
    run(after)
    push_out(after)
    assert computed_again(after) == 1


def test_an_aborted_prompt_leaves_the_pages_that_it_computed() -> None:
    scheduler = Scheduler(SMALL)
    pin(scheduler)
    scheduler.add(DOCUMENT)
    step(scheduler)
    scheduler.abort("d")
    scheduler.check()
    assert scheduler.pool.kept == 4
    scheduler.pool.unpin("pin")
    assert scheduler.pool.available == scheduler.pool.total
