"""Granite 3 (IBM, 2024): factors of the embedding, of scores, of what a layer adds, and of the logits; and its models of
experts, whose gates and ups are one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_engine.model.families.family import (
    Document,
    Experts,
    Family,
    Options,
    Piece,
    Sizes,
    experts_count,
    renamed,
)

EXPERTS, CHOSEN = 8, 2  # transformers' defaults for a config.json without the entries


def _options(document: Document, **more: Any) -> Options:
    return Options(
        embedding_scale=float(document.get("embedding_multiplier", 1.0)),
        attention_scale=float(document.get("attention_multiplier", 1.0)),
        residual_scale=float(document.get("residual_multiplier", 1.0)),
        logit_scale=1.0 / float(document.get("logits_scaling", 1.0)),
        **more,
    )  # fmt: skip


def _sparse_options(document: Document) -> Options:
    experts = Experts(
        count=experts_count(document, EXPERTS), chosen=int(document.get("num_experts_per_tok", CHOSEN)),
        inner=int(document["intermediate_size"]),
    )  # fmt: skip
    return _options(document, experts=experts)


def _pieces(name: str, sizes: Sizes) -> Mapping[str, Piece]:
    experts = sizes.options.experts
    prefix, _, last = name.partition(".mlp.")
    if experts is None or last not in ("input_linear.weight", "output_linear.weight"):
        return {}
    pieces: dict[str, Piece] = {}
    for index in range(experts.count):
        module = f"{prefix}.mlp.experts.{index}."
        if last == "output_linear.weight":
            pieces[f"{module}down_proj.weight"] = Piece(expert=index)
        else:
            pieces[f"{module}gate_proj.weight"] = Piece(0, experts.inner, expert=index)
            pieces[f"{module}up_proj.weight"] = Piece(experts.inner, 2 * experts.inner, expert=index)
    return pieces


FAMILY = Family("granite", options=_options)
SPARSE = Family(
    "granitemoe", tensor=renamed({"block_sparse_moe.router.layer": "mlp.gate", "block_sparse_moe": "mlp"}),
    options=_sparse_options, pieces=_pieces,
)  # fmt: skip
