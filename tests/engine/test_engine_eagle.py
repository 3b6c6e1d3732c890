"""Protects drafting with EAGLE-3 heads: it changes no answer, whatever happens around it; the head computes what a reference
in plain torch computes; a head that is right is accepted; and a head that is not supported is refused by its entry."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine.drafts import FEW_TOKENS, Always, Switched, assert_distributed, mixed, prompts
from support.engine.heads import Head, assert_right, in_cycle, knowing, parting, random_head, served, spied
from support.engine.reference import KERNELS, ask, engine, serve, small_adapter

from pagefleet_engine.core.requests import Speculation
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.model.heads.head import EagleHead
from pagefleet_engine.runner.cpu.engine import Engine

SITUATIONS: list[dict[str, Any]] = [
    {},
    {"max_num_batched_tokens": 24, "max_chunk_tokens": 8},
    {"num_pages": 14, "max_model_len": 128},
    {"quantization": "int8", "prefix_caching": False},
]
CHANGES = pytest.mark.parametrize("changes", SITUATIONS, ids=["roomy", "chunks", "preemption", "int8"])


def drafting(model: str, head: str, tokens: int = 4, **changes: Any) -> Engine:
    made = engine(model, speculation=Speculation("eagle3", tokens, head), **changes)
    assert made._speculator is not None
    made._speculator.planner = Always(tokens)
    return made


@CHANGES
def test_answers_are_those_without_drafts(changes: dict[str, Any], tmp_path: Path) -> None:
    uri, model = served(tmp_path / "model")
    drafted = drafting(uri, random_head(model).save(tmp_path / "head"), **changes)
    plain = engine(uri, **changes)
    for _ in range(2):  # the second time from the prefix cache
        assert serve(drafted, mixed(n=4)) == serve(plain, mixed(n=4))
    stats = drafted.stats()
    assert stats.draft_tokens > (10 if "num_pages" in changes else 40)
    assert stats.preemptions > 0 or "num_pages" not in changes


@CHANGES
@pytest.mark.parametrize("form", ["safeailab", "speculators"])
def test_a_head_that_knows_the_next_token_is_accepted(form: str, changes: dict[str, Any], tmp_path: Path) -> None:
    uri, head = knowing(tmp_path / "model")
    head.before_residual = form == "speculators"
    plain, drafted = engine(uri, **changes), drafting(uri, head.save(tmp_path / "head", form), **changes)
    asked = in_cycle()
    for _ in range(2):
        assert serve(drafted, asked) == serve(plain, asked)
    stats = drafted.stats()
    assert stats.draft_tokens > 100
    assert stats.accepted_tokens > 0.97 * stats.draft_tokens
    assert stats.preemptions > 0 or "num_pages" not in changes


def test_a_head_rests_while_drafting_is_off_and_makes_up_for_it(tmp_path: Path) -> None:
    uri, head = knowing(tmp_path / "model")
    drafted = drafting(uri, head.save(tmp_path / "head"), num_pages=40)
    assert drafted._speculator is not None
    drafted._speculator.planner = planner = Switched(4)
    asked = in_cycle()
    expected = serve(engine(uri), asked)
    assert serve(drafted, asked) == expected
    assert not any(pages.keys.any() for pages in drafted.loaded.draft_cache), "it has computed something"

    def switch(step: int) -> None:
        planner.on = step % 14 > 8

    for _ in range(2):
        assert serve(drafted, asked, switch) == expected
    stats = drafted.stats()
    assert stats.prefix_hits > 0
    assert stats.draft_tokens > 40 and stats.accepted_tokens > 0.97 * stats.draft_tokens


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("form", ["safeailab", "speculators"])
@pytest.mark.parametrize("own", [False, True], ids=["", "own embedding"])
def test_logits_are_those_of_the_reference(
    kernels: str, form: str, own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, model = served(tmp_path / "model")
    head, seen = random_head(model, own=own), spied(monkeypatch, EagleHead)
    head.before_residual = form == "speculators"
    serve(drafting(uri, head.save(tmp_path / "head", form), kernels=kernels), parting()[:4])
    assert_right(seen[::3], model, head)
    assert len(seen) > 60


@pytest.mark.parametrize("changes", [one for one in SITUATIONS if "quantization" not in one])
def test_the_head_reads_the_right_states_whatever_happens(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In prompts that are computed whole or in chunks, in pages that are cached or copied, and after a preemption."""
    uri, model = served(tmp_path / "model")
    head, seen = random_head(model), spied(monkeypatch, EagleHead)
    drafted = drafting(uri, head.save(tmp_path / "head"), **changes)
    for _ in range(2):
        serve(drafted, parting())
    assert_right(seen[::5], model, head)
    stats = drafted.stats()
    assert len(seen) > 60 and stats.prefix_hits > 0
    assert stats.preemptions > 0 or "num_pages" not in changes


