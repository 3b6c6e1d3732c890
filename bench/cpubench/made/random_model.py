"""Writes a model of Qwen3's shape with random weights: its arithmetic is that of the real one, its answers mean nothing."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpubench.shapes import Shape

if TYPE_CHECKING:
    import torch

SEED = 1
DEVIATION = 0.02  # `initializer_range` of Qwen3's config.json
LAYERS, VOCABULARY = 28, 151936
# https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/config.json, https://huggingface.co/Qwen/Qwen3-1.7B/blob/main/config.json
COMMON: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCABULARY, "num_hidden_layers": LAYERS,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
    "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "initializer_range": DEVIATION,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_scaling": None, "tie_word_embeddings": True, "use_cache": True,
    "use_sliding_window": False, "sliding_window": None, "max_window_layers": LAYERS, "bos_token_id": 1, "eos_token_id": 2,
    "dtype": "bfloat16",
}  # fmt: skip
SIZES: dict[Shape, dict[str, int]] = {
    Shape.QWEN_06: {"hidden_size": 1024, "intermediate_size": 3072},
    Shape.QWEN_17: {"hidden_size": 2048, "intermediate_size": 6144},
}


def write(shape: Shape, tokenizer: Path, folder: Path) -> None:
    """Write bfloat16 weights and `tokenizer`'s tokenizer, whose vocabulary grows to the shape's. config.json comes last: a folder
    that has one is whole."""
    from safetensors.torch import save_file

    described = COMMON | SIZES[shape]
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_weights(described), folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / name, folder)
    words = json.loads((tokenizer / "tokenizer.json").read_text())
    known = words["model"]["vocab"]
    known |= {f"<unused{number}>": number for number in range(len(known), VOCABULARY)}
    (folder / "tokenizer.json").write_text(json.dumps(words, ensure_ascii=False))
    (folder / "config.json").write_text(json.dumps(described, indent=1))


def _weights(described: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Normal ones; those that are added to the residual stream are smaller, as in GPT-2 (Radford et al. 2019, section 2.3)."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    hidden, inner, head = described["hidden_size"], described["intermediate_size"], described["head_dim"]
    queries, keys = described["num_attention_heads"] * head, described["num_key_value_heads"] * head

    def normal(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        drawn = torch.empty(rows, columns).normal_(0.0, DEVIATION * scale, generator=generator)
        return drawn.bfloat16()

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bfloat16)

    added = 1 / math.sqrt(2 * LAYERS)
    tensors = {"model.embed_tokens.weight": normal(described["vocab_size"], hidden), "model.norm.weight": ones(hidden)}
    for layer in range(LAYERS):
        parts = {
            "self_attn.q_proj": normal(queries, hidden), "self_attn.k_proj": normal(keys, hidden),
            "self_attn.v_proj": normal(keys, hidden), "self_attn.o_proj": normal(hidden, queries, added),
            "self_attn.q_norm": ones(head), "self_attn.k_norm": ones(head),
            "mlp.gate_proj": normal(inner, hidden), "mlp.up_proj": normal(inner, hidden),
            "mlp.down_proj": normal(hidden, inner, added),
            "input_layernorm": ones(hidden), "post_attention_layernorm": ones(hidden),
        }  # fmt: skip
        tensors |= {f"model.layers.{layer}.{name}.weight": part for name, part in parts.items()}
    return tensors
