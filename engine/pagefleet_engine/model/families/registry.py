"""The families that this engine serves: a new one is its module and its line here."""

from __future__ import annotations

from pagefleet_engine.model.families import (
    gemma,
    glm4,
    gpt_oss,
    granite,
    llama,
    mistral,
    mixtral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    smollm3,
)
from pagefleet_engine.model.families.family import Family

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    mistral.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    gemma.GEMMA2,
    gemma.GEMMA3,
    phi3.FAMILY,
    glm4.GLM,
    glm4.GLM4,
    olmo2.FAMILY,
    granite.FAMILY,
    smollm3.FAMILY,
    mixtral.FAMILY,
    qwen2.SPARSE,
    qwen3.SPARSE,
    granite.SPARSE,
    gpt_oss.FAMILY,
)


def of_model_type(model_type: object) -> Family | None:
    """The family of config.json's `model_type`, None when it is not served."""
    return next((family for family in FAMILIES if family.model_type == model_type), None)


def family(model_type: str) -> Family:
    """The family of a `model_type` that is served."""
    return next(one for one in FAMILIES if one.model_type == model_type)


def of_architecture(architecture: object) -> Family | None:
    """The family of a GGUF file's `general.architecture`, None when it is not served."""
    return next((family for family in FAMILIES if family.gguf and family.gguf == architecture), None)


def model_types() -> list[str]:
    return [family.model_type for family in FAMILIES]


def architectures() -> list[str]:
    return [family.gguf for family in FAMILIES if family.gguf]
