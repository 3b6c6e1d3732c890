"""Llama (Touvron et al., 2023) and the models of its architecture; Mistral's GGUF files name it too."""

from __future__ import annotations

from pagefleet_engine.model.families.family import Family

# llama.cpp interleaves the rotary halves of this architecture's q and k only.
FAMILY = Family("llama", gguf="llama", gguf_interleaved=True, gguf_window=True)
