"""Protects that drafts change no answer on a device: greedy, seeded and in distribution; ahead, in turn and between the two;
through graphs, adapters, preemption, pages on the host and two ranks. And that they are made where they pay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.engine.device_engine import adapter, device_engine, finish, prompts, saved, uncaptured
from support.engine.drafts import FEW_TOKENS, SEEDED, Always, Turns, assert_distributed, mixed
from support.engine.reference import ask, assert_greedy

from pagefleet_engine.core.requests import EngineRequest, Speculation
from pagefleet_engine.core.turns import TurnPlanner
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.device.engine import DeviceEngine

METHODS = ("ngram", "draft", "itself")


def drafting(
    uri: str, method: str, draft: str, chosen: Callable[[int], bool] = lambda _: True, **changes: Any
) -> DeviceEngine:
    settings = Speculation("ngram", 4) if method == "ngram" else Speculation("draft", 4, draft)
    made = device_engine(uri, **{"speculation": settings, **changes})
    assert made._drafting is not None
    made._drafting.speculator.planner = Always(4)
    made._drafting.turns = Turns(chosen)
    return made


def models(folder: Path, method: str = "draft") -> tuple[str, str, Any]:
    """Save a model, and one that drafts for it: itself, or one that is often right and often wrong."""
    uri, reference = saved(folder / "model", initializer_range=0.1)
    if method != "draft":
        return uri, uri, reference
    layer = reference.model.layers[1].mlp.down_proj
    before = layer.weight.data.clone()
    layer.weight.data *= 0.3
    reference.save_pretrained(folder / "draft")
    layer.weight.data = before
    return uri, f"file://{folder / 'draft'}", reference


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_num_batched_tokens": 24, "max_chunk_tokens": 8},
        {"num_pages": 14, "max_model_len": 128},
        {"num_pages": 14, "max_model_len": 128, "kv_offload_memory": 1 << 20},
    ],
    ids=["roomy", "chunks", "preemption", "host"],
)
def test_answers_are_those_without_drafts(method: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Every third step that may go ahead does so. The host chooses tokens of some requests."""
    uri, draft, _ = models(tmp_path, method)
    plain, served = device_engine(uri, **changes), drafting(uri, method, draft, lambda step: step % 3 > 0, **changes)
    for _ in range(2):  # the second time from the prefix cache
        assert finish(served, mixed(n=4)) == finish(plain, mixed(n=4))
    stats = served.stats()
    assert stats.draft_tokens > (10 if "num_pages" in changes else 30)
    if method == "itself":
        assert stats.accepted_tokens == stats.draft_tokens
    else:
        assert 0 < stats.accepted_tokens < stats.draft_tokens + (method == "ngram" and "num_pages" in changes)
    assert stats.preemptions > 0 or "num_pages" not in changes
    assert stats.prefix_hits > 0
    assert stats.pages_free + stats.pages_cached == stats.pages_total


@pytest.mark.parametrize("method", METHODS)
def test_drafted_greedy_answers_in_the_interpreter_are_transformers(method: str, tmp_path: Path) -> None:
    uri, draft, reference = models(tmp_path, method)
    served = drafting(uri, method, draft, kernels="auto")
    assert served.description["kernels"] == "triton"
    asked = [[*prompt, *prompt] for prompt in prompts(3, longest=12)]
    answers = finish(served, [ask(str(index), prompt, 8) for index, prompt in enumerate(asked)])
    for index, prompt in enumerate(asked):
        assert_greedy(reference, prompt, answers[str(index), 0])
    assert served.stats().accepted_tokens > 3


@pytest.mark.parametrize("method", METHODS)
def test_drafts_cease_and_begin_again(method: str, tmp_path: Path) -> None:
    """A draft model makes up for what it missed: for copied pages, cached ones, and such that had another content before."""
    uri, draft, _ = models(tmp_path, method)
    asked = [request for request in mixed(n=3) if request.sampling.plain]
    expected = finish(device_engine(uri), asked)
    served = drafting(uri, method, draft, lambda step: step % 14 > 8, num_pages=40)
    for _ in range(2):
        assert finish(served, asked) == expected
    stats = served.stats()
    assert stats.prefix_hits > 0 and stats.accepted_tokens > 20
    if method == "itself":
        assert stats.accepted_tokens == stats.draft_tokens


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_padded_steps_that_verify_are_token_exact(kernels: str, tmp_path: Path) -> None:
    """What graphs are captured of, launched without one: steps padded to the shapes of graphs."""
    uri, draft, reference = models(tmp_path)
    served = drafting(uri, "draft", draft, kernels=kernels)
    taken = uncaptured(served)
    asked = prompts(3 if kernels == "auto" else 7, longest=20)
    answers = finish(
        served,
        [
            ask(str(index), prompt, 7 + 5 * index, temperature=0.0 if index else 0.8, seed=5)
            for index, prompt in enumerate(asked)
        ],
    )
    for index, prompt in enumerate(asked[1:], 1):
        assert_greedy(reference, prompt, answers[str(index), 0])
    assert len(set(taken)) > (1 if kernels == "auto" else 2)
    alone = device_engine(uri, kernels="reference")
    assert finish(alone, [ask("0", asked[0], 7, temperature=0.8, seed=5)])["0", 0] == answers["0", 0]


