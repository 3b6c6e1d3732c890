"""GLM-4 (GLM team, 2024) in its two forms: half of each head is rotated, in pairs of neighbours, and gate and up are one
product. GLM-4-0414 (glm4) also has norms of what attention and MLP add."""

from __future__ import annotations

from pagefleet_engine.model.families.family import Document, Family, Options, merged, renamed
from pagefleet_engine.model.families.phi3 import rotary_fraction

FRACTION, HEAD_DIM, KV_HEADS, NORM_EPS, POSITIONS = (
    0.5,
    128,
    2,
    1.5625e-7,
    131072,
)  # transformers' defaults for a config.json without the entries
NAMES = {"post_self_attn_layernorm": "self_attn.output_norm", "post_mlp_layernorm": "mlp.output_norm"}


def _options(document: Document) -> Options:
    return Options(rotary_fraction=rotary_fraction(document, FRACTION), rotary_interleaved=True)


def _options_0414(document: Document) -> Options:
    return Options(
        rotary_fraction=rotary_fraction(document, FRACTION), rotary_interleaved=True, post_norms=True,
    )  # fmt: skip


GLM = Family(
    "glm", options=_options, pieces=merged, head_dim=HEAD_DIM, kv_heads=KV_HEADS, norm_eps=NORM_EPS, positions=POSITIONS,
)  # fmt: skip
GLM4 = Family(
    "glm4", tensor=renamed(NAMES), options=_options_0414, pieces=merged, head_dim=HEAD_DIM, kv_heads=KV_HEADS,
    norm_eps=NORM_EPS, positions=POSITIONS,
)  # fmt: skip
