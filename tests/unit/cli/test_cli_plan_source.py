"""Protects what `pagefleet plan` reads of a model: a folder of the Hugging Face cache, a GGUF file, how its weights are quantised."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from support.model_configs import LLAMA_3_8B
from typer.testing import CliRunner

from pagefleet_cli.base.errors import CommandError
from pagefleet_cli.main import app
from pagefleet_cli.plan.accelerators import accelerator
from pagefleet_cli.plan.memory import Load
from pagefleet_cli.plan.report import Request, plan, warnings
from pagefleet_cli.plan.shape import from_config
from pagefleet_cli.plan.source import precision, read
from pagefleet_cli.plan.spec_block import block


def test_the_hugging_face_cache_is_read_without_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models--org--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("abc\n")
    (folder / "snapshots/abc").mkdir(parents=True)
    (folder / "snapshots/abc/config.json").write_text(json.dumps(LLAMA_3_8B))
    (folder / "snapshots/abc/model.safetensors.index.json").write_text('{"metadata": {"total_size": 16060522496}}')
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    shape, held = read("hf://org/model")
    assert (shape.stored, held, shape.parameters) == (16_060_522_496, "bf16", 8_030_261_248)
    with pytest.raises(CommandError, match="not in the cache"):
        read("hf://org/other")


def test_a_gguf_file_says_its_own_sizes(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf({"block_count": 2, "attention.head_count": 4, "attention.head_count_kv": 2,
                           "embedding_length": 64, "context_length": 128},
                          {"token_embd.weight": (64, 10), "blk.0.attn_q.weight": (64, 64), "blk.0.attn_norm.weight": (64,)}))  # fmt: skip
    shape, held = read(str(path))
    assert (shape.layers, shape.heads, shape.kv_heads, shape.head_dim) == (2, 4, 2, 16)
    assert (shape.linear, shape.others, shape.longest, held) == (4096, 704, 128, None)
    assert shape.stored == path.stat().st_size


@pytest.mark.parametrize(
    ("kind", "more", "everything"),
    [
        ("gemma2", {}, {1, 3, 5, 7, 9, 11}), ("gpt_oss", {}, {1, 3, 5, 7, 9, 11}), ("gemma3_text", {}, {5, 11}), ("cohere2", {}, {3, 7, 11}),
        ("gemma3_text", {"sliding_window_pattern": 4}, {3, 7, 11}), ("mistral", {}, set()),
    ],
)  # fmt: skip
def test_families_whose_layers_alternate_keep_every_token_in_some(
    kind: str, more: dict[str, int], everything: set[int]
) -> None:
    """Their older configurations name the window and no layer; with the window in all of them a cache would seem a sixth of what it is."""
    shape = from_config(
        {**LLAMA_3_8B, "num_hidden_layers": 12, "model_type": kind, "sliding_window": 1024, **more}, kind
    )
    assert {index for index, window in enumerate(shape.windows) if window is None} == everything


def test_the_layers_of_a_gguf_file_alternate_as_its_family_does(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    numbers = {"block_count": 4, "attention.head_count": 4, "attention.head_count_kv": 2, "embedding_length": 64, "context_length": 128,
               "attention.sliding_window": 32}  # fmt: skip
    for family, windows in (("gemma2", (32, None, 32, None)), ("gpt-oss", (32, None, 32, None)), ("llama", (32,) * 4)):
        path.write_bytes(gguf(numbers, {}, family))
        assert read(str(path))[0].windows == windows


def test_a_checkpoint_in_fp8_computes_its_prompts_as_fast_as_one_that_is_made_fp8(tmp_path: Path) -> None:
    """Its files say so, and the plan must not count the arithmetic of 16 bits because their bytes are taken as they are."""
    config = {**LLAMA_3_8B, "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = ("--input-tokens", "4000", "--output-tokens", "100", "--requests-per-second", "50", "--output", "json")

    def planned(*more: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, ["plan", str(tmp_path), *asked, *more])
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = json.loads(result.output)
        return found

    made = planned("--weights", "fp8")
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": made["weightBytes"]}})
    )
    found = planned()
    assert (found["replicas"], found["tokensPerSecondReplica"]) == (made["replicas"], made["tokensPerSecondReplica"])
    assert any("does not compute in FP8" in line for line in planned("--accelerator", "A100-80GB")["warnings"])


def test_accelerators_that_no_engine_can_share_a_layer_among_are_doubted() -> None:
    """vLLM, SGLang and our own engine refuse three accelerators for 32 heads when they start."""
    for count, doubted in ((3, True), (4, False)):
        asked = Request("bf16", "bf16", Load(8192, 4096), accelerators=count)
        doubts = warnings(plan(from_config(LLAMA_3_8B, "llama"), accelerator("H100"), asked))
        assert any("cannot share 32 query heads" in line for line in doubts) is doubted


def test_a_plan_that_no_service_can_state_is_no_patch() -> None:
    """The API server would refuse it: more than a thousand replicas are several services."""
    asked = Request("bf16", "bf16", Load(8192, 4096), users=1_000_000)
    with pytest.raises(CommandError, match=r"--spec: spec.capacityPlan.replicas: must be from 1 to 1000, not"):
        block(plan(from_config(LLAMA_3_8B, "llama"), accelerator("H100"), asked))


def gguf(numbers: dict[str, int], tensors: dict[str, tuple[int, ...]], family: str = "llama") -> bytes:
    """Return a GGUF file with zeros for weights."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    whole = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(numbers) + 1)
    whole += text("general.architecture") + struct.pack("<I", 8) + text(family)
    for name, number in numbers.items():
        whole += text(f"{family}.{name}") + struct.pack("<II", 4, number)
    for name, shape in tensors.items():
        whole += (
            text(name)
            + struct.pack("<I", len(shape))
            + struct.pack(f"<{len(shape)}Q", *shape)
            + struct.pack("<IQ", 0, 0)
        )
    return whole + bytes(64 * 64 * 4 + 64)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "gptq", "bits": 4}, "awq"),
        ({"quant_method": "fp8"}, "fp8"),
        (None, "bf16"),
    ],
)
def test_a_checkpoint_says_how_it_is_quantised(config: dict[str, Any] | None, expected: str) -> None:
    assert precision({"quantization_config": config}) == expected


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([(8, "float")], "fp8"), ([(8, "int")], "int8"), ([(4, "int"), (4, "int")], "awq"), ([(4, "int"), (8, "float")], None),
        ([(4, "float")], None), ([], None),
    ],
)  # fmt: skip
def test_compressed_tensors_say_it_by_group(groups: list[tuple[int, str]], expected: str | None) -> None:
    """The form of most FP8 checkpoints of today."""
    named = {f"group_{i}": {"weights": {"num_bits": bits, "type": kind}} for i, (bits, kind) in enumerate(groups)}
    assert (
        precision({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": named}}) == expected
    )


@pytest.mark.parametrize("config", ["fp8", {"quant_method": "compressed-tensors", "config_groups": [1]}])
def test_a_quantisation_of_another_form_is_named(tmp_path: Path, config: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_3_8B, "quantization_config": config}))
    with pytest.raises(CommandError, match=r"config\.json cannot be read"):
        read(str(tmp_path))


def test_an_unknown_quantisation_is_not_guessed(tmp_path: Path) -> None:
    strange = {**LLAMA_3_8B, "quantization_config": {"quant_method": "gptq", "bits": 3}}
    assert precision(strange) is None
    (tmp_path / "config.json").write_text(json.dumps(strange))
    refused = CliRunner().invoke(app, ["plan", str(tmp_path)])
    assert refused.exit_code == 1
    assert "give --weights" in refused.stderr
    assert CliRunner().invoke(app, ["plan", str(tmp_path), "--weights", "int8"]).exit_code == 0


def test_weights_that_are_there_twice_count_once(tmp_path: Path) -> None:
    """Mistral's repositories have consolidated.safetensors too, which no engine loads beside the other and nothing fetches."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    (tmp_path / "consolidated.safetensors").write_bytes(bytes(1000))
    assert read(str(tmp_path))[0].stored == 1000


def test_a_configuration_of_another_form_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_3_8B, "num_attention_heads": 0, "head_dim": None}))
    with pytest.raises(CommandError, match=r"config\.json cannot be read"):
        read(str(tmp_path))
