"""The shape of a Llama-family model, read from GGUF metadata or config.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagefleet_engine.model.errors import SOURCE, ModelError
from pagefleet_engine.model.rope_scaling import llama3_divisors

SUPPORTED = ("llama",)
# Settings that change the arithmetic, with the values that this implementation computes.
COMPUTED = {
    "hidden_act": ("silu", None), "quantization_config": (None,), "sliding_window": (None,), "partial_rotary_factor": (1.0, None),
}  # fmt: skip


@dataclass(frozen=True)
class ModelConfig:
    """Sizes in elements; `max_position` in tokens. Decoder-only, GQA, rotary positions, gated SiLU MLP, RMSNorm.

    `rope_divisors` [head_dim / 2] slow the rotary frequencies down, empty when they are not scaled. `tied`: the output
    matrix is the embedding, whatever else the file holds.
    """

    kind: str
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
    rope_divisors: tuple[float, ...] = ()

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim


def from_json(folder: Path) -> ModelConfig:
    """Read config.json (and generation_config.json's eos). Raises ModelError."""
    try:
        document: dict[str, Any] = json.loads((folder / "config.json").read_text())
        kind = document.get("model_type")
        if kind not in SUPPORTED:
            raise ModelError(SOURCE, f"model_type {kind!r} is not supported; supported: {', '.join(SUPPORTED)}")
        for name, allowed in COMPUTED.items():
            if document.get(name) not in allowed:
                raise ModelError(
                    SOURCE,
                    f"config.json: {name} {document[name]!r} is not supported; supported: {allowed[0]}",
                )
        scaling = document.get("rope_parameters") or document.get("rope_scaling") or {}
        heads = int(document["num_attention_heads"])
        head_dim = int(document.get("head_dim") or document["hidden_size"] // heads)
        theta = float(scaling.get("rope_theta") or document.get("rope_theta") or 10000.0)
        return ModelConfig(
            kind=str(kind),
            vocab_size=int(document["vocab_size"]),
            hidden_size=int(document["hidden_size"]),
            intermediate_size=int(document["intermediate_size"]),
            layers=int(document["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(document.get("num_key_value_heads") or heads),
            head_dim=head_dim,
            rope_theta=theta,
            norm_eps=float(document["rms_norm_eps"]),
            max_position=int(document["max_position_embeddings"]),
            tied=bool(document.get("tie_word_embeddings", False)),
            eos_token_ids=_eos(folder, document),
            rope_divisors=_divisors(scaling, head_dim, theta),
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ModelError(SOURCE, f"{folder / 'config.json'} cannot be used: {error!r}") from error


def from_gguf(field: Callable[[str], Any], divisors: tuple[float, ...], tied: bool) -> ModelConfig:
    """`field(name)` answers a metadata value or None. Raises ModelError.

    `divisors` come from the file's rope table; the file of a `tied` model holds no output matrix.
    """
    architecture = field("general.architecture")
    if architecture not in SUPPORTED:
        raise ModelError(SOURCE, f"architecture {architecture!r} is not supported; supported: {', '.join(SUPPORTED)}")

    def need(name: str) -> Any:
        value = field(f"{architecture}.{name}")
        if value is None:
            raise ModelError(SOURCE, f"the GGUF file has no {architecture}.{name}")
        return value

    heads, hidden = int(need("attention.head_count")), int(need("embedding_length"))
    head_dim = int(field(f"{architecture}.attention.key_length") or hidden // heads)
    match field(f"{architecture}.rope.scaling.type"):
        case None | "none":
            pass
        case "linear":
            divisors = (float(need("rope.scaling.factor")),) * (head_dim // 2)
        case other:
            raise ModelError(
                SOURCE, f"the GGUF file's rope scaling {other!r} is not supported; supported: none, linear"
            )
    eos = field("tokenizer.ggml.eos_token_id")
    return ModelConfig(
        kind=architecture,
        vocab_size=len(field("tokenizer.ggml.tokens") or ()),
        hidden_size=hidden,
        intermediate_size=int(need("feed_forward_length")),
        layers=int(need("block_count")),
        heads=heads,
        kv_heads=int(field(f"{architecture}.attention.head_count_kv") or heads),
        head_dim=head_dim,
        rope_theta=float(field(f"{architecture}.rope.freq_base") or 10000.0),
        norm_eps=float(need("attention.layer_norm_rms_epsilon")),
        max_position=int(need("context_length")),
        tied=tied,
        eos_token_ids=() if eos is None else (int(eos),),
        rope_divisors=divisors,
    )


def _divisors(scaling: dict[str, Any], head_dim: int, theta: float) -> tuple[float, ...]:
    match scaling.get("rope_type", scaling.get("type", "default")):
        case "default":
            return ()
        case "linear":
            return (float(scaling["factor"]),) * (head_dim // 2)
        case "llama3":
            return llama3_divisors(
                head_dim,
                theta,
                float(scaling["factor"]),
                float(scaling["low_freq_factor"]),
                float(scaling["high_freq_factor"]),
                int(scaling["original_max_position_embeddings"]),
            )
        case other:
            raise ModelError(SOURCE, f"rope scaling {other!r} is not supported; supported: default, linear, llama3")


def _eos(folder: Path, document: dict[str, Any]) -> tuple[int, ...]:
    value = document.get("eos_token_id")
    generation = folder / "generation_config.json"
    if generation.is_file():
        value = json.loads(generation.read_text()).get("eos_token_id", value)
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)
