"""Protects quantised checkpoints of whole models: what the engine answers is what transformers answers with the floats that the
formats' own formulas give, whether the weights stay packed or are widened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engine.files import FAMILIES, SMOLLM2, random_model
from support.engine.formats import E2M1, FORMATS, nibbles, write
from support.engine.reference import answers, assert_all_greedy, engine
from torch.utils._python_dispatch import TorchDispatchMode

from pagefleet_engine.model.checkpoint import source
from pagefleet_engine.model.checkpoint.weights import load
from pagefleet_engine.model.prepare import Preparation
from pagefleet_kernels.cpu import Coded, operations


@pytest.mark.parametrize("form", FORMATS)
def test_a_format_answers_as_its_floats(form: str, tmp_path: Path) -> None:
    uri, reference = write(tmp_path, form)
    served = engine(uri)
    assert served.description["weights"] == FORMATS[form][2]
    prompts = [list(range(3, 3 + length)) for length in (1, 15, 40, 80)]
    generated = answers(served, prompts, 8)
    assert len({token for answer in generated for token in answer}) > 8
    assert_all_greedy(reference, list(zip(prompts, generated, strict=True)))


@pytest.mark.parametrize("form", FORMATS)
def test_memory_is_planned_for_the_form_in_which_a_layer_is_kept(form: str, tmp_path: Path) -> None:
    """Embedding and output stay in the file's floats."""
    uri, reference = write(tmp_path, form)
    planned = load(source.resolve(uri))[1].element_bytes
    kept = load(source.resolve(uri))[1]
    for name, weight in reference.state_dict().items():
        if name.endswith("_proj.weight"):
            form_of = kept.take_compact({name: weight.shape[0]}, weight.shape[1])
            size = form_of.bits / 8 + 8 / form_of.group if isinstance(form_of, Coded) else form_of[0].element_size()
            assert size == planned.layers
    assert (planned.output, planned.embedding) == (4, 4)
    assert planned.layers == {"gptq": 0.75, "w4a16": 0.75, "w8a8": 1.25, "gptq by activation": 4}.get(
        form, planned.layers
    )


def test_mxfp4_experts_answer_as_their_floats(tmp_path: Path) -> None:
    """gpt-oss's: [experts, out, in / 32, 16] pairs and [experts, out, in / 32] exponents, gates and ups in turn."""
    reference = random_model(FAMILIES["gpt_oss"])
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(8)
    reference.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    parameters = dict(reference.named_parameters())
    for name in [one for one in state if one.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        weight = state.pop(name).transpose(1, 2)
        exponents = (weight.unflatten(-1, (-1, 32)).abs().amax(-1) / 6).log2().ceil()
        codes = nibbles(weight, exponents.exp2(), 32)
        pairs = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
        state[f"{name}_blocks"] = pairs.unflatten(-1, (-1, 16)).contiguous()
        state[f"{name}_scales"] = (exponents + 127).to(torch.uint8)
        with torch.no_grad():
            parameters[name].copy_((E2M1[codes] * exponents.exp2().repeat_interleave(32, -1)).transpose(1, 2))
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "model.safetensors")
    document = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**document, "quantization_config": {"quant_method": "mxfp4"}}))
    served = engine(f"file://{tmp_path}")
    assert served.description["weights"] == "mxfp4, widened"
    prompts = [list(range(3, 3 + length)) for length in (1, 15, 40, 80)]
    assert_all_greedy(reference, list(zip(prompts, answers(served, prompts, 8), strict=True)))


class Copies(TorchDispatchMode):
    """Counts the copies of whole tensors of so many elements, in their own dtype, that are made meanwhile."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements, self.count = elements, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        copies = func in (torch.ops.aten._to_copy.default, torch.ops.aten.clone.default)
        self.count += copies and made.numel() == self.elements and args[0].dtype == made.dtype
        return made


def test_an_embedding_that_was_made_from_codes_is_not_copied() -> None:
    """It is as large as all the rest of a small model in codes, and would lie in memory twice."""
    config, unread = load(source.resolve(SMOLLM2))
    with Copies(config.vocab_size * config.hidden_size) as copies:
        embedding, _ = Preparation(config, unread, operations(1, "reference"), int8=False).ends()
    assert embedding.shape == (config.vocab_size, config.hidden_size)
    assert copies.count == 0


def test_an_embedding_that_is_a_view_of_its_file_is_copied(tmp_path: Path) -> None:
    random_model(FAMILIES["llama"]).save_pretrained(tmp_path)
    config, unread = load(source.resolve(f"file://{tmp_path}"))
    with Copies(config.vocab_size * config.hidden_size) as copies:
        Preparation(config, unread, operations(1, "reference"), int8=False).ends()
    assert copies.count >= 1
