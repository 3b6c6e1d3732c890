"""The shape of a model of one of the registered families, read from config.json; gguf_config.py reads GGUF. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagefleet_engine.model.checkpoint import quantization, rope_scaling
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.checkpoint.source import generation_config, read_json, tokenizer_settings
from pagefleet_engine.model.families import registry
from pagefleet_engine.model.families.family import LLAMA, Family, NotSupported, Options, slides

# Entries of config.json that show why a model cannot be served.
REASONS = {
    "vision_config": " (it is multimodal)",
    "audio_config": " (it is multimodal)",
    "kv_lora_rank": " (it has latent attention)",
    "ssm_cfg": " (it has a state in place of attention)",
    "mamba_d_state": " (it has a state in place of attention)",
    "is_encoder_decoder": " (it has an encoder)",
}


@dataclass(frozen=True)
class ModelConfig:
    """Sizes in elements; `max_position` in tokens. Decoder-only, GQA, rotary positions, gated MLP, RMSNorm.

    rope_divisors [rotary_dim / 2]: slow the rotary frequencies down, empty when they are not scaled.
    rope_scale: multiplies cos and sin.
    long_rope_divisors: in place of rope_divisors where more than `original_position` positions are served; empty: never.
    tied: the output matrix is the embedding, whatever else the file holds.
    qk_norm: RMSNorm over each head of q and k before the rotation (Qwen3).
    attention_bias: the config promises biases of q, k and v; a file may hold others without being asked.
    sliding_window: in layers where `sliding_layers` is true a token attends to itself and the `sliding_window` - 1
    tokens before it. None, and no layer, when nothing slides.
    stored: how the checkpoint's linear layers are quantised; None: floats.
    options: what the layers compute beside Llama's.
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
    rope_scale: float = 1.0
    qk_norm: bool = False
    attention_bias: bool = False
    sliding_window: int | None = None
    sliding_layers: tuple[bool, ...] = ()
    stored: quantization.Stored | None = None
    long_rope_divisors: tuple[float, ...] = ()
    original_position: int = 0
    options: Options = LLAMA

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def rotary_dim(self) -> int:
        """The elements of each head that are rotated."""
        return int(self.head_dim * self.options.rotary_fraction)

    @property
    def attention_scale(self) -> float:
        scale = self.options.attention_scale
        return self.head_dim**-0.5 if scale is None else scale

    def mlp_rows(self, layer: int) -> int:
        """How many rows of `hidden_size` elements the MLP of this layer, or its experts, have: gates, ups and downs."""
        experts = self.options.experts
        if experts is None or not experts.within(layer):
            return 3 * self.intermediate_size
        return 3 * (experts.count * experts.inner + experts.shared_inner) + experts.count

    def window(self, layer: int) -> int | None:
        """Return how many tokens, itself included, a token of this layer attends to; None: all before it."""
        return self.sliding_window if self.sliding_layers and self.sliding_layers[layer] else None


def check_shape(config: ModelConfig) -> ModelConfig:
    """The config itself. Raises ModelError when its sizes cannot be those of a model."""
    sizes = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "layers",
        "heads",
        "kv_heads",
        "head_dim",
        "max_position",
    )
    for name in sizes:
        if getattr(config, name) < 1:
            raise ModelError(SOURCE, f"the model's {name} is {getattr(config, name)}")
    if config.heads % config.kv_heads or config.head_dim % 2 or config.rotary_dim % 2:
        raise ModelError(
            SOURCE,
            f"the model has {config.heads} query heads over {config.kv_heads} key heads of {config.head_dim} elements",
        )
    return config


def from_json(folder: Path) -> ModelConfig:
    """Read config.json (and generation_config.json's eos). Raises ModelError."""
    try:
        document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unusable(folder, error) from error
    return from_document(folder, document)


def from_document(folder: Path, document: Mapping[str, Any]) -> ModelConfig:
    """As `from_json`, of an object with the entries of a config.json."""
    try:
        return check_shape(_from_document(folder, document))
    except KeyError as error:
        what = f"{folder / 'config.json'} has no entry {error}, which a {document.get('model_type')} model must state"
        raise ModelError(SOURCE, what) from error
    except (OSError, TypeError, ValueError, AttributeError, OverflowError, ZeroDivisionError) as error:
        raise _unusable(folder, error) from error


def _unusable(folder: Path, error: Exception) -> ModelError:
    return ModelError(SOURCE, f"{folder / 'config.json'} cannot be used: {error!r}")


