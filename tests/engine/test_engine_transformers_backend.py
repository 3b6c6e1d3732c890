"""Protects the transformers backend: models without a family of ours answer token by token as transformers' `generate` does,
in mixed batches with chunks and cached prefixes, and keep what every model of the engine has."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.engine.api_process import NAME, make_model, serving
from support.engine.backend_models import BACKEND, MANY_KV, generated, sharp
from support.engine.files import FAMILIES
from support.engine.reference import KERNELS, answers, ask, engine, serve
from transformers import GPTNeoXConfig, PreTrainedModel

from pagefleet_engine.core.requests import Speculation
from pagefleet_engine.model.backend.model import TransformersModel
from pagefleet_engine.model.families import registry
from pagefleet_engine.runner.common import machine

MOST = 8


def prompts() -> list[list[int]]:
    """Random tokens; longer than the windows, than a page and than the budget of a step."""
    chosen = random.Random(3)
    return [[chosen.randrange(3, 96) for _ in range(length)] for length in (1, 15, 17, 40, 100, 180)]


@pytest.fixture(scope="module")
def phi(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("phi")
    return f"file://{folder}", sharp(BACKEND["phi"], folder)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", BACKEND)
def test_a_model_is_token_exact(name: str, kernels: str, tmp_path: Path) -> None:
    assert registry.of_model_type(BACKEND[name].model_type) is None
    reference = sharp(BACKEND[name], tmp_path)
    served = engine(f"file://{tmp_path}", kernels=kernels, max_num_batched_tokens=64)
    answered = answers(served, prompts(), MOST)
    assert len({token for answer in answered for token in answer}) > 5
    assert answered == [generated(reference, prompt, MOST) for prompt in prompts()]
    assert answers(served, prompts(), MOST) == answered
    assert served.stats().prefix_hits >= 16 + 32 + 96 + 176, "the second time, pages of the longer prompts are reused"
    assert served.description["model_impl"] == "transformers"
    assert served.description["architecture"] == BACKEND[name].model_type


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gemma2", "gpt_oss", "mixtral"])
def test_a_family_of_ours_gives_the_same_tokens_through_it(name: str, tmp_path: Path) -> None:
    """Windows, caps, sinks and experts are among them."""
    sharp(FAMILIES[name], tmp_path)
    native, through = (engine(f"file://{tmp_path}", model_impl=one) for one in ("auto", "transformers"))
    assert (native.description["model_impl"], through.description["model_impl"]) == ("pagefleet", "transformers")
    assert answers(through, prompts(), MOST) == answers(native, prompts(), MOST)


def test_preemption_in_a_tiny_pool_is_token_exact(phi: tuple[str, PreTrainedModel]) -> None:
    uri, reference = phi
    chosen = random.Random(4)
    asked = [[chosen.randrange(3, 96) for _ in range(chosen.randrange(1, 45))] for _ in range(16)]
    served = engine(uri, max_num_batched_tokens=48, num_pages=9, max_model_len=128)
    assert answers(served, asked, 40) == [generated(reference, prompt, 40) for prompt in asked]
    assert served.stats().preemptions > 0


def test_draft_tokens_change_no_answer(phi: tuple[str, PreTrainedModel]) -> None:
    uri, reference = phi
    repeating = [5, 6, 7, 8] * 10
    served = engine(uri, speculation=Speculation("ngram", 4))
    assert answers(served, [repeating], 40) == [generated(reference, repeating, 40)]
    assert served.stats().draft_tokens > 0


def test_a_seeded_answer_is_the_same_alone_and_in_a_batch(phi: tuple[str, PreTrainedModel]) -> None:
    served = engine(phi[0])
    sampling = {"temperature": 0.9, "top_p": 0.95, "seed": 11}
    together = answers(served, prompts(), MOST, **sampling)
    assert together == [answers(served, [prompt], MOST, **sampling)[0] for prompt in prompts()]


def test_log_probabilities_and_embeddings_are_those_of_transformers(phi: tuple[str, PreTrainedModel]) -> None:
    uri, reference = phi
    served, prompt = engine(uri, max_num_batched_tokens=32), prompts()[4]
    answer = serve(served, [ask("a", prompt, 4, logprobs=2, prompt_logprobs=0)])["a", 0]
    with torch.inference_mode():
        tables = reference(torch.tensor([prompt + answer.tokens])).logits[0].log_softmax(dim=-1)
    entries = [*(answer.prompt_logprobs or ()), *answer.logprobs]
    assert [one.token for one in entries] == (prompt + answer.tokens)[1:]
    expected = [float(tables[place, one.token]) for place, one in enumerate(entries)]
    assert [one.logprob for one in entries] == pytest.approx(expected, abs=2e-4)
    text = replace(ask("text", prompt, 1), embed=True)
    embedding = serve(served, [text, ask("beside", prompt[:9], 8)])["text", 0].embedding
    with torch.inference_mode():
        states = reference.model(torch.tensor([prompt]))[0][0]
    torch.testing.assert_close(torch.tensor(embedding), states.mean(dim=0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("level", [1, 2])
def test_it_sleeps_and_wakes(level: int, phi: tuple[str, PreTrainedModel]) -> None:
    served = engine(phi[0])
    before = answers(served, prompts(), MOST)
    served.sleep(level)
    served.wake()
    assert answers(served, prompts(), MOST) == before


def test_half_precision_weights_stay_so_and_are_computed_as_floats(tmp_path: Path) -> None:
    reference = sharp(BACKEND["gpt_neox"]).to(torch.bfloat16)
    reference.save_pretrained(tmp_path)
    served = engine(f"file://{tmp_path}")
    assert answers(served, prompts(), MOST) == [generated(reference.float(), prompt, MOST) for prompt in prompts()]
    model = served.loaded.model
    assert isinstance(model, TransformersModel)
    parameters = sum(one.numel() for one in reference.parameters())
    ends = reference.gpt_neox.embed_in.weight.numel()
    assert model.weight_bytes < 4 * ends + 2.2 * (parameters - ends), "two bytes for each weight of a linear layer"


@pytest.mark.parametrize(("name", "packed"), [("olmoe", True), ("deepseek_v3", True), ("gpt_oss", False)])
def test_plain_experts_are_packed_and_others_stay_as_they_are(name: str, packed: bool, tmp_path: Path) -> None:
    """gpt-oss's have biases and transposed matrices. Both kinds are token-exact above."""
    reference = sharp({**BACKEND, **FAMILIES}[name]).to(torch.bfloat16)
    reference.save_pretrained(tmp_path)
    model = engine(f"file://{tmp_path}", model_impl="transformers").loaded.model
    assert isinstance(model, TransformersModel)
    experts = sum(one.numel() for path, one in reference.named_parameters() if ".experts." in path and one.ndim == 3)
    others = sum(one.numel() for one in reference.parameters()) - experts
    assert experts > others / 4
    assert (model.weight_bytes < 2 * experts + 4.1 * others) == packed, "packed experts have two bytes for each weight"


