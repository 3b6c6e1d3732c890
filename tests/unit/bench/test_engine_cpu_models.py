"""Protects what bench/engine_cpu.py's peers read: its W8A8 and AWQ checkpoints hold the weights of the floats to within a rounding
step, as our own readers unpack them; llama.cpp's build is the best one for the processor; and real text asks for what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))

from cpubench.made import llama, quantised
from cpubench.made.quantised import Form
from cpubench.modes import realtext

from pagefleet_engine.model.checkpoint import dequantise, quantization

LAYER = "model.layers.0.mlp.up_proj"
NORM = "model.norm.weight"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "floats"
    folder.mkdir()
    drawn = torch.randn(96, 192, generator=torch.Generator().manual_seed(2)) * 0.02
    save_file({f"{LAYER}.weight": drawn, NORM: torch.ones(192)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"hidden_size": 192, "intermediate_size": 192}))
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize(("form", "steps"), [(Form.W8A8, 127), (Form.AWQ, 7)])
def test_a_quantised_checkpoint_holds_the_same_weights(source: Path, tmp_path: Path, form: Form, steps: int) -> None:
    target = tmp_path / form
    quantised.write(source, target, form)
    described = json.loads((target / "config.json").read_text())
    stored = quantization.parse(described["quantization_config"])
    assert stored is not None
    tensors = load_file(target / "model.safetensors")
    assert tensors.pop(NORM).dtype is torch.bfloat16
    (names,) = dequantise.parts(stored, tensors).values()
    assert set(names) == set(tensors)
    layer = dequantise.packed(stored, {name.rpartition(".")[2]: tensors[name] for name in names})
    weight = load_file(source / "model.safetensors")[f"{LAYER}.weight"]
    assert (layer.dequantise() - weight).abs().max() <= weight.abs().max() / steps
    assert (target / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        (
            {"avx2", "fma", "avx512f", "avx512vbmi", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_tile"},
            "sapphirerapids",
        ),
        ({"avx2", "fma", "avx512f", "avx512vbmi", "avx512_vnni", "avx512_bf16"}, "zen4"),
        ({"avx2", "fma"}, "haswell"),
        (set(), "x64"),
    ],
)
def test_llama_cpp_runs_the_best_build_for_the_processor(tmp_path: Path, flags: set[str], chosen: str) -> None:
    for name, _ in llama.VARIANTS:
        (tmp_path / f"libggml-cpu-{name}.so").touch()
    assert llama.backend(tmp_path, frozenset(flags)).name == f"libggml-cpu-{chosen}.so"


def test_half_of_the_real_text_s_prompts_work_on_a_passage() -> None:
    text = (Path(realtext.__file__).parents[1] / "text.txt").read_text()
    prompts = realtext.prompts(text)
    passages = [part.strip() for part in text.split("\n\n")]
    assert sum(any(passage in prompt for passage in passages) for prompt in prompts) == len(prompts) / 2
