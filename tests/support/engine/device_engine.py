"""Device engines on the CPU: the code that runs on a GPU, with Triton's interpreter or the kernels' references."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from support.engine import reference
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
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from pagefleet_engine.core.requests import EngineConfig, EngineRequest
from pagefleet_engine.runner.device.engine import DeviceEngine
from pagefleet_engine.runner.device.steps.sizes import Shape, verify_shapes

SIZES: dict[str, Any] = {
    "vocab_size": 301, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "initializer_range": 0.3,
    "eos_token_id": 2, "bos_token_id": 1,
}  # fmt: skip
FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, {"tie_word_embeddings": True}),
    "llama, untied, biases": (LlamaConfig, {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}),
    "qwen3": (Qwen3Config, {"head_dim": 32, "tie_word_embeddings": True}),
    "mistral, sliding": (MistralConfig, {"sliding_window": 24}),
    "qwen2": (Qwen2Config, {"tie_word_embeddings": True}),
    "gemma2": (
        Gemma2Config, {"sliding_window": 24, "query_pre_attn_scalar": 24, "tie_word_embeddings": False, "pad_token_id": 0},
    ),
    "gemma3": (
        Gemma3TextConfig,
        {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": False,
         "pad_token_id": 0},
    ),
    "phi3": (Phi3Config, {"pad_token_id": 0, "sliding_window": 31}),
    "glm": (GlmConfig, {"pad_token_id": 0}),
    "glm4": (Glm4Config, {"pad_token_id": 0}),
    "olmo2": (Olmo2Config, {"pad_token_id": 0}),
    "granite": (GraniteConfig, {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22,
                                "attention_multiplier": 0.05}),
    "smollm3": (SmolLM3Config, {"pad_token_id": 0, "no_rope_layer_interval": 2}),
    "mixtral": (MixtralConfig, {"num_local_experts": 4}),
    "qwen2_moe": (
        Qwen2MoeConfig,
        {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 80},
    ),
    "qwen3_moe": (
        Qwen3MoeConfig,
        {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "norm_topk_prob": True},
    ),
    "granitemoe": (
        GraniteMoeConfig,
        {"num_local_experts": 5, "num_experts_per_tok": 2, "residual_multiplier": 0.4, "attention_multiplier": 0.1},
    ),
    "gpt_oss": (
        GptOssConfig,
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 24, "pad_token_id": 0},
    ),
}  # fmt: skip


# Those whose layers run other kernels than the ones before them: Triton's interpreter is slow.
INTERPRETED = ("llama", "llama, untied, biases", "qwen3", "mistral, sliding", "gemma2", "gpt_oss")
# Those whose ranks share their layers in other ways than the ones before them.
PARALLEL = (*INTERPRETED, "qwen2_moe")


def saved(folder: Path, family: str = "llama", seed: int = 0, **changes: Any) -> tuple[str, Any]:
    """Save a random model as safetensors. Return its URI and transformers' reference. Norms and biases are not 1 and 0."""
    config, own = FAMILIES[family]
    torch.manual_seed(seed)
    # Attention in plain products: before 5.23 transformers left the cap of scores out elsewhere.
    model = AutoModelForCausalLM.from_config(config(**{**SIZES, **own, **changes}), attn_implementation="eager").eval()
    return reference.saved(model, folder), model


MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def adapter(folder: Path, modules: Sequence[str] = MODULES, seed: int = 2) -> str:
    """Save a random LoRA adapter of the second layer of a model of these SIZES. Return its folder."""
    folder.mkdir(parents=True)
    hidden, inner, heads = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["head_dim"]
    q, kv = SIZES["num_attention_heads"] * heads, SIZES["num_key_value_heads"] * heads
    rows = {"q_proj": q, "k_proj": kv, "v_proj": kv, "gate_proj": inner, "up_proj": inner}
    columns = {"o_proj": q, "down_proj": inner}
    torch.manual_seed(seed)
    tensors = {}
    for module in modules:
        part = "mlp" if module in ("gate_proj", "up_proj", "down_proj") else "self_attn"
        prefix = f"base_model.model.model.layers.1.{part}.{module}.lora_"
        tensors[f"{prefix}A.weight"] = torch.randn(4, columns.get(module, hidden))
        tensors[f"{prefix}B.weight"] = torch.randn(rows.get(module, hidden), 4) * len(modules) ** -2
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 16, "target_modules": list(modules), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return str(folder)


def device_engine(model: str, device: str = "cpu", **changes: Any) -> DeviceEngine:
    settings: dict[str, Any] = {"max_model_len": 256, "num_pages": 128, "kernels": "reference", "max_num_seqs": 16}
    torch.set_num_threads(1)
    return DeviceEngine(EngineConfig(model=model, **{**settings, **changes}), torch.device(device))


def uncaptured(engine: DeviceEngine) -> list[Shape]:
    """Let steps that verify four draft tokens go the way of graphs, without one. The list takes the shape of each of them."""
    executor, taken = engine._rank.executor, list[Shape]()

    def captured(shape: Shape) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(numbers: torch.Tensor) -> torch.Tensor:
            taken.append(shape)
            return executor.verify(numbers, shape)

        return run

    executor.verifying = {shape: captured(shape) for shape in verify_shapes(16, 4)}
    return taken


def finish(engine: DeviceEngine, requests: Iterable[EngineRequest]) -> dict[tuple[str, int], list[int]]:
    """Serve all requests at once until all have ended, and return each answer's tokens. Check the pool after each step."""
    tokens: dict[tuple[str, int], list[int]] = {}
    for request in requests:
        engine.add(request)
    while engine.has_work():
        for output in engine.step(0.0):
            tokens.setdefault((output.request_id, output.index), []).extend(output.token_ids)
        engine.check()
    return tokens


def prompts(count: int, longest: int = 60) -> list[list[int]]:
    """Return prompts of random tokens; every second one begins like the first."""
    chosen = random.Random(3)
    shared = [chosen.randrange(3, 300) for _ in range(longest)]
    return [
        shared[: chosen.randrange(longest // 2, longest) * (index % 2)]
        + [chosen.randrange(3, 300) for _ in range(chosen.randrange(1, longest // 2))]
        for index in range(count)
    ]
