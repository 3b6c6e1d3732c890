"""The families that this engine serves: a new one is its module and its line here."""

from __future__ import annotations

from pagefleet_engine.model.families import llama, mistral, qwen2, qwen3
from pagefleet_engine.model.families.family import Family

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    mistral.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
)


def of_model_type(model_type: object) -> Family | None:
    """The family of config.json's `model_type`, None when it is not served."""
    return next((family for family in FAMILIES if family.model_type == model_type), None)


def of_architecture(architecture: object) -> Family | None:
    """The family of a GGUF file's `general.architecture`, None when it is not served."""
    return next((family for family in FAMILIES if family.gguf and family.gguf == architecture), None)


def model_types() -> list[str]:
    return [family.model_type for family in FAMILIES]


def architectures() -> list[str]:
    return [family.gguf for family in FAMILIES if family.gguf]
