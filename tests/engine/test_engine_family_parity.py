"""Protects exact greedy parity with transformers in float32 of every supported family, with both sets of operations."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from support.engine.files import FAMILIES, SIZES, random_model
from support.engine.reference import KERNELS, all_logits, answers, assert_all_greedy, engine
from transformers import LlamaConfig, PreTrainedModel

from pagefleet_engine.model.checkpoint.errors import ModelError


def sharp(family: str) -> PreTrainedModel:
    """Return a model whose attention is narrow and whose choices are clear. A defect changes them, rounding does not."""
    model = random_model(FAMILIES[family])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(8)
    return model


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_token_exact(family: str, kernels: str, tmp_path: Path) -> None:
    reference = sharp(family)
    reference.save_pretrained(tmp_path)
    # Longer than the windows, and than the length from which yarn and llama3 scale.
    lengths, chosen = [1, 15, 17, 40, 100, 180], random.Random(3)
    prompts = [[chosen.randrange(3, 96) for _ in range(length)] for length in lengths]
    served = engine(f"file://{tmp_path}", kernels=kernels, max_num_batched_tokens=64)
    generated = answers(served, prompts, 8)
    assert len({token for answer in generated for token in answer}) > 8
    assert_all_greedy(reference, list(zip(prompts, generated, strict=True)))
    assert answers(served, prompts, 8) == generated
    assert served.stats().prefix_hits >= 16 + 32 + 96 + 176, "the second time, pages of the longer prompts are reused"


@pytest.mark.parametrize("family", FAMILIES)
def test_int8_stays_close_to_float32(family: str, tmp_path: Path) -> None:
    random_model(FAMILIES[family]).save_pretrained(tmp_path)
    texts, uri = [list(range(3, 90))], f"file://{tmp_path}"
    exact, rounded = (next(all_logits(uri, texts, quantization)) for quantization in ("none", "int8"))
    assert float((rounded - exact).norm() / exact.norm()) < 0.05
    assert not torch.equal(rounded, exact)


@pytest.mark.parametrize("head_dim", [24, 272])
def test_heads_that_the_pages_cannot_hold_are_refused(head_dim: int, tmp_path: Path) -> None:
    random_model(LlamaConfig(**SIZES, head_dim=head_dim)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"head_dim is {head_dim}; supported: a multiple of 16 up to 256") as raised:
        engine(f"file://{tmp_path}")
    assert raised.value.field == "spec.model.source"


def test_pages_that_are_no_multiple_of_16_are_refused(tmp_path: Path) -> None:
    random_model(LlamaConfig(**SIZES)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="must be a multiple of 16, not 24") as raised:
        engine(f"file://{tmp_path}", page_size=24)
    assert raised.value.field == "spec.engine.kvCache.pageSize"