@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_an_adapters_answers_are_those_without_drafts(method: str, tmp_path: Path) -> None:
    uri, draft, _ = models(tmp_path)
    adapters = (("one", adapter(tmp_path / "adapter")),)
    asked = [
        ask(str(i), [*prompt, *prompt], 24, adapter="one" if i % 2 else None) for i, prompt in enumerate(prompts(6))
    ]
    served = drafting(uri, method, draft, adapters=adapters)
    assert finish(served, asked) == finish(device_engine(uri, adapters=adapters), asked)
    assert served.stats().accepted_tokens > 0


@pytest.mark.parametrize("method", METHODS)
def test_unseeded_draws_follow_the_models_distribution(method: str, tmp_path: Path) -> None:
    few = {**FEW_TOKENS, "initializer_range": 0.04}
    uri, reference = saved(tmp_path / "model", **few)
    draft = uri if method == "itself" else saved(tmp_path / "draft", seed=9, **few)[0]
    served = drafting(uri, method, draft, max_num_seqs=64, num_pages=256)

    def draw(name: str, prompt: list[int]) -> list[list[int]]:
        return list(finish(served, [ask(f"{method}{name}", prompt, 3, n=64, temperature=1.3)]).values())

    assert_distributed(draw, reference)
    assert served.stats().draft_tokens > 1000


def test_an_end_of_text_token_within_accepted_drafts_ends_the_answer(tmp_path: Path) -> None:
    uri, _, _ = models(tmp_path, "itself")
    prompt = prompts(1)[0]
    whole = finish(device_engine(uri), [ask("a", prompt, 20, **SEEDED)])["a", 0]
    last = next(token for token in whole[3:] if token not in whole[:3])
    most = whole.index(last) + 1
    served = drafting(uri, "draft", uri)
    answers = finish(
        served, [ask("a", prompt, 20, stop_token_ids=(last,), **SEEDED), ask("b", prompt, most + 1, **SEEDED)]
    )
    assert (answers["a", 0], answers["b", 0]) == (whole[:most], whole[: most + 1])


def repeating() -> list[EngineRequest]:
    return [ask(str(index), [*prompt, *prompt], 40) for index, prompt in enumerate(prompts(3, longest=16))]


@pytest.mark.parametrize("pays", [True, False])
def test_steps_go_in_turn_only_while_that_is_faster(
    pays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step's time is what the clock says: a step in turn costs twice as much where drafting shall not pay."""
    uri, _, _ = models(tmp_path, "itself")
    served = device_engine(uri, speculation=Speculation("draft", 4, uri))
    drafting, clock, ways = served._drafting, [0.0], list[bool]()
    assert drafting is not None
    monkeypatch.setattr("pagefleet_engine.runner.device.drafting.time.perf_counter", lambda: clock[0])
    learn = drafting.learn

    def timed(work_items: Any, in_turn: bool, outputs: Any) -> None:
        ways.append(in_turn)
        clock[0] += (1.0 if pays else 9.0) if in_turn else 1.0
        learn(work_items, in_turn, outputs)

    monkeypatch.setattr(drafting, "learn", timed)
    asked = [ask(str(index), prompt, 150) for index, prompt in enumerate(prompts(3, longest=16))]
    assert finish(served, asked) == finish(device_engine(uri), asked)
    later = ways[TurnPlanner.TRIAL + 12 :]
    assert (sum(later) > 0.7 * len(later)) if pays else (sum(later) <= TurnPlanner.TRIAL)
    assert served.stats().draft_tokens > 0


def test_a_step_whose_drafts_cannot_be_planned_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, _, _ = models(tmp_path, "itself")
    served = drafting(uri, "ngram", uri)
    assert served._drafting is not None

    def fails(*_: Any) -> None:
        raise RuntimeError("as asked for")

    monkeypatch.setattr(served._drafting.speculator, "plan", fails)
    assert finish(served, repeating()) == finish(device_engine(uri), repeating())
    assert served.stats().draft_tokens == 0


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_that_slept_drafts_again(level: int, tmp_path: Path) -> None:
    uri, draft, _ = models(tmp_path)
    served = device_engine(uri, speculation=Speculation("draft", 4, draft))
    served.sleep(level)
    served.wake()
    assert served._drafting is not None
    served._drafting.speculator.planner, served._drafting.turns = Always(4), Turns(lambda _: True)
    assert finish(served, repeating()) == finish(device_engine(uri), repeating())
    assert served.stats().draft_tokens > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 310}, "310 tokens, the served one 301"),
        ({"max_position_embeddings": 128}, "length is 128, less than the served 256"),
        ({"head_dim": 272}, "head_dim is 272; at most 256"),
    ],
)
def test_a_draft_model_that_does_not_fit_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    uri, _ = saved(tmp_path / "model")
    with pytest.raises(ModelError, match=message) as raised:
        drafting(uri, "draft", saved(tmp_path / "draft", **changes)[0])
    assert raised.value.field == "spec.model.speculation.model"
