"""Mixtral (Jiang et al., 2024): Mistral with two of eight experts in place of the MLP."""

from __future__ import annotations

from pagefleet_engine.model.families.family import Document, Experts, Family, Options, Sliding, experts_count, renamed

NAMES = {"block_sparse_moe": "mlp", "w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
EXPERTS, CHOSEN, THETA = 8, 2, 1_000_000.0  # transformers' defaults for a config.json without the entries


def _config(document: Document) -> Document:
    theta = {} if document.get("rope_parameters") else {"rope_theta": THETA}
    return {**theta, **document}


def _options(document: Document) -> Options:
    return Options(
        experts=Experts(
            count=experts_count(document, EXPERTS),
            chosen=int(document.get("num_experts_per_tok", CHOSEN)),
            inner=int(document["intermediate_size"]),
        )
    )


def _sliding(document: Document, layers: int) -> Sliding:
    window = document.get("sliding_window")
    return window, [window is not None] * layers


FAMILY = Family(
    "mixtral", config=_config, tensor=renamed(NAMES), kv_heads=8, norm_eps=1e-5, positions=131072, sliding=_sliding,
    options=_options,
)  # fmt: skip
