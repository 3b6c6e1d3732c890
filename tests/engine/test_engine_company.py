"""Protects an answer from its company: a text's embedding has no draft tokens in it, and an adapter's answer is the same, bit by bit,
alone and beside others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.engine.reference import ask, engine, serve, tiny

from pagefleet_engine.core.requests import EngineRequest, Pooling, Speculation


@pytest.mark.parametrize("pooling", [Pooling.MEAN, Pooling.LAST])
def test_an_embedding_has_no_draft_tokens(pooling: Pooling, tmp_path: Path) -> None:
    uri, reference = tiny(tmp_path)
    served = engine(uri, speculation=Speculation("ngram", 4), max_num_batched_tokens=64, max_num_seqs=8)
    prompt = [5, 6, 7, 8] * 16 + [5]  # 65 tokens: one is left for the second step
    serve(served, [ask("a", [9, 10, 11], 40)])  # the planner learns what a step of one answer costs
    wrong = []
    for round in range(3):
        text = replace(ask(f"e{round}", prompt, 1), embed=True, pooling=pooling)
        answer = serve(served, [text])[f"e{round}", 0]
        with torch.inference_mode():
            states = reference.model(torch.tensor([prompt]))[0][0]
        expected = states.mean(dim=0) if pooling is Pooling.MEAN else states[-1]
        wrong.append(float((torch.tensor(answer.embedding) - expected).abs().max()))
    assert max(wrong) < 1e-3, wrong


def adapter(folder: Path, rank: int = 16) -> str:
    folder.mkdir()
    torch.manual_seed(3)
    (folder / "adapter_config.json").write_text(f'{{"r": {rank}, "lora_alpha": 16}}')
    tensors = {}
    for layer in range(2):
        for module, rows, columns in (("q_proj", 96, 96), ("v_proj", 32, 96)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_"
            tensors[name + "A.weight"] = torch.randn(rank, columns) * 0.1
            tensors[name + "B.weight"] = torch.randn(rows, rank) * 0.1
    save_file(tensors, folder / "adapter_model.safetensors")
    return str(folder)


def test_an_adapters_answer_is_bit_for_bit_the_same_in_any_company(tmp_path: Path) -> None:
    uri, _ = tiny(tmp_path / "m")
    served = engine(uri, adapters=(("l", adapter(tmp_path / "a")),), prefix_caching=False)
    prompt = [3 + (7 * index) % 290 for index in range(33)]

    def one(name: str, tokens: list[int]) -> EngineRequest:
        return ask(name, tokens, 30, adapter="l", logprobs=0)

    alone = serve(served, [one("x", prompt)])["x", 0]
    others = [one(f"o{index}", [5 + index] * (3 + 7 * index)) for index in range(6)]
    beside = serve(served, [*others, one("x", prompt)])["x", 0]
    assert beside.tokens == alone.tokens
    assert [entry.logprob for entry in beside.logprobs] == [entry.logprob for entry in alone.logprobs]
