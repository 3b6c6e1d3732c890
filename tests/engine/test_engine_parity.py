"""Protects exact greedy parity with transformers in float32 on SmolLM2 (chunks, prefix hits), and int8's quality."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from engine_reference import SMOLLM2, all_logits, answers, assert_greedy, engine, smollm2
from transformers import LlamaForCausalLM

from pagefleet_engine.model import source, tokenizer

TEXT = (
    "Water is heated by the sun until it rises as vapour, cools, and falls again as rain. A fleet of servers shares "
    "its work the same way: what one cannot hold, another takes. In 1969 three people flew to the moon; two of them "
    "walked on it. def add(a, b):\n    return a + b\n\nThe price rose from 12.50 to 13.75 within one week, a tenth. "
)


@pytest.fixture(scope="module")
def reference() -> Iterator[LlamaForCausalLM]:
    yield smollm2()


def prompts(count: int) -> list[list[int]]:
    """Pieces of text of 1 to 120 tokens; several share a beginning."""
    ids = tokenizer.load(source.resolve(SMOLLM2)).encode(TEXT * 2)
    chosen = random.Random(7)
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 64, 120]
    lengths += [chosen.randrange(3, 90) for _ in range(count - len(lengths))]
    starts = [0 if index % 3 == 0 else chosen.randrange(0, 40) for index in range(count)]
    return [ids[start : start + length] for start, length in zip(starts, lengths, strict=True)]


def test_twenty_four_prompts_together_are_token_exact(reference: LlamaForCausalLM) -> None:
    asked = prompts(24)
    # A budget of 64 tokens: the longest prompts are computed in chunks beside the others' decodes.
    served = engine(SMOLLM2, max_num_batched_tokens=64, max_num_seqs=16)
    found = answers(served, asked, 8)
    for prompt, answer in zip(asked, found, strict=True):
        assert_greedy(reference, prompt, answer)
    # Once more: now the beginnings come from the prefix cache.
    before = served.stats().prefix_hits
    assert answers(served, asked, 8) == found
    assert served.stats().prefix_hits - before > sum(map(len, asked)) // 2
    final = served.stats()
    assert (final.running, final.waiting, final.pages_free + final.pages_cached) == (0, 0, final.pages_total)


def test_int8_stays_close_to_float32(reference: LlamaForCausalLM) -> None:
    """The loss over a text, through the engine's own forward pass, is within 3 %."""
    ids = tokenizer.load(source.resolve(SMOLLM2)).encode(TEXT)
    with torch.inference_mode():
        exact = reference(torch.tensor([ids])).logits[0].log_softmax(dim=-1)
    rough = all_logits(SMOLLM2, ids, "int8").log_softmax(dim=-1)
    following = torch.tensor(ids[1:]).unsqueeze(1)
    losses = [-table[:-1].gather(1, following).mean().item() for table in (exact, rough)]
    agree = (exact.argmax(dim=-1) == rough.argmax(dim=-1)).float().mean().item()
    assert losses[1] < losses[0] * 1.03, losses
    assert agree > 0.75, agree
