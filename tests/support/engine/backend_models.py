"""Small random checkpoints of families that only the transformers backend serves. No test here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from support.engine.files import SIZES, random_model
from transformers import (
    Cohere2Config,
    CohereConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    Ernie4_5Config,
    Exaone4Config,
    GemmaConfig,
    Glm4MoeConfig,
    GPT2Config,
    GPTNeoXConfig,
    HunYuanDenseV1Config,
    MiniMaxM2Config,
    NemotronConfig,
    Olmo3Config,
    OlmoConfig,
    OlmoeConfig,
    OPTConfig,
    PersimmonConfig,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedModel,
    SeedOssConfig,
    Starcoder2Config,
)

ONE_KV: dict[str, Any] = {**SIZES, "pad_token_id": 0}
MANY_KV: dict[str, Any] = {name: value for name, value in ONE_KV.items() if name != "num_key_value_heads"}
GPT2: dict[str, Any] = {"vocab_size": 96, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256, "eos_token_id": 2,
                        "bos_token_id": 1}  # fmt: skip
# Heads of keys and of values differ in size, and neither is a multiple of 16.
LATENT: dict[str, Any] = {
    **MANY_KV, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 32, "v_head_dim": 24, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
}  # fmt: skip
BACKEND: dict[str, PreTrainedConfig] = {
    "gpt_neox": GPTNeoXConfig(**MANY_KV),
    "gpt2": GPT2Config(**GPT2),
    "opt": OPTConfig(**MANY_KV, ffn_dim=96, word_embed_proj_dim=32),
    "phi": PhiConfig(**ONE_KV),
    "starcoder2": Starcoder2Config(**ONE_KV, sliding_window=16),
    "cohere": CohereConfig(**ONE_KV),
    "cohere2": Cohere2Config(**ONE_KV, sliding_window=16, sliding_window_pattern=2),
    "gemma": GemmaConfig(**ONE_KV, head_dim=20),
    "nemotron": NemotronConfig(**ONE_KV),
    "persimmon": PersimmonConfig(**MANY_KV),
    "olmo": OlmoConfig(**ONE_KV),
    "olmo3": Olmo3Config(**ONE_KV, sliding_window=16),
    "olmoe": OlmoeConfig(**ONE_KV, num_experts=4, num_experts_per_tok=2),
    "exaone4": Exaone4Config(**ONE_KV, sliding_window=16, sliding_window_pattern=2),
    "ernie4_5": Ernie4_5Config(**ONE_KV, head_dim=16),
    "seed_oss": SeedOssConfig(**ONE_KV, head_dim=16),
    "hunyuan_v1_dense": HunYuanDenseV1Config(**ONE_KV, head_dim=16),
    "glm4_moe": Glm4MoeConfig(
        **ONE_KV,
        head_dim=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
    ),
    "minimax_m2": MiniMaxM2Config(**ONE_KV, head_dim=16, num_local_experts=4, num_experts_per_tok=2),
    "deepseek_v2": DeepseekV2Config(**LATENT),
    "deepseek_v3": DeepseekV3Config(**LATENT),
}


def sharp(config: PreTrainedConfig, folder: Path | None = None) -> PreTrainedModel:
    """Return a random model whose choices are clear, saved into `folder`. A defect changes them, rounding does not."""
    model = random_model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(8)
    if folder is not None:
        model.save_pretrained(folder)
    return model


@torch.inference_mode()
def generated(reference: PreTrainedModel, prompt: list[int], most: int) -> list[int]:
    """Return exactly `most` tokens of transformers' own greedy `generate`."""
    whole = reference.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), max_new_tokens=most,
        min_new_tokens=most, do_sample=False, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return whole[0, len(prompt) :].tolist()  # type: ignore[no-any-return]
