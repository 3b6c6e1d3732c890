"""Protects log probabilities of answers and prompts, embeddings and penalised answers. All are as transformers computes
them, none depends on the other requests of the batch, nor on the instructions that the operations were compiled for."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine.compiled_operations import EACH_INSTRUCTIONS
from support.engine.reference import KERNELS, MostRows, Served, ask, engine, serve, tiny
from transformers import GenerationConfig, LlamaForCausalLM

from pagefleet_engine.core.requests import EngineRequest, TokenLogprobs
from pagefleet_engine.runner.common.prompts import LOGIT_ROWS

ALIKE = 2e-4  # nats: what fp32 sums in another order come to
PROMPTS = [[3 + (7 * place * one + 31 * one) % 290 for place in range(1 + 13 * one)] for one in range(7)]


def assert_logprobs(reference: LlamaForCausalLM, prompt: list[int], answer: Served, most: int) -> None:
    """Compare every token's log probability and rank, and the most likely tokens, with those of log_softmax."""
    with torch.inference_mode():
        tables = reference(torch.tensor([prompt + answer.tokens])).logits[0].log_softmax(dim=-1)
    entries = [*(answer.prompt_logprobs or ()), *answer.logprobs]
    places = range(len(prompt) - 1 if answer.prompt_logprobs is None else 0, len(prompt) + len(answer.tokens) - 1)
    assert len(entries) == len(places)
    for place, entry in zip(places, entries, strict=True):
        table = tables[place]
        assert entry.token == (prompt + answer.tokens)[place + 1]
        assert entry.logprob == pytest.approx(float(table[entry.token]), abs=ALIKE)
        # Two tokens closer than that may stand either way round.
        above, level = (int((table > table[entry.token] + by).sum()) for by in (2 * ALIKE, -2 * ALIKE))
        assert above < entry.rank <= level
        assert len({token for token, _ in entry.top}) == most
        assert [value for _, value in entry.top] == pytest.approx(table.topk(most).values.tolist(), abs=ALIKE)
        assert [value for _, value in entry.top] == pytest.approx([float(table[t]) for t, _ in entry.top], abs=ALIKE)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("changes", [{}, {"max_chunk_tokens": 5}, {"num_pages": 9, "max_model_len": 128}])
def test_log_probabilities_are_those_of_transformers(changes: dict[str, Any], kernels: str, tmp_path: Path) -> None:
    uri, reference = tiny(tmp_path)
    served = engine(uri, kernels=kernels, **changes)
    # Of the model's own distribution, whatever temperature, bias and penalties make of it.
    sampling = {"temperature": 1.5, "logprobs": 4, "frequency_penalty": 1.0, "logit_bias": ((9, 2.0),), "top_k": 30}
    requests = [
        ask(str(index), prompt, 40, prompt_logprobs=4 if index % 2 else None, **sampling)
        for index, prompt in enumerate(PROMPTS)
    ]
    answers = serve(served, requests)
    for index, prompt in enumerate(PROMPTS):
        assert len(answers[str(index), 0].tokens) == 40
        assert_logprobs(reference, prompt, answers[str(index), 0], 4)
    if "num_pages" in changes:
        assert served.stats().preemptions > 0


def test_a_long_prompts_logits_are_never_in_memory_together(tmp_path: Path) -> None:
    """Of a vocabulary of 150,000 tokens, those of 2,048 rows would take 1.2 GB, beside a pool that has taken the rest."""
    uri, reference = tiny(tmp_path)
    served, prompt = engine(uri, kernels="reference"), [3 + 7 * place % 290 for place in range(200)]
    with MostRows(300) as noted:
        answer = serve(served, [ask("a", prompt, 2, logprobs=1, prompt_logprobs=1)])["a", 0]
    assert 1 < noted.rows <= LOGIT_ROWS
    assert_logprobs(reference, prompt, answer, 1)


def test_prompt_logprobs_need_no_cache_and_come_once_with_several_answers(tmp_path: Path) -> None:
    uri, reference = tiny(tmp_path)
    served, prompt = engine(uri), PROMPTS[5]
    serve(served, [ask("first", prompt, 2)])  # its pages are cached, but all positions have to be computed
    sampling = {"temperature": 1.0, "seed": 1}
    answers = serve(served, [ask("a", prompt, 4, n=3, logprobs=0, prompt_logprobs=0, **sampling)])
    assert [answers["a", index].prompt_logprobs is None for index in range(3)] == [False, True, True]
    for index in range(3):
        assert_logprobs(reference, prompt, answers["a", index], 0)
    assert len({tuple(answers["a", index].tokens) for index in range(3)}) == 3
    alone = serve(served, [ask("b", [5], 1, prompt_logprobs=1)])["b", 0]
    assert alone.prompt_logprobs is None, "nothing comes before the only token"


@pytest.mark.parametrize(
    "changes", [{}, {"max_chunk_tokens": 7}, {"num_pages": 8, "max_chunk_tokens": 9, "max_model_len": 128}]
)
def test_an_embedding_is_the_mean_of_the_last_hidden_states(changes: dict[str, Any], tmp_path: Path) -> None:
    uri, reference = tiny(tmp_path)
    served = engine(uri, **changes)
    texts = [replace(ask(f"e{index}", prompt, 1), embed=True) for index, prompt in enumerate(PROMPTS)]
    # Beside answers that grow: with few pages an embedding is preempted half-way and begins again.
    others = [ask(f"a{index}", prompt[:14], 30) for index, prompt in enumerate(PROMPTS[2:5])]
    answers = serve(served, [*others, *texts])
    for index, prompt in enumerate(PROMPTS):
        answer = answers[f"e{index}", 0]
        with torch.inference_mode():
            expected = reference.model(torch.tensor([prompt]))[0][0].mean(dim=0)
        assert (answer.tokens, answer.finish) == ([], "stop")
        torch.testing.assert_close(torch.tensor(answer.embedding), expected, rtol=1e-4, atol=1e-4)
    assert all(
        len(answers[f"a{index}", 0].tokens) == 30 and answers[f"a{index}", 0].embedding is None for index in range(3)
    )