def test_unseeded_draws_follow_the_models_distribution(tmp_path: Path) -> None:
    uri, model = served(tmp_path / "model", **{**FEW_TOKENS, "initializer_range": 0.04})
    drafted = drafting(uri, random_head(model, tokens=5).save(tmp_path / "head"))

    def draw(name: str, prompt: list[int]) -> list[list[int]]:
        return [one.tokens for one in serve(drafted, [ask(name, prompt, 3, n=64, temperature=1.3)]).values()]

    assert_distributed(draw, model)
    stats = drafted.stats()
    assert stats.draft_tokens > 1000 and 0 < stats.accepted_tokens < stats.draft_tokens


def test_an_adapters_answers_are_those_without_drafts(tmp_path: Path) -> None:
    uri, model = served(tmp_path / "model")
    adapters = (("a", small_adapter(tmp_path / "adapter")),)
    drafted = drafting(uri, random_head(model).save(tmp_path / "head"), adapters=adapters)
    asked = [ask(str(index), prompt, 20, adapter="a" if index % 2 else None) for index, prompt in enumerate(prompts(8))]
    assert serve(drafted, asked) == serve(engine(uri, adapters=adapters), asked)
    assert drafted.stats().draft_tokens > 40


def test_an_engine_that_slept_drafts_again(tmp_path: Path) -> None:
    uri, head = knowing(tmp_path / "model")
    drafted = drafting(uri, head.save(tmp_path / "head"))
    for level in (1, 2):
        keys, states = weakref.ref(drafted.loaded.draft_cache[0].keys), weakref.ref(drafted.loaded.states)
        drafted.sleep(level)
        gc.collect()
        assert keys() is states() is None
        drafted.wake()
        assert drafted._speculator is not None
        drafted._speculator.planner = Always(4)
        serve(drafted, [ask(f"{level}", [1, 2, 3], 30)])
        stats = drafted.stats()
        assert stats.draft_tokens == stats.accepted_tokens > 10


def change(**entries: Any) -> Callable[[Head], None]:
    return lambda head: head.config.update(entries)


def drop(name: str) -> Callable[[Head], None]:
    return lambda head: head.tensors.__delitem__(name)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (change(architectures=["LlamaForCausalLM"]), "architectures"),
        (change(num_hidden_layers=2), "num_hidden_layers 2"),
        (change(attention_bias=True), "attention_bias True"),
        (change(norm_before_fc=True), "norm_before_fc True"),
        (change(hidden_act="gelu"), "hidden_act 'gelu'"),
        (change(quantization_config={"quant_method": "awq"}), "quantization_config"),
        (change(eagle_config={"use_aux_hidden_state": False}), "eagle_config.use_aux_hidden_state False"),
        (change(eagle_config={}), "without eagle_aux_hidden_state_layer_ids"),
        (change(eagle_aux_hidden_state_layer_ids=[1, 2, 5]), "eagle_aux_hidden_state_layer_ids names .* from 0 to 4"),
        (change(vocab_size=310), "vocab_size of the head is 310"),
        (change(target_hidden_size=32), "target_hidden_size of the head is 32"),
        (change(draft_vocab_size=0), "draft_vocab_size 0"),
        (change(draft_vocab_size=100), "tensor d2t is"),
        (change(hidden_size=64), "no embed_tokens.weight"),
        (change(head_dim=24), "head_dim is 24"),
        (change(rope_scaling={"rope_type": "dynamic", "factor": 2.0}), "rope scaling 'dynamic'"),
        (drop("d2t"), "lacks the tensor d2t: draft_vocab_size 120"),
        (drop("lm_head.weight"), "lacks the tensor lm_head.weight"),
        (drop("midlayer.hidden_norm.weight"), "lacks the tensor layer.hidden_norm.weight"),
        (lambda head: head.tensors.update({"d2t": torch.zeros(120).long() + 290}), "tensor d2t must lead to"),
        (lambda head: head.tensors.update({"input_norm.weight": torch.ones(4)}), "the first is input_norm.weight"),
    ],
)  # fmt: skip
def test_a_head_that_is_not_supported_is_refused_by_name(
    broken: Callable[[Head], None], message: str, tmp_path: Path
) -> None:
    uri, model = served(tmp_path / "model")
    head = random_head(model)
    head.config["target_hidden_size"] = model.config.hidden_size
    broken(head)
    with pytest.raises(ModelError, match=message) as raised:
        drafting(uri, head.save(tmp_path / "head"))
    assert raised.value.field == "spec.model.speculation.model"


def test_speculators_must_say_what_their_residual_is(tmp_path: Path) -> None:
    uri, model = served(tmp_path / "model")
    head = random_head(model)
    head.before_residual = None  # type: ignore[assignment]
    with pytest.raises(ModelError, match="norm_before_residual"):
        drafting(uri, head.save(tmp_path / "head", "speculators"))
