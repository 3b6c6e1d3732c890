"""Protects the registry of model families: a family that is one module and one line loads, and answers as transformers does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.engine.files import SIZES, random_model
from support.engine.reference import KERNELS, answers, assert_all_greedy, engine
from transformers import PreTrainedModel, Qwen2Config

from pagefleet_engine.model.checkpoint import source
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.model.checkpoint.weights import load
from pagefleet_engine.model.families import registry
from pagefleet_engine.model.families.family import Document, Family, Sliding

# Its names: of config.json, and of tensors; every second layer has a window.
KEYS = {"width": "hidden_size", "inner": "intermediate_size", "depth": "num_hidden_layers", "heads": "num_attention_heads",
        "shared": "num_key_value_heads"}  # fmt: skip
PARTS = {
    "transformer.embed.": "model.embed_tokens.", "transformer.blocks.": "model.layers.", "transformer.last.": "model.norm.",
    ".attention.query.": ".self_attn.q_proj.", ".attention.key.": ".self_attn.k_proj.",
    ".attention.value.": ".self_attn.v_proj.", ".attention.output.": ".self_attn.o_proj.",
}  # fmt: skip


def _config(document: Document) -> Document:
    return {KEYS.get(name, name): value for name, value in document.items()}


def _tensor(name: str) -> str:
    for theirs, ours in PARTS.items():
        name = name.replace(theirs, ours)
    return name


def _sliding(document: Document, layers: int) -> Sliding:
    return document["window"], [index % 2 == 1 for index in range(layers)]


TOY = Family("toy", config=_config, tensor=_tensor, attention_bias=True, sliding=_sliding)


def saved(folder: Path, **more: Any) -> PreTrainedModel:
    """Save a random Qwen2 under the toy family's names. Its choices are clear."""
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    theirs = Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=16, layer_types=kinds)
    model = random_model(theirs)
    tensors = {}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
    for name, tensor in model.state_dict().items():
        for toy, ours in PARTS.items():
            name = name.replace(ours, toy)
        tensors[name] = tensor.contiguous()
    save_file(tensors, folder / "model.safetensors")
    toys = {ours: toy for toy, ours in KEYS.items()}
    document = {
        "model_type": "toy", "window": 16, "rms_norm_eps": theirs.rms_norm_eps, "hidden_act": "silu",
        **{toys.get(name, name): value for name, value in SIZES.items()}, **more,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(document))
    return model


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_family_is_a_module_and_a_line(kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = saved(tmp_path)
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, TOY))
    served = engine(f"file://{tmp_path}", kernels=kernels)
    assert served.description["architecture"] == "toy"
    prompts = [list(range(3, 3 + length)) for length in (1, 15, 40, 90)]
    generated = answers(served, prompts, 8)
    assert len({token for answer in generated for token in answer}) > 8
    assert_all_greedy(reference, list(zip(prompts, generated, strict=True)))


def test_a_family_without_its_line_is_refused_with_those_that_are_served(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(ModelError, match="model_type 'toy' is not supported; supported: llama, mistral, qwen2, qwen3"):
        load(source.resolve(f"file://{tmp_path}"))


def test_every_option_of_the_toy_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that did not read them would load none of these."""
    saved(tmp_path)
    for changed in (replace(TOY, tensor=str), replace(TOY, config=dict)):
        monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, changed))
        with pytest.raises(ModelError):
            engine(f"file://{tmp_path}")
        monkeypatch.undo()


def test_names_of_families_are_unique() -> None:
    """Two entries of one name would hide each other."""
    assert len(set(registry.model_types())) == len(registry.FAMILIES)
    assert len(set(registry.architectures())) == len(registry.architectures())
