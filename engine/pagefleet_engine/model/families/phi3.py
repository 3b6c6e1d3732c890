"""Phi-3, Phi-3.5 and Phi-4 (Abdin et al., 2024): merged products, a window in every layer, rotary scaling with one factor
for each pair (LongRoPE), and in Phi-4-mini a part of each head that is not rotated."""

from __future__ import annotations

from pagefleet_engine.model.families.family import Document, Family, Options, Sliding, merged


def _config(document: Document) -> Document:
    """LongRoPE by its own name: files of the first version state "su" or "yarn"."""
    rope = dict(document.get("rope_scaling") or document.get("rope_parameters") or {})
    if (rope.get("rope_type") or rope.get("type")) in ("su", "yarn"):
        rope |= {"rope_type": "longrope"}
    return {**document, "rope_scaling": rope}


def _options(document: Document) -> Options:
    return Options(rotary_fraction=rotary_fraction(document, 1.0))


def rotary_fraction(document: Document, default: float) -> float:
    """The part of each head that is rotated, by the entry's two places."""
    rope = document.get("rope_scaling") or document.get("rope_parameters") or {}
    return float(rope.get("partial_rotary_factor") or document.get("partial_rotary_factor") or default)


def _sliding(document: Document, layers: int) -> Sliding:
    window = document.get("sliding_window")
    return window, [window is not None] * layers


FAMILY = Family(
    "phi3", config=_config, norm_eps=1e-5, positions=4096, sliding=_sliding, options=_options, pieces=merged
)
