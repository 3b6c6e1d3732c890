"""Protects the engine on a GPU: graphs, kernels and overlap give transformers' tokens. Skipped where there is no GPU."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine.device_engine import FAMILIES, device_engine, finish, prompts, saved
from support.engine.drafts import Always, Turns
from support.engine.heads import CYCLE, knowing
from support.engine.reference import ask, assert_greedy

from pagefleet_engine.core.requests import Speculation

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.fixture(autouse=True)
def exact() -> None:
    gc.collect()  # the engines of other tests
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def cuda(uri: str, **changes: Any) -> Any:
    return device_engine(uri, "cuda:0", **{"kernels": "auto", **changes})


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_is_token_exact(family: str, tmp_path: Path) -> None:
    uri, reference = saved(tmp_path, family)
    served = cuda(uri, max_num_batched_tokens=64, max_chunk_tokens=32)
    asked = prompts(16)
    answers = finish(served, [ask(str(index), prompt, 24) for index, prompt in enumerate(asked)])
    for index, prompt in enumerate(asked):
        assert_greedy(reference, prompt, answers[str(index), 0])


def test_preemption_and_pages_on_the_host_are_token_exact(tmp_path: Path) -> None:
    uri, reference = saved(tmp_path)
    served = cuda(uri, num_pages=9, max_model_len=128, max_num_batched_tokens=48, kv_offload_memory=1 << 22)
    asked = prompts(16, longest=20)
    answers = finish(served, [ask(str(index), prompt, 50) for index, prompt in enumerate(asked)])
    for index, prompt in enumerate(asked):
        assert_greedy(reference, prompt, answers[str(index), 0])
    assert served.stats().preemptions > 0


def test_graphs_give_the_tokens_of_single_launches(tmp_path: Path) -> None:
    uri, _ = saved(tmp_path)
    asked = [ask(str(i), prompt, 30, temperature=0.7, seed=i) for i, prompt in enumerate(prompts(13))]
    with_graphs, without = cuda(uri), cuda(uri)
    assert with_graphs._rank.executor.graphs
    without._rank.executor.graphs = {}
    assert finish(with_graphs, asked) == finish(without, asked)


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("method", ["ngram", "draft", "itself"])
def test_draft_tokens_change_no_answer(method: str, graphs: bool, tmp_path: Path) -> None:
    """Through the graphs that verify and those of the draft model, and by single launches; ahead, in turn and between the two."""
    uri, reference = saved(tmp_path / "model", initializer_range=0.1)
    asked = [
        ask(str(i), [*prompt, *prompt], 40, temperature=0.7 * (i % 2), seed=i) for i, prompt in enumerate(prompts(13))
    ]
    expected = finish(cuda(uri), asked)
    if method == "draft":
        reference.model.layers[1].mlp.down_proj.weight.data *= 0.3
    reference.save_pretrained(tmp_path / "draft")
    draft = None if method == "ngram" else f"file://{tmp_path / 'draft'}"
    served = cuda(uri, speculation=Speculation("draft" if draft else "ngram", 4, draft))
    served._drafting.speculator.planner, served._drafting.turns = Always(4), Turns(lambda step: step % 9 > 2)
    assert served._rank.executor.verifying
    if not graphs:
        served._rank.executor.verifying = {}
        if served._rank._drafting is not None:
            served._rank._drafting.graphs = {}
    for _ in range(2):  # the second time from the prefix cache
        assert finish(served, asked) == expected
    assert served.stats().accepted_tokens > 20


@pytest.mark.parametrize("graphs", [True, False])
def test_a_heads_draft_tokens_are_accepted(graphs: bool, tmp_path: Path) -> None:
    """The graphs keep the states that the head reads."""
    uri, head = knowing(tmp_path / "model")
    asked = [ask(str(i), [token % CYCLE for token in prompt], 40, n=1 + i % 3) for i, prompt in enumerate(prompts(13))]
    expected = finish(cuda(uri), asked)
    served = cuda(uri, speculation=Speculation("eagle3", 4, head.save(tmp_path / "head")))
    served._drafting.speculator.planner, served._drafting.turns = Always(4), Turns(lambda step: step % 9 > 2)
    if not graphs:
        served._rank.executor.verifying = served._rank.executor.graphs = {}
    for _ in range(2):  # the second time from the prefix cache
        assert finish(served, asked) == expected
    stats = served.stats()
    assert stats.accepted_tokens > 0.97 * stats.draft_tokens > 100


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kv", ["auto", "fp8"])
def test_half_precision_is_near_float32(dtype: str, kv: str, tmp_path: Path) -> None:
    """Logarithms of the first token's probability; in half precision later tokens may rightly differ."""
    uri, reference = saved(tmp_path, "qwen3", initializer_range=0.05)
    reference.to(getattr(torch, dtype)).save_pretrained(tmp_path)
    served = cuda(uri, kv_cache_dtype=kv)
    prompt = prompts(1)[0]
    served.add(ask("one", prompt, 1, logprobs=5))
    (output,) = [output for _ in range(4) for output in served.step(0.0) if output.token_ids]
    with torch.inference_mode():
        exact = reference.float()(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    assert output.logprobs[0].logprob == pytest.approx(float(exact[output.token_ids[0]]), abs=0.15)


def test_sleep_gives_memory_back_and_waking_changes_nothing(tmp_path: Path) -> None:
    uri, _ = saved(tmp_path)
    served, asked = cuda(uri), [ask(str(i), prompt, 8) for i, prompt in enumerate(prompts(3))]
    before, held = finish(served, asked), torch.cuda.memory_allocated()
    for level in (1, 2):
        served.sleep(level)
        assert torch.cuda.memory_allocated() < held
        served.wake()
        assert finish(served, asked) == before
