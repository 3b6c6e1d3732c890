"""Qwen3 (Yang et al., 2025): RMSNorm over each head of q and k; windows as Qwen2 has them; and its models of experts, of which
a window slides in every layer."""

from __future__ import annotations

from pagefleet_engine.model.families import qwen2
from pagefleet_engine.model.families.family import Document, Experts, Family, Options, Sliding, experts_count

HEAD_DIM = 128  # transformers' default for a config.json without the entry, but not for the models of experts
EXPERTS, CHOSEN = 128, 8  # the defaults of those


def _sparse_options(document: Document) -> Options:
    return Options(
        experts=Experts(
            count=experts_count(document, EXPERTS), chosen=int(document.get("num_experts_per_tok", CHOSEN)),
            inner=int(document["moe_intermediate_size"]), normalised=bool(document.get("norm_topk_prob", False)),
            sparse=qwen2.sparse_layers(document),
        )
    )  # fmt: skip


def _sparse_sliding(document: Document, layers: int) -> Sliding:
    return qwen2.sliding({**document, "max_window_layers": 0}, layers)


SPARSE = Family(
    "qwen3_moe", kv_heads=4, positions=32768, qk_norm=True, sliding=_sparse_sliding, options=_sparse_options
)
FAMILY = Family(
    "qwen3", gguf="qwen3", head_dim=HEAD_DIM, kv_heads=32, positions=32768, qk_norm=True, sliding=qwen2.sliding
)
