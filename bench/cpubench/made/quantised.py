"""Writes a model of floats as the checkpoints that vLLM's faster settings read: W8A8 and AWQ.

Weights are rounded to the nearest code. The searches of scales by which the formats' own tools lose less accuracy change no
shape and no instruction, so speed is the same.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
GROUP = 128  # columns that share a scale in most published AWQ models


class Form(StrEnum):
    """W8A8: compressed-tensors' 8-bit integers, a scale for each output, activations rounded by token. AWQ: 4 bits."""

    W8A8 = "w8a8"
    AWQ = "awq"

    @property
    def what(self) -> str:
        return "int8 weights and activations" if self is Form.W8A8 else "4-bit weights"


def write(source: Path, target: Path, form: Form) -> None:
    """Write config.json last: a folder that has one is whole."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    described = json.loads((source / "config.json").read_text())
    sizes = [described["hidden_size"], described["intermediate_size"]]
    group = next(size for size in (GROUP, GROUP // 2, GROUP // 4) if not any(each % size for each in sizes))
    target.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, torch.Tensor] = {}
    with safe_open(source / "model.safetensors", framework="pt") as stored:
        for name in stored.keys():  # noqa: SIM118 (no mapping)
            layer, tensor = name.removesuffix(".weight"), stored.get_tensor(name)
            if layer.rpartition(".")[2] not in PROJECTIONS:
                tensors[name] = tensor.bfloat16()
                continue
            parts = w8a8(tensor) if form is Form.W8A8 else awq(tensor, group)
            tensors |= {f"{layer}.{part}": each.contiguous() for part, each in parts.items()}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    for file in source.glob("*"):
        if file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, target)
    settings = W8A8 if form is Form.W8A8 else {**AWQ, "group_size": group}
    described |= {"dtype": "bfloat16", "quantization_config": settings}
    (target / "config.json").write_text(json.dumps(described, indent=1))


def w8a8(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """[out, in] -> weight [out, in] int8, weight_scale [out, 1] bfloat16."""
    import torch

    scales = (weight.float().abs().amax(1, keepdim=True) / 127).bfloat16()
    codes = (weight.float() / scales.float()).round_().clamp_(-127, 127)
    return {"weight": codes.to(torch.int8), "weight_scale": scales}


def awq(weight: torch.Tensor, group: int) -> dict[str, torch.Tensor]:
    """[out, in] -> qweight [in, out / 8] int32, qzeros [in / group, out / 8] int32, scales [in / group, out] float16."""
    from pagefleet_engine.model.checkpoint.integers import awq_words

    rows, columns = weight.shape
    groups = weight.float().view(rows, columns // group, group)
    low, high = groups.amin(2), groups.amax(2)
    scales = ((high - low).clamp(min=1e-5) / 15).half()
    zeros = (-low / scales.float()).round_().clamp_(0, 15)
    codes = ((groups / scales.float().unsqueeze(2)).round_() + zeros.unsqueeze(2)).clamp_(0, 15)
    return {"qweight": awq_words(codes.view(rows, columns).t()), "qzeros": awq_words(zeros.t()), "scales": scales.t()}


W8A8: Mapping[str, Any] = {
    "quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed",
    "ignore": ["lm_head"], "kv_cache_scheme": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True},
        }
    },
}  # fmt: skip
AWQ: Mapping[str, Any] = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}
