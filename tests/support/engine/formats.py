"""Checkpoints in quantised formats, packed element by element as the formats' own tools do it. No test here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

Parts = tuple[dict[str, torch.Tensor], torch.Tensor]
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "eos_token_id": 2, "bos_token_id": 1,
    "initializer_range": 0.3,
}  # fmt: skip
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def words(values: torch.Tensor, bits: int) -> torch.Tensor:
    """[rows, n] -> [rows, n * bits / 32] int32, the first value in the lowest bits."""
    packed = torch.zeros(values.shape[0], values.shape[1] * bits // 32, dtype=torch.int64)
    for place in range(32 // bits):
        packed |= values[:, place :: 32 // bits].long() << (bits * place)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def levels(weight: torch.Tensor, bits: int, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Round [out, in] to `bits` with a scale (half precision) and a zero point for each row and group of `groups` [in]."""
    count = int(groups.max()) + 1
    by_group = [weight[:, groups == group] for group in range(count)]
    low = torch.stack([part.amin(1).clamp(max=0) for part in by_group], 1)
    high = torch.stack([part.amax(1).clamp(min=0) for part in by_group], 1)
    scales = ((high - low) / (2**bits - 1)).half()
    zeros = (-low / scales.float()).round().clamp(1, 2**bits - 1)
    codes = ((weight / scales.float()[:, groups]).round() + zeros[:, groups]).clamp(0, 2**bits - 1)
    return codes.int(), zeros.int(), scales


def gptq(weight: torch.Tensor, bits: int = 4, ordered: bool = False, offset: int = 1) -> Parts:
    """AutoGPTQ's: packed along the inputs, zero points along the outputs and one less in the first version."""
    groups = torch.arange(weight.shape[1]) // 32
    if ordered:
        groups = groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(1))]
    codes, zeros, scales = levels(weight, bits, groups)
    tensors = {
        "qweight": words(codes, bits).t(), "qzeros": words((zeros - offset).t(), bits), "scales": scales.t(),
        "g_idx": groups.int(),
    }  # fmt: skip
    return tensors, (codes - zeros[:, groups]).float() * scales.float()[:, groups]


def pack_quantized(weight: torch.Tensor, bits: int = 4, symmetric: bool = True) -> Parts:
    """compressed-tensors': signed integers plus 2^(bits - 1), packed along the inputs; zero points along the outputs."""
    groups = torch.arange(weight.shape[1]) // 32
    codes, zeros, scales = levels(weight, bits, groups)
    tensors = {
        "weight_packed": words(codes, bits), "weight_scale": scales, "weight_shape": torch.tensor(weight.shape),
    }  # fmt: skip
    if symmetric:
        zeros = torch.full_like(zeros, 2 ** (bits - 1))
    else:
        tensors["weight_zero_point"] = words(zeros.t(), bits).t()
    return tensors, (codes - zeros[:, groups]).float() * scales.float()[:, groups]


def int8(weight: torch.Tensor) -> Parts:
    scales = (weight.abs().amax(1, keepdim=True) / 127).bfloat16()
    codes = (weight / scales.float()).round().clamp(-128, 127).to(torch.int8)
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales.float()


def fp8(weight: torch.Tensor, block: int = 0) -> Parts:
    if block:
        tiles = weight.view(weight.shape[0] // block, block, weight.shape[1] // block, block)
        scale = tiles.abs().amax((1, 3)) / 448
        wide = scale.repeat_interleave(block, 0).repeat_interleave(block, 1)
    else:
        wide = scale = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / wide).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale, "input_scale": torch.ones(1)}, codes.float() * wide


