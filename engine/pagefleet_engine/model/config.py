"""The shape of a Llama-family model, read from GGUF metadata or config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagefleet_engine.model.errors import SOURCE, ModelError

SUPPORTED = ("llama",)


@dataclass(frozen=True)
class ModelConfig:
    """Sizes in elements; `max_position` in tokens. Decoder-only, GQA, rotary positions, gated SiLU MLP, RMSNorm."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    norm_eps: float
    max_position: int
    tied: bool
    eos_token_ids: tuple[int, ...]


def from_json(folder: Path) -> ModelConfig:
    """Read config.json (and generation_config.json's eos). Raises ModelError."""
    try:
        document: dict[str, Any] = json.loads((folder / "config.json").read_text())
        kind = document.get("model_type")
        if kind not in SUPPORTED:
            raise ModelError(SOURCE, f"model_type {kind!r} is not supported; supported: {', '.join(SUPPORTED)}")
        rope = document.get("rope_parameters") or document.get("rope_scaling") or {}
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise ModelError(SOURCE, f"rope scaling {rope} is not supported yet")
        heads = int(document["num_attention_heads"])
        return ModelConfig(
            vocab_size=int(document["vocab_size"]),
            hidden_size=int(document["hidden_size"]),
            intermediate_size=int(document["intermediate_size"]),
            layers=int(document["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(document.get("num_key_value_heads") or heads),
            head_dim=int(document.get("head_dim") or document["hidden_size"] // heads),
            rope_theta=float(rope.get("rope_theta") or document.get("rope_theta") or 10000.0),
            norm_eps=float(document["rms_norm_eps"]),
            max_position=int(document["max_position_embeddings"]),
            tied=bool(document.get("tie_word_embeddings", False)),
            eos_token_ids=_eos(folder, document),
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ModelError(SOURCE, f"{folder / 'config.json'} cannot be used: {error!r}") from error


def from_gguf(field: Any) -> ModelConfig:
    """`field(name)` answers a metadata value or None. Raises ModelError."""
    architecture = field("general.architecture")
    if architecture not in SUPPORTED:
        raise ModelError(SOURCE, f"architecture {architecture!r} is not supported; supported: {', '.join(SUPPORTED)}")

    def need(name: str) -> Any:
        value = field(f"{architecture}.{name}")
        if value is None:
            raise ModelError(SOURCE, f"the GGUF file has no {architecture}.{name}")
        return value

    heads, hidden = int(need("attention.head_count")), int(need("embedding_length"))
    return ModelConfig(
        vocab_size=len(field("tokenizer.ggml.tokens") or ()),
        hidden_size=hidden,
        intermediate_size=int(need("feed_forward_length")),
        layers=int(need("block_count")),
        heads=heads,
        kv_heads=int(field(f"{architecture}.attention.head_count_kv") or heads),
        head_dim=int(field(f"{architecture}.attention.key_length") or hidden // heads),
        rope_theta=float(field(f"{architecture}.rope.freq_base") or 10000.0),
        norm_eps=float(need("attention.layer_norm_rms_epsilon")),
        max_position=int(need("context_length")),
        tied=False,  # the loader ties them when the file holds no output matrix
        eos_token_ids=(int(field("tokenizer.ggml.eos_token_id") or 0),),
    )


def _eos(folder: Path, document: dict[str, Any]) -> tuple[int, ...]:
    value = document.get("eos_token_id")
    generation = folder / "generation_config.json"
    if generation.is_file():
        value = json.loads(generation.read_text()).get("eos_token_id", value)
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)
