"""Loads a model's weights as float32 tensors under Hugging Face's names."""

from __future__ import annotations

import torch
from safetensors import safe_open

from pagefleet_engine.model.config import ModelConfig, from_gguf, from_json
from pagefleet_engine.model.errors import SOURCE, ModelError
from pagefleet_engine.model.gguf_file import GGUF
from pagefleet_engine.model.source import Format, ModelSource

Weights = dict[str, torch.Tensor]


def load(source: ModelSource) -> tuple[ModelConfig, Weights]:
    """Config and weights; tied output weights are filled in. Raises ModelError when a tensor is missing."""
    match source.format:
        case Format.GGUF:
            file = GGUF(source.path)
            config = from_gguf(file.field)
            weights = {
                name: torch.from_numpy(array.copy() if not array.flags.writeable else array)
                for name, array in file.tensors(config)
            }
        case Format.SAFETENSORS:
            config = from_json(source.path)
            weights = {}
            for path in sorted(source.path.glob("*.safetensors")):
                with safe_open(path, framework="pt") as file_:
                    for name in file_.keys():  # noqa: SIM118 - not a mapping
                        weights[name] = file_.get_tensor(name).to(torch.float32)
    if "model.embed_tokens.weight" not in weights:
        raise ModelError(SOURCE, f"{source.path} holds no token embeddings")
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    missing = [name for name in expected(config) if name not in weights]
    if missing:
        raise ModelError(SOURCE, f"{source.path} lacks {len(missing)} tensors, the first is {missing[0]}")
    return config, weights


def expected(config: ModelConfig) -> list[str]:
    """The names that the model reads."""
    inner = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
             "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm")  # fmt: skip
    layers = [f"model.layers.{layer}.{name}.weight" for layer in range(config.layers) for name in inner]
    return ["model.embed_tokens.weight", *layers, "model.norm.weight", "lm_head.weight"]
