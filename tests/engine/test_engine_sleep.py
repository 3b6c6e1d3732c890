"""Protects sleep: memory is really given back, answers after it are the same, and nobody's request is lost in it."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import pytest
from support.engine.reference import answers, ask, engine, serve, small_adapter, tiny

from pagefleet_engine.core.requests import Speculation
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.cpu.engine import Engine

PROMPTS = [[5, 6, 7, 8], list(range(20, 70)), [9]]
MIB = 1 << 20


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def large(folder: Path) -> str:
    """Write a model whose weights have 60 MiB, and whose keys and values in 2,000 pages have 80 MiB."""
    return tiny(folder, vocab_size=20000, hidden_size=320, head_dim=80, num_attention_heads=4)[0]


def watched(served: Engine) -> tuple[weakref.ref[object], weakref.ref[object], weakref.ref[object]]:
    """The model, and the tensors of its first pages."""
    loaded = served.loaded
    return weakref.ref(loaded.model), weakref.ref(loaded.cache[0].keys), weakref.ref(loaded.cache[-1].values)


@pytest.mark.parametrize("level", [1, 2])
def test_memory_is_given_back_and_answers_stay(level: int, tmp_path: Path) -> None:
    served = engine(large(tmp_path), num_pages=2000)
    before = answers(served, PROMPTS, 8)
    for pages in served.loaded.cache:  # the system gives memory that is written to, no other
        pages.keys[100:].fill_(1)
        pages.values[100:].fill_(1)
    del pages
    model, keys, values = watched(served)
    awake = resident()
    served.sleep(level)
    freed = awake - resident()
    assert (keys(), values()) == (None, None)
    assert (model() is None) == (level == 2)
    assert freed > (60 if level == 1 else 110) * MIB, freed / MIB
    assert not served.has_work()
    assert served.computed != (0, 0), "of the last step of the answers"
    assert served.step(0.0) == []
    assert served.computed == (0, 0), "metrics count no step of a sleeping engine"
    served.wake()
    assert answers(served, PROMPTS, 8) == before
    assert served.stats().pages_total == 2000


def test_a_deeper_sleep_may_follow_and_waking_twice_is_nothing(tmp_path: Path) -> None:
    served = engine(tiny(tmp_path)[0])
    before = answers(served, PROMPTS, 8)
    model, *_ = watched(served)
    served.sleep(1)
    served.sleep(1)
    assert model() is not None
    served.sleep(2)
    assert model() is None
    served.sleep(1)
    for _ in range(2):
        served.wake()
    assert answers(served, PROMPTS, 8) == before
    model, *_ = watched(served)
    served.sleep(2)
    assert model() is None


def test_open_requests_keep_it_awake_and_none_is_taken_asleep(tmp_path: Path) -> None:
    served = engine(tiny(tmp_path)[0])
    served.add(ask("a", PROMPTS[0], 4))
    with pytest.raises(ValueError, match="requests are open"):
        served.sleep(1)
    served.step(0.0)
    with pytest.raises(ValueError, match="requests are open"):
        served.sleep(2)
    assert len(serve(served, [])["a", 0].tokens) == 3
    served.sleep(1)
    with pytest.raises(ValueError, match="asleep"):
        served.add(ask("b", PROMPTS[0], 4))
    served.abort("b")
    served.wake()
    assert not served.has_work()
    served.check()


@pytest.mark.parametrize("level", [1, 2])
def test_adapters_and_a_draft_model_wake_as_well(level: int, tmp_path: Path) -> None:
    uri, _ = tiny(tmp_path / "model")
    adapter = small_adapter(tmp_path / "adapter")
    served = engine(uri, speculation=Speculation("draft", 2, uri), adapters=(("a", adapter),))
    names = ["a", None, "a"]
    before = answers(served, PROMPTS, 12, names)
    assert before != answers(served, PROMPTS, 12)
    draft = weakref.ref(served.loaded.draft)
    pages = weakref.ref(served.loaded.draft_cache[0].keys)
    served.sleep(level)
    gc.collect()
    assert pages() is None
    assert (draft() is None) == (level == 2)
    served.wake()
    assert answers(served, PROMPTS, 12, names) == before
    served.unload_adapter("a")


def test_a_model_that_is_gone_cannot_be_woken_and_says_so(tmp_path: Path) -> None:
    served = engine(tiny(tmp_path)[0])
    served.sleep(2)
    weights = tmp_path / "model.safetensors"
    weights.rename(tmp_path / "elsewhere")
    with pytest.raises(ModelError):
        served.wake()
    with pytest.raises(RuntimeError, match="asleep"):
        _ = served.loaded
    (tmp_path / "elsewhere").rename(weights)
    served.wake()
    assert answers(served, PROMPTS, 2)
