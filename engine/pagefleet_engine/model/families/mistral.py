"""Mistral (Jiang et al., 2023): Llama with a window that slides in every layer. Its GGUF files state "llama"."""

from __future__ import annotations

from pagefleet_engine.model.families.family import Document, Family, Sliding

WINDOW = 4096  # transformers' default for a config.json without the entry


def _sliding(document: Document, layers: int) -> Sliding:
    window = document.get("sliding_window", WINDOW)
    return window, [window is not None] * layers


FAMILY = Family("mistral", kv_heads=8, positions=131072, sliding=_sliding)
