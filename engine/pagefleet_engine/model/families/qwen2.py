"""Qwen2 and Qwen2.5 (Yang et al., 2024): biases of q, k and v, and a window in the layers that config.json names."""

from __future__ import annotations

from collections.abc import Sequence

from pagefleet_engine.model.families.family import Document, Family, Sliding, slides

WINDOW, MAX_WINDOW_LAYERS = 4096, 28  # transformers' defaults for a config.json without the entries


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


FAMILY = Family("qwen2", gguf="qwen2", attention_bias=True, sliding=sliding)
