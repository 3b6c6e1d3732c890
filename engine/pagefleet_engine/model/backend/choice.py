"""Decides whose code computes a checkpoint: a family of ours, or transformers'. No torch."""

from __future__ import annotations

from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.checkpoint.source import Format, ModelSource, read_json
from pagefleet_engine.model.families import registry

AUTO, OWN, TRANSFORMERS = IMPLEMENTATIONS = ("auto", "pagefleet", "transformers")


def through_transformers(source: ModelSource, model_impl: str) -> bool:
    """Whether transformers computes the model: as `model_impl` says, or because no family of ours does. Raises ModelError."""
    if source.format is Format.GGUF:
        if model_impl == TRANSFORMERS:
            raise ModelError("spec.engine.args", "--model-impl=transformers reads safetensors, not GGUF files")
        return False
    if model_impl != AUTO:
        return model_impl == TRANSFORMERS
    document = read_json(source.path / "config.json")
    if not isinstance(document, dict):
        raise ModelError(SOURCE, f"config.json of {source.path.name} must be a JSON object")
    return registry.of_model_type(document.get("model_type")) is None
