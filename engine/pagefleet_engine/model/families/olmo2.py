"""OLMo 2 (Walsh et al., 2025): RMSNorm of what attention and MLP add in place of their input, and over all heads of q and k."""

from __future__ import annotations

from pagefleet_engine.model.families.family import Document, Family, Options, renamed

NAMES = {"post_attention_layernorm": "self_attn.output_norm", "post_feedforward_layernorm": "mlp.output_norm"}


def _options(document: Document) -> Options:
    return Options(pre_norms=False, post_norms=True, whole_qk_norm=True)


FAMILY = Family("olmo2", tensor=renamed(NAMES), options=_options, norm_eps=1e-5)
