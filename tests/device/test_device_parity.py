"""Protects the device runner's exact greedy parity with transformers, on the CPU: Triton in its interpreter, and the
kernels' references, over mixed prefill and decode, prefix hits, preemption, and requests in which the host has a say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.engine.device_engine import FAMILIES, INTERPRETED, adapter, device_engine, finish, prompts, saved
from support.engine.reference import MostRows, ask, assert_greedy, engine, serve

from pagefleet_engine.core.requests import Pooling
from pagefleet_engine.runner.common.prompts import LOGIT_ROWS
from pagefleet_engine.runner.device.steps.memory import first_steps


@pytest.mark.parametrize(
    ("kernels", "family"),
    [*(("auto", family) for family in INTERPRETED), *(("reference", family) for family in FAMILIES)],
)
def test_mixed_batches_are_token_exact(family: str, kernels: str, tmp_path: Path) -> None:
    uri, reference = saved(tmp_path, family)
    served = device_engine(uri, kernels=kernels, max_num_batched_tokens=48, max_chunk_tokens=32)
    assert served.description["kernels"] == ("triton" if kernels == "auto" else "reference")
    asked = prompts(4 if kernels == "auto" else 12)
    most = 5 if kernels == "auto" else 14
    answers = finish(served, [ask(str(index), prompt, most) for index, prompt in enumerate(asked)])
    for index, prompt in enumerate(asked):
        assert len(answers[str(index), 0]) == most
        assert_greedy(reference, prompt, answers[str(index), 0])


@pytest.mark.parametrize("family", ["llama", "mistral, sliding", "qwen2_moe"])
@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_the_first_steps_run_in_a_pool_of_one_page(family: str, kernels: str, tmp_path: Path) -> None:
    """On a GPU an engine computes them before it serves."""
    served = device_engine(saved(tmp_path, family)[0], kernels=kernels, max_num_seqs=4, max_num_batched_tokens=80)
    rank, config = served._rank, served._config
    model = rank.executor.model
    pool = model.pool(1, config.page_size, model.dtype)
    executor = rank._on(model, pool, rank._prepared([pool], []))
    for step in first_steps(config, rank.max_model_len, model.config):
        assert len(executor.launch(step).tokens()) == len(step.owners)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_preemption_in_a_tiny_pool_is_token_exact(seed: int, tmp_path: Path) -> None:
    uri, reference = saved(tmp_path, seed=seed)
    served = device_engine(uri, num_pages=9, max_model_len=128, max_num_batched_tokens=48)
    asked = prompts(16, longest=20)
    answers = finish(served, [ask(str(index), prompt, 50) for index, prompt in enumerate(asked)])
    for index, prompt in enumerate(asked):
        assert_greedy(reference, prompt, answers[str(index), 0])
    stats = served.stats()
    assert stats.preemptions > 0
    assert stats.prefix_hits > 0
    assert stats.pages_free + stats.pages_cached == stats.pages_total


def test_an_end_of_text_token_ends_an_answer_that_is_already_computed_further(tmp_path: Path) -> None:
    uri, _ = saved(tmp_path)
    asked = prompts(10)
    whole = finish(device_engine(uri), [ask(str(index), prompt, 20) for index, prompt in enumerate(asked)])
    # Whatever comes fifth is made the stop token: known to the host only when the sixth is being computed.
    stops = [whole[str(index), 0][4] for index in range(len(asked))]
    served = device_engine(uri, num_pages=40)
    answers = finish(
        served,
        [ask(str(index), prompt, 20, stop_token_ids=(stops[index],)) for index, prompt in enumerate(asked)],
    )
    for index, stop in enumerate(stops):
        expected = whole[str(index), 0]
        assert answers[str(index), 0] == expected[: expected.index(stop) + 1]


def test_what_the_host_has_a_say_in_is_as_on_the_cpu(tmp_path: Path) -> None:
    uri, _ = saved(tmp_path)
    asked = prompts(6)
    requests = [
        ask("plain", asked[0], 9),
        ask("penalised", asked[1], 9, frequency_penalty=1.5, presence_penalty=0.5),
        ask("biased", asked[2], 9, logit_bias=((17, 4.0), (23, 3.0))),
        ask("scored", asked[3], 9, logprobs=3, prompt_logprobs=2),
        ask("forked", asked[4], 9, n=3),
        ask("repeated", asked[5], 9, repetition_penalty=1.4),
    ]
    expected = serve(engine(uri, kernels="reference"), requests)
    here = device_engine(uri, max_num_batched_tokens=40)
    answers = serve(here, requests)  # type: ignore[arg-type]
    assert {key: one.tokens for key, one in answers.items()} == {key: one.tokens for key, one in expected.items()}
    for mine, theirs in zip(answers["scored", 0].logprobs, expected["scored", 0].logprobs, strict=True):
        assert (mine.token, mine.rank) == (theirs.token, theirs.rank)
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
    prompt_logprobs = answers["scored", 0].prompt_logprobs or ()
    assert len(prompt_logprobs) == len(asked[3]) - 1
    assert [one.token for one in prompt_logprobs] == asked[3][1:]
    assert [one.logprob for one in prompt_logprobs] == pytest.approx(
        [one.logprob for one in expected["scored", 0].prompt_logprobs or ()], abs=1e-4
    )


def test_the_logits_of_long_prompts_are_never_in_memory_together(tmp_path: Path) -> None:
    uri, _ = saved(tmp_path)
    lengths = {"a": 90, "b": 120}
    requests = [ask(name, [3 + 7 * place % 290 for place in range(length)], 3, prompt_logprobs=1)
                for name, length in lengths.items()]  # fmt: skip
    expected = serve(engine(uri, kernels="reference"), requests)
    with MostRows(301) as noted:
        answers = serve(device_engine(uri), requests)  # type: ignore[arg-type]
    assert 1 < noted.rows <= LOGIT_ROWS
    for key, one in expected.items():
        mine, theirs = answers[key].prompt_logprobs or (), one.prompt_logprobs or ()
        assert [entry.token for entry in mine] == [entry.token for entry in theirs]
        assert [entry.logprob for entry in mine] == pytest.approx([entry.logprob for entry in theirs], abs=1e-4)


@pytest.mark.parametrize("pooling", list(Pooling))
def test_embeddings_are_those_of_the_cpu(pooling: Pooling, tmp_path: Path) -> None:
    """In chunks, beside an answer."""
    uri, _ = saved(tmp_path)
    requests = [
        replace(ask(str(index), prompt, 1), embed=True, pooling=pooling) for index, prompt in enumerate(prompts(4))
    ]
    requests.append(ask("beside", prompts(5)[4], 6))
    expected = serve(engine(uri, kernels="reference"), requests)
    answers = serve(device_engine(uri, max_num_batched_tokens=24, max_chunk_tokens=16), requests)  # type: ignore[arg-type]
    assert answers["beside", 0].tokens == expected["beside", 0].tokens
    for index in range(4):
        mine, theirs = answers[str(index), 0].embedding, expected[str(index), 0].embedding
        assert mine is not None and theirs is not None and len(mine) == 64
        assert mine == pytest.approx(theirs, abs=1e-4)


def test_a_seeded_request_draws_the_same_alone_and_in_a_batch(tmp_path: Path) -> None:
    uri, _ = saved(tmp_path)
    served, asked = device_engine(uri), prompts(8)
    sampling = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "min_p": 0.001, "seed": 11}
    together = finish(served, [ask(str(index), prompt, 8, **sampling) for index, prompt in enumerate(asked)])
    for index, prompt in enumerate(asked):
        assert finish(served, [ask(str(index), prompt, 8, **sampling)])[str(index), 0] == together[str(index), 0]
    beside_a_bias = [ask("0", asked[0], 8, **sampling), ask("b", asked[1], 8, logit_bias=((5, 1.0),))]
    assert finish(served, beside_a_bias)["0", 0] == together["0", 0]
    other = finish(served, [ask(str(i), p, 8, **{**sampling, "seed": 12}) for i, p in enumerate(asked)])
    assert other != together


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_padded_decode_steps_are_token_exact(kernels: str, tmp_path: Path) -> None:
    """What graphs are captured of, launched without one: batches padded to sizes that are larger."""
    uri, reference = saved(tmp_path)
    served = device_engine(uri, kernels=kernels)
    executor, taken = served._rank.executor, []

    def single(columns: torch.Tensor) -> torch.Tensor:
        taken.append(columns.shape[1])
        return executor.single(columns)

    executor.graphs = dict.fromkeys((2, 4, 16), single)
    asked = prompts(3 if kernels == "auto" else 7)
    answers = finish(
        served,
        [
            ask(str(index), prompt, 4 + index, temperature=0.0 if index else 0.8, seed=5)
            for index, prompt in enumerate(asked)
        ],
    )
    for index, prompt in enumerate(asked[1:], 1):
        assert_greedy(reference, prompt, answers[str(index), 0])
    assert set(taken) == ({2, 4} if kernels == "auto" else {2, 4, 16})
    alone = device_engine(uri, kernels="reference")
    assert finish(alone, [ask("0", asked[0], 4, temperature=0.8, seed=5)])["0", 0] == answers["0", 0]


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_pages_come_back_from_the_host_as_they_were(kernels: str, tmp_path: Path) -> None:
    uri, reference = saved(tmp_path)
    page = 2 * 2 * 2 * 16 * 16 * 4  # keys and values, layers, heads, tokens, elements, bytes
    served = device_engine(uri, kernels=kernels, num_pages=4, max_model_len=64, kv_offload_memory=40 * page)
    asked = [list(range(3 + 50 * index, 50 + 50 * index)) for index in range(2)]
    for turn in range(2):
        for index, prompt in enumerate(asked):
            answer = finish(served, [ask(f"{turn} {index}", prompt, 3)])[f"{turn} {index}", 0]
            assert_greedy(reference, prompt, answer)
    stats = served.stats()
    assert stats.prefix_hits == 2 * 32  # two full pages of each prompt, in the second turn


def test_an_adapter_changes_its_own_requests_only(tmp_path: Path) -> None:
    uri, _ = saved(tmp_path / "model")
    path = adapter(tmp_path / "adapter", ("v_proj",))
    asked = prompts(4)
    plain = finish(device_engine(uri), [ask(str(index), prompt, 8) for index, prompt in enumerate(asked)])
    requests = [ask(str(i), prompt, 8, adapter="one" if i % 2 else None) for i, prompt in enumerate(asked)]
    expected = serve(engine(uri, kernels="reference", adapters=(("one", path),)), requests)
    answers = finish(device_engine(uri, adapters=(("one", path),)), requests)
    assert answers == {key: one.tokens for key, one in expected.items()}
    assert [answers[str(i), 0] == plain[str(i), 0] for i in range(4)] == [True, False, True, False]
