"""Protects exact greedy parity with transformers on small random models: every architecture switch, preemption,
static batches, seeds and aborts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine.reference import answers, assert_greedy, engine, tiny

from pagefleet_engine.core.requests import EngineRequest, SamplingParams
from pagefleet_engine.model.checkpoint.errors import ModelError

LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip


def prompts(count: int, longest: int = 90) -> list[list[int]]:
    """Random tokens; every second prompt begins like the first."""
    chosen = random.Random(3)
    shared = [chosen.randrange(3, 300) for _ in range(longest)]
    return [
        shared[: chosen.randrange(0, longest // 2) * (index % 2)]
        + [chosen.randrange(3, 300) for _ in range(chosen.randrange(1, longest // 2))]
        for index in range(count)
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False},
        {"attention_bias": True, "mlp_bias": True},
        {"num_key_value_heads": 6},
        {"num_key_value_heads": 1, "head_dim": 32},
        {"rope_parameters": LLAMA3},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}},
        {"rms_norm_eps": 1e-3, "dtype": "bfloat16"},
    ],
    ids=lambda changes: ",".join(changes) or "gqa,tied",
)
def test_each_shape_of_the_family_is_token_exact(changes: dict[str, Any], tmp_path: Path) -> None:
    uri, reference = tiny(tmp_path, **changes)
    asked = prompts(8)
    served = engine(uri, max_num_batched_tokens=40)
    for prompt, answer in zip(asked, answers(served, asked, 10), strict=True):
        assert_greedy(reference.float(), prompt, answer)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_preemption_in_a_tiny_pool_is_token_exact(seed: int, tmp_path: Path) -> None:
    uri, reference = tiny(tmp_path, seed)
    asked = prompts(24)
    served = engine(uri, max_num_batched_tokens=48, num_pages=9, page_size=16, max_model_len=128)
    for prompt, answer in zip(asked, answers(served, asked, 16), strict=True):
        assert_greedy(reference, prompt, answer)
    stats = served.stats()
    assert stats.preemptions > 0
    assert stats.prefix_hits > 0
    assert stats.pages_free + stats.pages_cached == stats.pages_total


def test_static_batching_gives_the_same_tokens(tmp_path: Path) -> None:
    uri, _ = tiny(tmp_path)
    asked = prompts(7)
    static = engine(uri, batching="static", max_num_seqs=3, max_num_batched_tokens=24)
    assert answers(static, asked, 6) == answers(engine(uri), asked, 6)


def test_a_seeded_request_draws_the_same_alone_and_in_a_batch(tmp_path: Path) -> None:
    uri, _ = tiny(tmp_path)
    served, asked = engine(uri), prompts(12)
    sampling = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "min_p": 0.001, "seed": 11}
    together = answers(served, asked, 8, **sampling)
    alone = [answers(served, [prompt], 8, **sampling)[0] for prompt in asked]
    assert together == alone
    assert answers(served, asked, 8, **{**sampling, "seed": 12}) != together


def test_an_abort_frees_pages_and_leaves_the_others_exact(tmp_path: Path) -> None:
    uri, reference = tiny(tmp_path)
    served, asked = engine(uri), prompts(3)
    for index, prompt in enumerate(asked):
        served.add(EngineRequest(str(index), tuple(prompt), SamplingParams(8, ignore_eos=True), 0.0))
    generated: dict[str, list[int]] = {"0": [], "1": [], "2": []}
    for step in range(12):
        if step == 3:
            served.abort("1")
            served.abort("unknown")
        for output in served.step(0.0):
            generated[output.request_id] += output.token_ids
        served.check()
    assert [len(tokens) for tokens in generated.values()] == [8, 3, 8]
    for index in (0, 2):
        assert_greedy(reference, asked[index], generated[str(index)])
    stats = served.stats()
    assert (stats.running, stats.pages_free + stats.pages_cached) == (0, stats.pages_total)


def test_a_request_that_could_never_run_is_refused(tmp_path: Path) -> None:
    served = engine(tiny(tmp_path)[0])
    with pytest.raises(ValueError, match="token ids are 0 to 299"):
        served.add(EngineRequest("a", (300,), SamplingParams(1), 0.0))


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"quantization": "fp3"}, "spec.model.quantization", "supported: none, int8"),
        ({"max_model_len": 513}, "spec.model.maxLength", "not within 2..512"),
        ({"num_pages": 1 << 30}, "spec.engine.kvCache.pages", "at most"),
        ({"batching": "other"}, "spec.engine.args", "other"),
        ({"max_num_seqs": 0}, "spec.engine.args", "max_num_seqs must be at least 1"),
    ],
)
def test_what_an_engine_cannot_start_with_names_its_field(
    changes: dict[str, Any], field: str, message: str, tmp_path: Path
) -> None:
    uri, _ = tiny(tmp_path)
    with pytest.raises(ModelError, match=message) as raised:
        engine(uri, **changes)
    assert raised.value.field == field


def test_weights_that_are_not_numbers_are_found_before_ready(tmp_path: Path) -> None:
    uri, model = tiny(tmp_path)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="not finite"):
        engine(uri)
