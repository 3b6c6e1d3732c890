"""Device engines on the CPU: the code that runs on a GPU, with Triton's interpreter or the kernels' references."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from support.engine import reference
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen3Config, Qwen3ForCausalLM

from pagefleet_engine.core.requests import EngineConfig, EngineRequest
from pagefleet_engine.runner.device.engine import DeviceEngine

SIZES: dict[str, Any] = {
    "vocab_size": 301, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "initializer_range": 0.3,
    "eos_token_id": 2, "bos_token_id": 1,
}  # fmt: skip
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama, untied, biases": (
        LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    ),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32, "tie_word_embeddings": True}),
    "mistral, sliding": (MistralConfig, MistralForCausalLM, {"sliding_window": 24}),
}  # fmt: skip


def saved(folder: Path, family: str = "llama", seed: int = 0, **changes: Any) -> tuple[str, Any]:
    """Save a random model as safetensors. Return its URI and transformers' reference. Norms and biases are not 1 and 0."""
    config, architecture, own = FAMILIES[family]
    torch.manual_seed(seed)
    model = architecture(config(**{**SIZES, **own, **changes})).eval()
    return reference.saved(model, folder), model


def device_engine(model: str, device: str = "cpu", **changes: Any) -> DeviceEngine:
    settings: dict[str, Any] = {"max_model_len": 256, "num_pages": 128, "kernels": "reference", "max_num_seqs": 16}
    torch.set_num_threads(1)
    return DeviceEngine(EngineConfig(model=model, **{**settings, **changes}), torch.device(device))


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
