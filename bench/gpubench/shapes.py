"""Shapes of models, filled with random weights: speed does not depend on what a weight is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


@dataclass(frozen=True)
class Shape:
    kind: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    longest: int = 8192

    @property
    def matrix_elements(self) -> int:
        """Count the elements of all matrices that a token is multiplied with."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner) + self.vocabulary * self.hidden

    def kv_bytes(self, itemsize: int) -> int:
        """Return the bytes of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * itemsize

    def floor(self, batch: int, context: int, weight_bytes: int, bandwidth: float, rate: float) -> float:
        """Least seconds of a decode step: weights and the KV of every token read once, or the flops at the matmul rate.

        `weight_bytes` of one layer's weight; the output matrix is never quantised.
        """
        head = self.vocabulary * self.hidden
        read = (self.matrix_elements - head) * weight_bytes + 2 * head + batch * context * self.kv_bytes(2)
        return max(read / bandwidth, 2 * batch * self.matrix_elements / rate)


SHAPES = {
    "Llama-3-8B": Shape("llama", 32, 4096, 14336, 32, 8, 128, 128_256, tied=False),
    "Qwen3-0.6B": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, 151_936, tied=True),
}
TINY = {
    "Llama-3-8B": Shape("llama", 2, 128, 256, 4, 2, 32, 512, tied=False),
    "Qwen3-0.6B": Shape("qwen3", 2, 64, 128, 4, 2, 32, 512, tied=True),
}


def write(shape: Shape, folder: Path, device: str) -> str:
    """A checkpoint of the shape with random bfloat16 weights: its URI. One file a layer, written as it is made."""
    folder.mkdir(parents=True, exist_ok=True)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, device=device, dtype=dtype) * columns**-0.5).cpu()

    places: dict[str, str] = {}

    def keep(name: str, tensors: dict[str, torch.Tensor]) -> None:
        save_file(tensors, folder / name, metadata={"format": "pt"})
        places.update(dict.fromkeys(tensors, name))

    wide = shape.heads * shape.head_dim
    narrow = shape.kv_heads * shape.head_dim
    for layer in range(shape.layers):
        prefix, ones = f"model.layers.{layer}.", torch.ones(shape.hidden, dtype=dtype)
        tensors = {
            f"{prefix}input_layernorm.weight": ones, f"{prefix}post_attention_layernorm.weight": ones.clone(),
            f"{prefix}self_attn.q_proj.weight": matrix(wide, shape.hidden),
            f"{prefix}self_attn.k_proj.weight": matrix(narrow, shape.hidden),
            f"{prefix}self_attn.v_proj.weight": matrix(narrow, shape.hidden),
            f"{prefix}self_attn.o_proj.weight": matrix(shape.hidden, wide),
            f"{prefix}mlp.gate_proj.weight": matrix(shape.inner, shape.hidden),
            f"{prefix}mlp.up_proj.weight": matrix(shape.inner, shape.hidden),
            f"{prefix}mlp.down_proj.weight": matrix(shape.hidden, shape.inner),
        }  # fmt: skip
        if shape.kind == "qwen3":
            tensors |= {f"{prefix}self_attn.{one}_norm.weight": torch.ones(shape.head_dim, dtype=dtype) for one in "qk"}
        keep(f"layer-{layer}.safetensors", tensors)
    ends = {"model.embed_tokens.weight": matrix(shape.vocabulary, shape.hidden),
            "model.norm.weight": torch.ones(shape.hidden, dtype=dtype)}  # fmt: skip
    if not shape.tied:
        ends["lm_head.weight"] = matrix(shape.vocabulary, shape.hidden)
    keep("ends.safetensors", ends)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "config.json").write_text(json.dumps(_config(shape, str(dtype).removeprefix("torch."))))
    return f"file://{folder}"


def _config(shape: Shape, dtype: str) -> dict[str, Any]:
    return {
        "model_type": shape.kind, "architectures": [f"{shape.kind.capitalize()}ForCausalLM"], "dtype": dtype,
        "vocab_size": shape.vocabulary, "hidden_size": shape.hidden, "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim, "max_position_embeddings": shape.longest, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "tie_word_embeddings": shape.tied, "hidden_act": "silu", "bos_token_id": 1,
        "eos_token_id": 2, "attention_bias": False,
    }  # fmt: skip
