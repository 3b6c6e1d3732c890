"""Qwen3 (Yang et al., 2025): RMSNorm over each head of q and k; windows as Qwen2 has them."""

from __future__ import annotations

from pagefleet_engine.model.families import qwen2
from pagefleet_engine.model.families.family import Family

HEAD_DIM = 128  # transformers' default for a config.json without the entry

FAMILY = Family("qwen3", gguf="qwen3", head_dim=HEAD_DIM, qk_norm=True, sliding=qwen2.sliding)