def _from_document(folder: Path, document: Mapping[str, Any]) -> ModelConfig:
    family = _family(document)
    try:
        document = family.config(document)
        options = family.options(document)
    except NotSupported as error:
        raise ModelError(SOURCE, f"config.json: {error}") from error
    rope: dict[str, Any] = document.get("rope_scaling") or document.get("rope_parameters") or {}
    _check(document, "hidden_act", family.hidden_act)
    _check(document, "is_causal", True)  # models of embeddings may attend in both directions
    if options.rotary_fraction == 1:
        _check(document, "partial_rotary_factor", 1.0)
        _check(rope, "partial_rotary_factor", 1.0)
    if any(isinstance(value, dict) for value in rope.values()):
        raise ModelError(SOURCE, "config.json: rope_parameters of each layer type apart are not supported")
    heads, layers = int(document["num_attention_heads"]), int(document["num_hidden_layers"])
    hidden, longest = int(document["hidden_size"]), int(document.get("max_position_embeddings", family.positions))
    head_dim = int(document.get("head_dim") or family.head_dim or hidden // heads)
    theta = float(rope.get("rope_theta") or document.get("rope_theta") or 10000.0)
    scaling = rope_scaling.from_parameters(
        rope, int(head_dim * options.rotary_fraction), theta, longest, document.get("original_max_position_embeddings")
    )
    window, sliding = _sliding(family, document, layers)
    return ModelConfig(
        kind=family.model_type,
        vocab_size=int(document["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(document["intermediate_size"]),
        layers=layers,
        heads=heads,
        kv_heads=int(document.get("num_key_value_heads", family.kv_heads) or heads),
        head_dim=head_dim,
        rope_theta=theta,
        norm_eps=float(document.get("rms_norm_eps", family.norm_eps)),
        max_position=max(longest, scaling.positions),
        tied=bool(document.get("tie_word_embeddings", False)),
        eos_token_ids=eos_token_ids(folder, document),
        rope_divisors=scaling.divisors,
        rope_scale=scaling.scale,
        qk_norm=family.qk_norm,
        attention_bias=family.attention_bias or bool(document.get("attention_bias", False)),
        sliding_window=window,
        sliding_layers=sliding,
        stored=quantization.parse(document.get("quantization_config")),
        long_rope_divisors=scaling.long,
        original_position=scaling.original,
        options=options,
    )


def _family(document: Mapping[str, Any]) -> Family:
    """Raises ModelError for a model that no family computes, with its name, what keeps it out, and those that are served."""
    model_type, architectures = document.get("model_type"), document.get("architectures") or []
    family = registry.of_model_type(model_type)
    other = next((name for name in architectures if not str(name).endswith("ForCausalLM")), None)
    if family is not None and other is None:
        return family
    supported = ", ".join(registry.model_types())
    named = f"model_type {model_type!r}" if family is None else f"architecture {other!r}"
    raise ModelError(SOURCE, f"{named} is not supported{reason(document)}; supported: {supported}")


def reason(document: Mapping[str, Any]) -> str:
    """Return why a config.json's model cannot be served, in brackets; empty where no entry shows it."""
    return next((text for entry, text in REASONS.items() if document.get(entry)), "")


def _check(document: Mapping[str, Any], name: str, computed: Any) -> None:
    """Raises ModelError for a setting that changes the arithmetic to one that the layers do not compute."""
    if document.get(name) not in (computed, None):
        raise ModelError(SOURCE, f"config.json: {name} {document[name]!r} is not supported; supported: {computed}")


def _sliding(family: Family, document: Mapping[str, Any], layers: int) -> tuple[int | None, tuple[bool, ...]]:
    """The window, and for each layer whether it slides, with the family's defaults for missing entries."""
    types = document.get("layer_types")
    try:
        window, sliding = family.sliding(document, layers)
        differ = types is not None and [slides(layer_type, window) for layer_type in types] != list(sliding)
    except NotSupported as error:
        raise ModelError(SOURCE, f"config.json: {error}") from error
    if len(sliding) != layers or differ:
        raise ModelError(SOURCE, f"config.json: these layer_types of a {family.model_type} model are not supported")
    if not any(sliding):
        return None, ()
    if not isinstance(window, int) or window < 1:
        raise ModelError(SOURCE, f"config.json: sliding_window {window!r} must be a whole number above 0")
    return window, tuple(sliding)


def eos_token_ids(folder: Path, document: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the tokens that end an answer: of generation_config.json or else of config.json's `document`, and the tokenizer's own,
    as in vLLM: models that were trained further for conversations often name theirs there only."""
    value = generation_config(folder).get("eos_token_id", document.get("eos_token_id"))
    tokens = [] if value is None else value if isinstance(value, list) else [value]
    own = _tokenizer_eos(folder)
    if own is not None and own < int(document.get("vocab_size") or 0):
        tokens = [*tokens, own]
    return tuple(dict.fromkeys(int(token) for token in tokens))


def _tokenizer_eos(folder: Path) -> int | None:
    """The number of the tokenizer's `eos_token`, None where the files do not tell."""
    settings = tokenizer_settings(folder)
    name = settings.get("eos_token")
    name = name.get("content") if isinstance(name, dict) else name
    if not isinstance(name, str):
        return None
    numbered = settings.get("added_tokens_decoder") or {}
    found = next((index for index, entry in numbered.items() if entry.get("content") == name), None)
    if found is None:  # as transformers 5 saves it
        added = (read_json(folder / "tokenizer.json") or {}).get("added_tokens") or []
        found = next((entry.get("id") for entry in added if entry.get("content") == name), None)
    return None if found is None else int(found)