def test_a_prompt_that_is_preempted_half_way_begins_again(tmp_path: Path) -> None:
    uri, reference = tiny(tmp_path)
    served, prompt = engine(uri, max_num_seqs=1, max_chunk_tokens=8), PROMPTS[6]
    for name, request in {
        "embedding": replace(ask("embedding", prompt, 1), embed=True),
        "logprobs": ask("logprobs", prompt, 1, logprobs=1, prompt_logprobs=1),
    }.items():
        before = served.stats().preemptions
        urgent = replace(ask("urgent", PROMPTS[1], 2), priority=1)
        answers = serve(served, [request], lambda step, urgent=urgent: served.add(urgent) if step == 3 else None)
        assert served.stats().preemptions == before + 1
        if name == "logprobs":
            assert_logprobs(reference, prompt, answers[name, 0], 1)
        else:
            expected = reference.model(torch.tensor([prompt]))[0][0].mean(dim=0).detach()
            torch.testing.assert_close(torch.tensor(answers[name, 0].embedding), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"repetition_penalty": 1.4}, {"repetition_penalty": 1.4}),
        ({"repetition_penalty": 0.7}, {"repetition_penalty": 0.7}),
        ({"min_tokens": 6, "ignore_eos": False}, {"min_new_tokens": 6}),
        ({"logit_bias": ((20, 4.0), (30, -3.0))}, {"sequence_bias": [[[20], 4.0], [[30], -3.0]]}),
    ],
    ids=lambda changes: ",".join(changes),
)
@torch.inference_mode()
def test_changed_logits_give_transformers_answers(ours: dict[str, Any], theirs: dict[str, Any], tmp_path: Path) -> None:
    uri, reference = tiny(tmp_path, initializer_range=0.1)
    reference.generation_config = GenerationConfig(pad_token_id=0, eos_token_id=2 if "min_tokens" in ours else None)
    served = engine(uri)
    plain = serve(served, [ask(str(index), prompt, 16) for index, prompt in enumerate(PROMPTS)])
    answers = serve(served, [ask(str(index), prompt, 16, **ours) for index, prompt in enumerate(PROMPTS)])
    for index, prompt in enumerate(PROMPTS):
        tokens = torch.tensor([prompt])
        expected = reference.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=16, do_sample=False, **theirs
        )[0, len(prompt) :].tolist()
        assert answers[str(index), 0].tokens == expected
    assert answers != plain or "min_tokens" in ours


def everything() -> list[EngineRequest]:
    """Return greedy and seeded requests with log probabilities of every token. Every third has those of its prompt too."""
    chosen = random.Random(5)
    shared = [chosen.randrange(3, 300) for _ in range(50)]
    return [
        ask(
            str(index), shared[: chosen.randrange(0, 50)] + [chosen.randrange(3, 300) for _ in range(1 + 3 * index)], 18,
            logprobs=3, prompt_logprobs=2 if index % 3 == 0 else None, seed=index,
            temperature=0.9 if index % 2 else 0.0,
        )
        for index in range(12)
    ]  # fmt: skip


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_request_is_bit_for_bit_the_same_in_any_company(quantization: str, tmp_path: Path) -> None:
    """Alone, in a batch, in chunks, after preemption, from the cache. The operations in torch promise only the tokens."""
    uri, _ = tiny(tmp_path)
    requests = everything()
    served = engine(uri, quantization=quantization, prefix_caching=False)
    alone: dict[tuple[str, int], Served] = {}
    for request in requests:
        alone |= serve(served, [request])
    assert served.stats().prefix_hits == 0
    exact = served.description["kernels"] == "native"
    together = engine(uri, quantization=quantization)
    for name, company in {
        "batch": together,
        "cache": together,
        "chunks": engine(uri, quantization=quantization, max_chunk_tokens=7, max_num_batched_tokens=40),
        "preemption": engine(uri, quantization=quantization, num_pages=12, max_model_len=128),
        "pages": engine(uri, quantization=quantization, page_size=64, num_pages=64),
        "static": engine(uri, quantization=quantization, batching="static", max_num_seqs=5),
    }.items():
        answers = serve(company, requests)
        for key, expected in alone.items():
            assert answers[key].tokens == expected.tokens, (name, key)
            if exact:
                assert answers[key] == expected, (name, key)
        assert company.stats().preemptions > 0 or name != "preemption"
    assert together.stats().prefix_hits > 0


def test_a_single_token_says_one_thing(tmp_path: Path) -> None:
    uri, _ = tiny(tmp_path)
    [answer] = serve(engine(uri), [ask("a", [5, 6], 1, logprobs=1000)]).values()
    assert len(answer.logprobs) == 1
    assert isinstance(answer.logprobs[0], TokenLogprobs)
    assert len(answer.logprobs[0].top) == 300


@pytest.mark.parametrize("instructions", EACH_INSTRUCTIONS)
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_every_instruction_set_gives_the_same_answers(quantization: str, instructions: str, tmp_path: Path) -> None:
    uri, _ = tiny(tmp_path)
    fastest, named = (engine(uri, quantization=quantization, kernels=kernels) for kernels in ("native", instructions))
    assert named.description["instructions"] == instructions
    assert serve(named, everything()) == serve(fastest, everything())
