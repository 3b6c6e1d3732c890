"""The models that are measured: the 135M model of the package, and larger shapes with random weights. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Shape(StrEnum):
    SMOLLM2 = "smollm2-135m"
    QWEN_06 = "qwen3-0.6b"
    QWEN_17 = "qwen3-1.7b"


@dataclass(frozen=True)
class Load:
    """requests: at once, by default. kv_tokens: of Pagefleet's pool, room for all of them."""

    requests: int
    kv_tokens: int


LOADS = {Shape.SMOLLM2: Load(64, 32768), Shape.QWEN_06: Load(24, 16384), Shape.QWEN_17: Load(12, 8192)}
