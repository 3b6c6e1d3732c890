"""Protects AWQ and FP8 checkpoints: weights.py gives the floats of the formats' own formulas, and refuses the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engine.files import small_llama

from pagefleet_engine.model.checkpoint import source
from pagefleet_engine.model.checkpoint.dequantise import Awq, Fp8
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.model.checkpoint.weights import Weights, load
from pagefleet_kernels.cpu.layout import floats

LAYER = "model.layers.0.mlp.up_proj"
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
QUIP = {
    "quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "channel"}}},
    "transform_config": {"config_groups": {"v": {"type": "hadamard", "apply": [
        {"targets": ["Linear"], "location": "weight_input", "inverse": True}, {"targets": ["Linear"], "location": "input"},
    ]}}},
}  # fmt: skip
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # AutoAWQ's packing: nibble i of a word holds its column ORDER[i]


def awq(rows: int, columns: int, group: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the tensors of one layer and its weight [rows, columns], computed element by element."""
    chosen = torch.Generator().manual_seed(3)
    groups = columns // group
    levels = torch.randint(0, 16, (columns, rows), generator=chosen)
    zeros = torch.randint(0, 16, (groups, rows), generator=chosen)
    scales = (torch.rand(groups, rows, generator=chosen) * 0.1).half()
    weight = torch.empty(rows, columns)
    for column in range(columns):
        weight[:, column] = (levels[column] - zeros[column // group]) * scales[column // group].float()
    return {"qweight": words(levels), "qzeros": words(zeros), "scales": scales}, weight


def words(values: torch.Tensor) -> torch.Tensor:
    packed = torch.zeros(values.shape[0], values.shape[1] // 8, dtype=torch.int64)
    for nibble, column in enumerate(ORDER):
        packed |= values[:, column::8] << (4 * nibble)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def fp8(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(scale.numel())).to(torch.float8_e4m3fn)


def checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Save the tiny model with one of its linear layers replaced."""
    small_llama(folder)
    state = {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if LAYER not in name}
    save_file(
        {**state, **{f"{LAYER}.{name}": tensor for name, tensor in tensors.items()}}, folder / "model.safetensors"
    )
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, "quantization_config": config}))


def opened(folder: Path) -> Weights:
    return load(source.resolve(f"file://{folder}"))[1]


@pytest.mark.parametrize("group", [32, 96])
def test_an_awq_layer_reads_as_its_floats_or_as_it_is_stored(group: int, tmp_path: Path) -> None:
    tensors, weight = awq(160, 96, group)
    checkpoint(tmp_path, {**AWQ, "group_size": -1 if group == 96 else group}, tensors)
    assert torch.equal(opened(tmp_path).take(f"{LAYER}.weight", 160, 96), weight)
    gate = f"{LAYER.replace('up', 'gate')}.weight"
    merged = opened(tmp_path).take_compact({gate: 160, f"{LAYER}.weight": 160}, 96)
    assert torch.equal(floats(merged)[160:], weight)
    unread = opened(tmp_path)
    assert unread.take_packed(gate.removesuffix(".weight")) is None
    layer = unread.take_packed(LAYER)
    assert isinstance(layer, Awq)
    assert torch.equal(layer.qweight, tensors["qweight"])
    assert f"{LAYER}.weight" not in unread.left()


@pytest.mark.parametrize(
    ("name", "shape", "block"),
    [
        ("weight_scale", (), None),
        ("weight_scale", (1,), None),
        ("weight_scale", (160, 1), None),
        ("weight_scale", (160,), None),
        ("weight_scale_inv", (2, 1), [128, 128]),
        ("weight_scale_inv", (10, 3), [16, 40]),
    ],
)
def test_an_fp8_layer_reads_as_its_floats(name: str, shape: tuple[int, ...], block: Any, tmp_path: Path) -> None:
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.01
    stored = fp8(scale, 160, 96)
    config = FP8 if block is None else {**FP8, "weight_block_size": block}
    checkpoint(tmp_path, config, {"weight": stored, name: scale})
    high, wide = block or (160 if scale.numel() == 1 else 1, 96)
    flat = scale.reshape(-(-160 // high), -(-96 // wide))
    expected = torch.empty(160, 96)
    for row in range(160):
        for column in range(0, 96, 8):
            part = slice(column, column + 8)
            expected[row, part] = stored[row, part].float() * flat[row // high, column // wide]
    assert torch.equal(opened(tmp_path).take(f"{LAYER}.weight", 160, 96), expected)
    layer = opened(tmp_path).take_packed(LAYER)
    assert isinstance(layer, Fp8)
    assert torch.equal(layer.dequantise(), expected)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"quant_method": "bitsandbytes", "bits": 4},
            "quantization_config.quant_method 'bitsandbytes' is not supported; supported: awq",
        ),
        ({**AWQ, "bits": 8}, "quantization_config.bits 8 is not supported; supported: 4"),
        ({**AWQ, "version": "gemv"}, "quantization_config.version 'gemv'"),
        ({**AWQ, "zero_point": False}, "quantization_config.zero_point False"),
        ({**AWQ, "group_size": 0}, "quantization_config.group_size 0"),
        ({**AWQ, "group_size": 48}, "scales .* are not those of 2 groups"),
        (QUIP, "quantization_config.transform_config.location 'input' is not supported"),
        ({**FP8, "activation_scheme": "static"}, "quantization_config.activation_scheme 'static'"),
        ({**FP8, "weight_block_size": [0, 1]}, "quantization_config.weight_block_size"),
    ],
)
def test_what_is_not_computed_is_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, config, awq(160, 96, 32)[0])
    with pytest.raises(ModelError, match=message):
        opened(tmp_path).take(f"{LAYER}.weight", 160, 96)


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (AWQ, {"qzeros": None}, "lacks the tensor .*up_proj.qzeros"),
        (AWQ, {"qzeros": torch.zeros(2, 20, dtype=torch.int32)}, "do not fit each other"),
        (AWQ, {"qweight": torch.zeros(96, 20)}, "AWQ wants int32 matrices"),
        (FP8, {"weight": torch.zeros(160, 96), "weight_scale": torch.ones(())}, "FP8 wants a float8_e4m3fn matrix"),
        (FP8, {"weight": fp8(torch.ones(1), 160, 96), "weight_scale": torch.ones(7)}, "FP8 scales .* do not fit"),
        (FP8, {"weight": fp8(torch.ones(1), 160, 96)}, "torch.float8_e4m3fn; allowed: float32"),
        (
            {**FP8, "weight_block_size": [128, 128]},
            {"weight": fp8(torch.ones(1), 160, 96), "weight_scale_inv": torch.ones(1, 1)},
            "in blocks of 128 x 128",
        ),
    ],
)
def test_damaged_layers_are_refused(
    config: dict[str, Any], change: dict[str, torch.Tensor | None], message: str, tmp_path: Path
) -> None:
    tensors: dict[str, torch.Tensor | None] = {**(awq(160, 96, 32)[0] if config == AWQ else {}), **change}
    checkpoint(tmp_path, config, {name: tensor for name, tensor in tensors.items() if tensor is not None})
    with pytest.raises(ModelError, match=message):
        opened(tmp_path).take(f"{LAYER}.weight", 160, 96)
