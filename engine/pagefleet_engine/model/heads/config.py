"""The shape of an EAGLE-3 head (Li et al., NeurIPS 2025) from its config.json, in either of two published formats. No torch.

SafeAILab's format, which SGLang's and NVIDIA's tools write too: Llama's entries and `draft_vocab_size`, architecture
LlamaForCausalLMEagle3. https://github.com/SafeAILab/EAGLE
The format of vLLM's speculators: `speculators_model_type`, with Llama's entries within `transformer_layer_config`.
https://github.com/vllm-project/speculators
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagefleet_engine.model.checkpoint.config import ModelConfig, from_document
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.checkpoint.source import read_json

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
TAPS = 3  # states of the served model that a head reads of each token
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
# Entries of which only one value is computed; a missing one has it.
ONLY: Mapping[str, Any] = {
    "num_hidden_layers": 1, "attention_bias": False, "qkv_bias": False, "mlp_bias": False, "bias": False,
    "norm_before_fc": False, "norm_output": False, "parallel_drafting": False, "quantization_config": None,
}  # fmt: skip
# What transformers' Llama has where an entry is missing: speculators writes only those that differ.
DEFAULTS: Mapping[str, Any] = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
}  # fmt: skip
ONLY_IN_EAGLE_CONFIG = ("use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm")  # true


@dataclass(frozen=True)
class HeadConfig:
    """shape: of the head's one layer; its `vocab_size` is the served model's.

    draft_vocab_size: how many tokens the head can propose. target_hidden_size: of the served model's states.
    norm_before_residual: the layer's residual is the normalised state.
    layers: the layers of the served model whose inputs the head reads; empty: the served model's size says which.
    """

    shape: ModelConfig
    draft_vocab_size: int
    target_hidden_size: int
    norm_before_residual: bool
    layers: tuple[int, ...] = ()

    def tapped(self, layers: int) -> tuple[int, ...]:
        """Return the layers, in their order, whose inputs the head reads in a model of so many. Raises ModelError."""
        chosen = tuple(sorted(set(self.layers or (2, layers // 2, layers - 3))))
        if len(chosen) != TAPS or chosen[0] < 0 or chosen[-1] >= layers:
            named = f"{LAYER_IDS} names" if self.layers else f"without {LAYER_IDS} these are"
            raise ModelError(
                SOURCE,
                f"config.json: {named} the inputs of layers {', '.join(map(str, chosen))}; "
                f"there must be {TAPS} different ones from 0 to {layers - 1}",
            )
        return chosen


def from_json(folder: Path) -> HeadConfig:
    """Read a head's config.json. Raises ModelError, which names the entry that is not supported."""
    document = read_json(folder / "config.json")
    if not isinstance(document, dict):
        raise ModelError(SOURCE, f"config.json of {folder.name} must be a JSON object")
    layer = document if "speculators_model_type" not in document else _speculators_layer(document)
    if layer is document:
        _safeailab(document)
    for entries in (document, layer):
        for name, value in ONLY.items():
            _only(entries, name, value)
    shape = from_document(folder, {name: value for name, value in layer.items() if name != "architectures"})
    return HeadConfig(
        shape,
        _size(document, "draft_vocab_size", shape.vocab_size),
        _size(document, "target_hidden_size", shape.hidden_size),
        bool(document.get("norm_before_residual", False)),
        _layers(document),
    )


def _safeailab(document: Mapping[str, Any]) -> None:
    architectures = document.get("architectures")
    if not isinstance(architectures, list) or not set(architectures) & set(ARCHITECTURES):
        raise ModelError(
            SOURCE,
            f"config.json: architectures {architectures!r} is no EAGLE-3 head; supported: {', '.join(ARCHITECTURES)}, "
            "or speculators_model_type eagle3",
        )
    eagle = document.get("eagle_config") or {}
    for name in ONLY_IN_EAGLE_CONFIG:
        _only(eagle, name, True, "eagle_config.")


def _speculators_layer(document: Mapping[str, Any]) -> Mapping[str, Any]:
    _only(document, "speculators_model_type", "eagle3")
    if not isinstance(document.get("norm_before_residual"), bool):
        # The library's default and vLLM's differ.
        raise ModelError(SOURCE, "config.json: norm_before_residual must be true or false in this format")
    layer = document.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise ModelError(SOURCE, "config.json: transformer_layer_config must be a JSON object")
    _only(layer, "model_type", "llama", "transformer_layer_config.")
    return {**DEFAULTS, **layer}


def _only(entries: Mapping[str, Any], name: str, value: Any, within: str = "") -> None:
    given = entries.get(name, value)
    if given not in (value, None):
        raise ModelError(SOURCE, f"config.json: {within}{name} {given!r} is not supported; supported: {value}")


def _size(document: Mapping[str, Any], name: str, default: int) -> int:
    value = document.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or value < 1:
        raise ModelError(SOURCE, f"config.json: {name} {value!r} must be a whole number above 0")
    return value


def _layers(document: Mapping[str, Any]) -> tuple[int, ...]:
    """Read which layers' inputs the head was trained with, as numbers of layers before them.

    vLLM reads the entry of the document so. SGLang reads that of `eagle_config`, as layers whose outputs are meant.
    """
    outer, inner = document.get(LAYER_IDS), (document.get("eagle_config") or {}).get(LAYER_IDS)
    value, offset = (outer, 0) if outer else (inner, 1)
    if not value:
        return ()
    if not isinstance(value, list) or not all(isinstance(one, int) for one in value):
        raise ModelError(SOURCE, f"config.json: {LAYER_IDS} {value!r} must be a list of whole numbers")
    return tuple(one + offset for one in value)
