"""Gemma 2 (Riviere et al., 2024) and the text part of Gemma 3 (Kamath et al., 2025): norms before and after each half of a
layer, GELU, scaled embeddings; Gemma 2 bounds its scores and logits, Gemma 3 normalises q and k and has two rotary bases."""

from __future__ import annotations

from typing import Any

from pagefleet_engine.model.families.family import (
    Document,
    Family,
    NotSupported,
    Options,
    Sliding,
    layer_types,
    renamed,
)

WINDOW, SCALAR = 4096, 256  # transformers' defaults for a config.json without the entries
SCORES, LOGITS = 50.0, 30.0  # Gemma 2's
GLOBAL_THETA, LOCAL_THETA, PATTERN = 1_000_000.0, 10_000.0, 6  # Gemma 3's; every PATTERN-th layer is global
NAMES = {
    "post_attention_layernorm": "self_attn.output_norm",
    "pre_feedforward_layernorm": "post_attention_layernorm",
    "post_feedforward_layernorm": "mlp.output_norm",
}


def _config(document: Document) -> Document:
    activation = document.get("hidden_activation") or "gelu_pytorch_tanh"
    return {"tie_word_embeddings": True, "head_dim": 256, **document, "hidden_act": activation}


def _options(document: Document, **more: Any) -> Options:
    if document.get("use_bidirectional_attention"):
        raise NotSupported("use_bidirectional_attention is not supported")
    return Options(
        activation="gelu_tanh", post_norms=True, norm_offset=1.0,
        embedding_scale=float(document["hidden_size"]) ** 0.5,
        attention_scale=float(document.get("query_pre_attn_scalar", SCALAR)) ** -0.5,
        attention_cap=float(document.get("attn_logit_softcapping", 0) or 0),
        logit_cap=float(document.get("final_logit_softcapping", 0) or 0),
        **more,
    )  # fmt: skip


def _options_2(document: Document) -> Options:
    return _options({"attn_logit_softcapping": SCORES, "final_logit_softcapping": LOGITS, **document})


def _sliding_2(document: Document, layers: int) -> Sliding:
    return layer_types({"sliding_window": WINDOW, **document}, layers, [index % 2 == 0 for index in range(layers)])


def _config_3(document: Document) -> Document:
    """The rotary parameters of the global layers are the model's, and those of the local layers an option."""
    parameters = document.get("rope_parameters") or {}
    rope = parameters.get("full_attention") or document.get("rope_scaling") or {}
    local = parameters.get("sliding_attention") or {}
    if local.get("rope_type", "default") != "default":
        raise NotSupported(f"rope_type {local['rope_type']!r} of sliding layers is not supported; supported: default")
    theta = rope.get("rope_theta") or document.get("rope_theta") or GLOBAL_THETA
    others = {name: value for name, value in document.items() if name not in ("rope_parameters", "rope_scaling")}
    sliding_theta = local.get("rope_theta") or document.get("rope_local_base_freq") or LOCAL_THETA
    return {**_config(others), "rope_scaling": {**rope, "rope_theta": theta}, "rope_local_base_freq": sliding_theta}


def _options_3(document: Document) -> Options:
    return _options(document, sliding_theta=float(document["rope_local_base_freq"]))


def _sliding_3(document: Document, layers: int) -> Sliding:
    pattern = int(document.get("sliding_window_pattern", PATTERN))
    default = [(index + 1) % pattern != 0 for index in range(layers)]
    return layer_types({"sliding_window": WINDOW, **document}, layers, default)


GEMMA2 = Family(
    "gemma2", config=_config, kv_heads=4, positions=8192, tensor=renamed(NAMES), sliding=_sliding_2, options=_options_2,
    hidden_act="gelu_pytorch_tanh",
)  # fmt: skip
GEMMA3 = Family(
    "gemma3_text", config=_config_3, kv_heads=4, positions=131072, tensor=renamed(NAMES), qk_norm=True, sliding=_sliding_3, options=_options_3,
    hidden_act="gelu_pytorch_tanh",
)  # fmt: skip
