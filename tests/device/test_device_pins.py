"""Protects pinned prompts on a device, whose scheduler runs a step ahead: their pages stay, hold the right tokens, and end in time."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from support.engine.device_engine import device_engine, finish, saved
from support.engine.reference import ask, assert_greedy

from pagefleet_engine.core.messages import Pin

DOCUMENT = list(range(3, 70))  # four full pages of 16 tokens
OTHERS = [[100 + 10 * first + index for index in range(60)] for first in range(12)]


@pytest.mark.parametrize("offload", [0, 1 << 20])
def test_a_pinned_prompt_outlives_what_evicts_everything_else(offload: int, tmp_path: Path) -> None:
    uri, reference = saved(tmp_path)
    served = device_engine(uri, num_pages=20, max_model_len=128, kv_offload_memory=offload)
    assert served.stats().pages_pinnable == 5
    served.pin(Pin(1, "p", tuple(DOCUMENT), None, "", 100.0))
    assert_greedy(reference, DOCUMENT, finish(served, [ask("first", DOCUMENT, 3)])["first", 0])
    finish(served, [ask(str(index), prompt, 3) for index, prompt in enumerate(OTHERS)])
    before = served.stats()
    assert (before.pins, before.pages_pinned) == (1, 4)
    assert before.pages_free + before.pages_cached == 16
    question = [*DOCUMENT[:64], 9, 8, 7]
    assert_greedy(reference, question, finish(served, [ask("again", question, 5)])["again", 0])
    assert served.stats().prefix_hits - before.prefix_hits == 64
    with pytest.raises(ValueError, match="would pin 3 more pages; 4 of at most 5"):
        served.pin(Pin(2, "other", tuple(OTHERS[0]), None, "", 100.0))
    with pytest.raises(ValueError, match="no adapter"):
        served.pin(Pin(3, "other", tuple(OTHERS[0]), "absent", "", 100.0))
    assert served.next_end() == 100.0
    served.step(100.0)
    after = served.stats()
    assert (after.pins, after.pages_pinned, after.pages_free + after.pages_cached) == (0, 0, 20)
    assert served.next_end() is None


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_sleeps_whose_last_step_is_on_its_way_for_nobody(level: int, tmp_path: Path) -> None:
    """A client that leaves has no request open any more, but a step for it may be under way."""
    uri, reference = saved(tmp_path)
    served = device_engine(uri)
    served.add(ask("a", DOCUMENT, 9))
    served.step(0.0)
    with pytest.raises(ValueError, match="requests are open"):
        served.sleep(level)
    served.abort("a")
    assert served.has_work()
    served.sleep(level)
    assert not served.has_work()
    served.wake()
    assert_greedy(reference, DOCUMENT, finish(served, [ask("again", DOCUMENT, 3)])["again", 0])


def test_a_sleeping_engine_pins_nothing_and_has_forgotten_its_pins(tmp_path: Path) -> None:
    served = device_engine(saved(tmp_path)[0], num_pages=20, max_model_len=128)
    served.pin(Pin(1, "p", tuple(DOCUMENT), None, "", 300.0))
    served.sleep(1)
    assert (served.next_end(), served.stats().pins) == (None, 0)
    with pytest.raises(ValueError, match="asleep"):
        served.pin(Pin(2, "p", tuple(DOCUMENT), None, "", math.inf))
    served.wake()
    assert served.stats().pins == 0