def nibbles(weight: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """The codes of E2M1's nearest numbers."""
    shares = weight / scales.repeat_interleave(group, -1)
    return (shares.unsqueeze(-1) - E2M1).abs().argmin(-1)


def nvfp4(weight: torch.Tensor, modelopt: bool = False) -> Parts:
    most = weight.view(weight.shape[0], -1, 16).abs().amax(-1) / 6
    factor = most.amax() / 448
    scales = (most / factor).clamp(min=2**-6).to(torch.float8_e4m3fn)
    exact = scales.float() * (factor if modelopt else 1 / (1 / factor))
    codes = nibbles(weight, exact, 16)
    pairs = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    tensors = (
        {"weight": pairs, "weight_scale_2": factor}
        if modelopt
        else {"weight_packed": pairs, "weight_global_scale": 1 / factor}
    )
    return {**tensors, "weight_scale": scales}, E2M1[codes] * exact.repeat_interleave(16, -1)


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    settings = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, **weights}
    group = {"targets": ["Linear"], "weights": settings, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


GPTQ = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 32,
    "desc_act": False,
    "sym": False,
    "checkpoint_format": "gptq",
}
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "channel", "group_size": None}
# The format's entry of config.json, its reference packing, and how the engine holds the weights on a CPU.
FORMATS: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor], Parts], str]] = {
    "gptq": (GPTQ, gptq, "gptq, packed"),
    "gptq v2": ({**GPTQ, "checkpoint_format": "gptq_v2"}, lambda weight: gptq(weight, offset=0), "gptq, packed"),
    "gptq v2, newer entry": (
        {**GPTQ, "checkpoint_format": None, "format": "gptq_v2"}, lambda weight: gptq(weight, offset=0), "gptq, packed",
    ),
    "gptq 8 bits": ({**GPTQ, "bits": 8}, lambda weight: gptq(weight, 8), "gptq, packed"),
    "gptq by activation": ({**GPTQ, "desc_act": True}, lambda weight: gptq(weight, ordered=True), "gptq, widened"),
    "w4a16": (compressed("pack-quantized"), pack_quantized, "pack-quantized, packed"),
    "w4a16 asymmetric": (
        compressed("pack-quantized", symmetric=False), lambda weight: pack_quantized(weight, symmetric=False),
        "pack-quantized, packed",
    ),
    "w8a16": (compressed("pack-quantized", num_bits=8), lambda weight: pack_quantized(weight, 8), "pack-quantized, packed"),
    "w8a8": (compressed("int-quantized", num_bits=8, strategy="channel", group_size=None), int8, "int8, packed"),
    "fp8 channel": (compressed("float-quantized", **FLOAT8), fp8, "fp8, widened"),
    "fp8 block": (
        compressed("float-quantized", **{**FLOAT8, "strategy": "block", "block_structure": [32, 32]}),
        lambda weight: fp8(weight, 32), "fp8, widened",
    ),
    "modelopt fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8, "fp8, widened"),
    "nvfp4": (compressed("nvfp4-pack-quantized", type="float", strategy="tensor_group", group_size=16), nvfp4, "nvfp4, widened"),
    "modelopt nvfp4": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4"}, lambda weight: nvfp4(weight, True), "nvfp4, widened",
    ),
}  # fmt: skip


def write(folder: Path, form: str) -> tuple[str, Any]:
    """Save a random model in a format. Return its URI and transformers' model with the floats that the format's formula gives."""
    config, pack, _ = FORMATS[form]
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES)).eval()
    model.save_pretrained(folder)

    def packed(layer: str, tensor: torch.Tensor) -> Mapping[str, torch.Tensor]:
        tensors, weight = pack(tensor)
        with torch.no_grad():
            model.get_submodule(layer).weight.copy_(weight)
        return tensors

    store(folder, config, packed)
    return f"file://{folder}", model


def store(
    folder: Path, config: Mapping[str, Any], pack: Callable[[str, torch.Tensor], Mapping[str, torch.Tensor]]
) -> None:
    """Store a saved model's linear layers in another format. `pack` makes the parts of a layer from its name and its weight."""
    state: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if layer.rpartition(".")[2] not in PROJECTIONS:
            state[name] = tensor
            continue
        state |= {f"{layer}.{part}": stored.contiguous() for part, stored in pack(layer, tensor).items()}
    save_file(state, folder / "model.safetensors")
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, "quantization_config": config}))
