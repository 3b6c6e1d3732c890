"""Qwen2 and Qwen2.5 (Yang et al., 2024): biases of q, k and v, and a window in the layers that config.json names; and its
models of experts, one of which every token goes through."""

from __future__ import annotations

from collections.abc import Sequence

from pagefleet_engine.model.families.family import Document, Experts, Family, Options, Sliding, experts_count, slides

EXPERTS, CHOSEN, WINDOW, MAX_WINDOW_LAYERS = (
    60,
    4,
    4096,
    28,
)  # transformers' defaults for a config.json without the entries


def sliding(document: Document, layers: int) -> Sliding:
    """Read the window and the layers that slide: those of `layer_types`, else all from `max_window_layers` on. Raises
    NotSupported.
    """
    window = document.get("sliding_window", WINDOW) if document.get("use_sliding_window", False) else None
    types: Sequence[str] | None = document.get("layer_types")
    first = int(document.get("max_window_layers", MAX_WINDOW_LAYERS))
    if types is None:
        return window, [window is not None and index >= first for index in range(layers)]
    return window, [slides(layer_type, window) for layer_type in types]


def sparse_layers(document: Document) -> tuple[bool, ...]:
    """For each layer whether it has experts."""
    step, dense = int(document.get("decoder_sparse_step", 1)), document.get("mlp_only_layers") or []
    layers = int(document["num_hidden_layers"])
    return tuple(index not in dense and (index + 1) % step == 0 for index in range(layers))


def _sparse_options(document: Document) -> Options:
    return Options(
        experts=Experts(
            count=experts_count(document, EXPERTS), chosen=int(document.get("num_experts_per_tok", CHOSEN)),
            inner=int(document["moe_intermediate_size"]), normalised=bool(document.get("norm_topk_prob", False)),
            shared_inner=int(document["shared_expert_intermediate_size"]), shared_gate=True,
            sparse=sparse_layers(document),
        )
    )  # fmt: skip


def _sparse_sliding(document: Document, layers: int) -> Sliding:
    """Of these models every second one of the first `max_window_layers` layers slides, unless `layer_types` names others."""
    first = int(document.get("max_window_layers", MAX_WINDOW_LAYERS))
    types = ["sliding_attention" if index % 2 == 0 and index < first else "full_attention" for index in range(layers)]
    return sliding({**document, "layer_types": document.get("layer_types") or types}, layers)


SPARSE = Family(
    "qwen2_moe", kv_heads=16, positions=32768, attention_bias=True, sliding=_sparse_sliding, options=_sparse_options
)
FAMILY = Family("qwen2", gguf="qwen2", kv_heads=32, positions=32768, attention_bias=True, sliding=sliding)
