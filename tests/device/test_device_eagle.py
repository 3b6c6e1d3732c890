"""Protects drafting with EAGLE-3 heads on a device: it changes no answer, ahead, in turn and between the two, through graphs,
preemption, pages on the host and two ranks; the head computes what the CPU's computes; and a head that is right is accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.engine.device_engine import adapter, device_engine, finish, saved, uncaptured
from support.engine.drafts import FEW_TOKENS, Always, Turns, assert_distributed, mixed, prompts
from support.engine.heads import assert_right, in_cycle, knowing, parting, random_head, served, spied
from support.engine.reference import ask, assert_greedy

from pagefleet_engine.core.requests import Speculation
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.device.engine import DeviceEngine
from pagefleet_engine.runner.device.model.head import DeviceHead

CHANGES = pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_num_batched_tokens": 24, "max_chunk_tokens": 8},
        {"num_pages": 14, "max_model_len": 128},
        {"num_pages": 14, "max_model_len": 128, "kv_offload_memory": 1 << 20},
    ],
    ids=["roomy", "chunks", "preemption", "host"],
)


def drafting(uri: str, head: str, chosen: Callable[[int], bool] = lambda _: True, **changes: Any) -> DeviceEngine:
    made = device_engine(uri, speculation=Speculation("eagle3", 4, head), **changes)
    assert made._drafting is not None
    made._drafting.speculator.planner = Always(4)
    made._drafting.turns = Turns(chosen)
    return made


@CHANGES
def test_answers_are_those_without_drafts(changes: dict[str, Any], tmp_path: Path) -> None:
    """Every third step that may go ahead does so. The host chooses tokens of some requests."""
    uri, model = served(tmp_path / "model")
    drafted = drafting(uri, random_head(model).save(tmp_path / "head"), lambda step: step % 3 > 0, **changes)
    plain = device_engine(uri, **changes)
    for _ in range(2):  # the second time from the prefix cache
        assert finish(drafted, mixed(n=4)) == finish(plain, mixed(n=4))
    stats = drafted.stats()
    assert stats.draft_tokens > (10 if "num_pages" in changes else 30)
    assert stats.preemptions > 0 or "num_pages" not in changes
    assert stats.prefix_hits > 0


@CHANGES
@pytest.mark.parametrize("form", ["safeailab", "speculators"])
def test_a_head_that_knows_the_next_token_is_accepted(form: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Some steps go ahead: the head computes their positions before it drafts again."""
    uri, head = knowing(tmp_path / "model")
    head.before_residual = form == "speculators"
    drafted = drafting(uri, head.save(tmp_path / "head", form), lambda step: step % 14 > 5, **changes)
    expected = finish(device_engine(uri, **changes), in_cycle())
    for _ in range(2):
        assert finish(drafted, in_cycle()) == expected
    stats = drafted.stats()
    assert stats.draft_tokens > 100
    assert stats.accepted_tokens > 0.97 * stats.draft_tokens
    assert stats.preemptions > 0 or "num_pages" not in changes


@pytest.mark.parametrize(
    ("kernels", "form", "own"),
    [("reference", "safeailab", False), ("reference", "speculators", True), ("auto", "speculators", True)],
)
def test_logits_are_those_of_the_reference(
    kernels: str, form: str, own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, model = served(tmp_path / "model")
    head, seen = random_head(model, own=own), spied(monkeypatch, DeviceHead)
    head.before_residual = form == "speculators"
    drafted = drafting(uri, head.save(tmp_path / "head", form), kernels=kernels)
    assert drafted.description["kernels"] == ("triton" if kernels == "auto" else "reference")
    answers = finish(drafted, [ask(str(index), prompt, 8) for index, prompt in enumerate(prompts(2))])
    assert_right(seen, model, head)
    assert len(seen) > 20
    assert_greedy(model, prompts(1)[0], answers["0", 0])


@CHANGES
def test_the_head_reads_the_right_states_whatever_happens(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In full pages and copied ones, cached ones, and such that were on the host; ahead, in turn, and after a preemption."""
    uri, model = served(tmp_path / "model")
    head, seen = random_head(model), spied(monkeypatch, DeviceHead)
    drafted = drafting(uri, head.save(tmp_path / "head"), lambda step: step % 5 > 1, **changes)
    for _ in range(2):
        finish(drafted, parting())
    assert_right(seen[::3], model, head)
    stats = drafted.stats()
    assert len(seen) > 60 and stats.prefix_hits > 0
    assert stats.preemptions > 0 or "num_pages" not in changes


def test_padded_steps_that_verify_keep_the_states(tmp_path: Path) -> None:
    """What graphs are captured of, launched without one: steps padded to the shapes of graphs."""
    uri, head = knowing(tmp_path / "model")
    drafted = drafting(uri, head.save(tmp_path / "head"))
    executor, taken = drafted._rank.executor, uncaptured(drafted)
    executor.graphs = dict.fromkeys((1, 4, 16), executor.single)
    assert finish(drafted, in_cycle()) == finish(device_engine(uri), in_cycle())
    stats = drafted.stats()
    assert len(set(taken)) > 1 and stats.accepted_tokens > 0.97 * stats.draft_tokens > 100


def test_an_adapters_answers_are_those_without_drafts(tmp_path: Path) -> None:
    uri, model = saved(tmp_path / "model", num_hidden_layers=5, initializer_range=0.1)
    adapters = (("one", adapter(tmp_path / "adapter")),)
    asked = [ask(str(i), prompt, 20, adapter="one" if i % 2 else None) for i, prompt in enumerate(prompts(8))]
    drafted = drafting(uri, random_head(model).save(tmp_path / "head"), adapters=adapters)
    assert finish(drafted, asked) == finish(device_engine(uri, adapters=adapters), asked)
    assert drafted.stats().draft_tokens > 40


def test_unseeded_draws_follow_the_models_distribution(tmp_path: Path) -> None:
    uri, model = served(tmp_path / "model", **{**FEW_TOKENS, "initializer_range": 0.04})
    head = random_head(model, tokens=5).save(tmp_path / "head")
    drafted = drafting(uri, head, max_num_seqs=64, num_pages=256)

    def draw(name: str, prompt: list[int]) -> list[list[int]]:
        return list(finish(drafted, [ask(name, prompt, 3, n=64, temperature=1.3)]).values())

    assert_distributed(draw, model)
    stats = drafted.stats()
    assert stats.draft_tokens > 1000 and 0 < stats.accepted_tokens < stats.draft_tokens


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_that_slept_drafts_again(level: int, tmp_path: Path) -> None:
    uri, head = knowing(tmp_path / "model")
    drafted = drafting(uri, head.save(tmp_path / "head"))
    drafted.sleep(level)
    drafted.wake()
    assert drafted._drafting is not None
    drafted._drafting.speculator.planner, drafted._drafting.turns = Always(4), Turns(lambda _: True)
    assert finish(drafted, in_cycle()) == finish(device_engine(uri), in_cycle())
    stats = drafted.stats()
    assert stats.accepted_tokens > 0.97 * stats.draft_tokens > 100


def test_a_head_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    uri, model = served(tmp_path / "model")
    head = random_head(model)
    head.config["norm_before_fc"] = True
    with pytest.raises(ModelError, match="norm_before_fc True") as raised:
        drafting(uri, head.save(tmp_path / "head"))
    assert raised.value.field == "spec.model.speculation.model"