def test_the_memory_of_its_pages_is_bounded_by_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sharp(GPTNeoXConfig(**{**BACKEND["gpt_neox"].to_dict(), "num_hidden_layers": 1}), tmp_path)
    monkeypatch.setattr(machine, "memory_limit", lambda: (704 + 8) << 20)
    served = engine(f"file://{tmp_path}", num_pages=None)
    pages = served.stats().pages_total
    held = sum(one.keys.nbytes + one.values.nbytes for one in served.loaded.cache)
    assert held <= 8 << 20 and pages == len(served.loaded.cache[0].keys) > 100


def test_it_serves_over_http_and_says_whose_code_computes(tmp_path: Path) -> None:
    uri = make_model(tmp_path / "model")
    vocabulary = json.loads((tmp_path / "model/config.json").read_text())["vocab_size"]
    sharp(GPTNeoXConfig(**{**MANY_KV, "vocab_size": vocabulary}), tmp_path / "model")
    with serving(uri, tmp_path / "log") as served:
        asked = {"model": NAME, "messages": [{"role": "user", "content": "go"}], "max_tokens": 5, "ignore_eos": True}
        assert served.answer("/v1/chat/completions", asked)["usage"]["completion_tokens"] == 5
        info = {"model_impl": "transformers", "architecture": "gpt_neox", "weights": "floats"}
        assert served.metric("pagefleet_engine_info", **info) == 1
    lines = [json.loads(line) for line in (tmp_path / "log.out").read_text().splitlines() if line.startswith("{")]
    said = [line["message"] for line in lines if "transformers' own code computes it" in line.get("message", "")]
    assert len(said) == 1 and "'gpt_neox'" in said[0] and "slower" in said[0]
