"""Builds a model of transformers from a folder of safetensors. Only classes of the installed package: no code of a checkpoint runs.

Everything that keeps a model out and that its config.json shows is refused before a weight is read.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from pagefleet_engine.model.backend.attention import NAME, register
from pagefleet_engine.model.checkpoint.config import reason
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.checkpoint.source import read_json
from pagefleet_engine.model.families import registry

# Entries of config.json that would choose code or kernels in our place.
CODE = ("attn_implementation", "experts_implementation", "auto_map")
BACKEND = "through transformers' own code"


class Checkpoint:
    """A folder whose config.json names a causal text model that transformers computes through its attention interface.

    Raises ModelError for any other.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        document = read_json(folder / "config.json")
        self.kind = str(document.get("model_type"))
        _installed(self.kind)
        self._class, config_class = _classes(self.kind)
        self._check(document)
        kept = {name: value for name, value in document.items() if not any(word in name for word in CODE)}
        try:
            self.config = config_class.from_dict(kept)
        except Exception as error:  # config classes check their entries, each in its own way
            raise ModelError(SOURCE, f"{folder / 'config.json'} cannot be used: {error!r}") from error
        dtype = str(document.get("dtype") or document.get("torch_dtype"))
        self.half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(dtype)
        self.document: Mapping[str, Any] = document

    def max_position(self, given: int | None) -> int:
        """Return the most positions of the model, `given` where its config.json does not limit them. Raises ModelError."""
        longest = getattr(self.config, "max_position_embeddings", None) or given
        if longest is None:
            raise ModelError("spec.model.maxLength", f"config.json of {self.kind} names no greatest length: give one")
        return int(longest)

    def check_length(self, length: int) -> None:
        """Raises ModelError where the rotation of a token would depend on the other tokens of its batch."""
        for rope in _ropes(getattr(self.config, "rope_parameters", None)):
            original = rope.get("original_max_position_embeddings") or self.max_position(length)
            if rope.get("rope_type") in ("longrope", "dynamic") and length > original:
                raise ModelError(
                    "spec.model.maxLength",
                    f"{length} is more than {original}: {BACKEND}, rotations of rope_type {rope['rope_type']!r} "
                    "beyond that depend on the longest sequence of a batch",
                )

    def windows(self) -> list[int | None]:
        """Return each layer's window in transformers' own cache; None: it keeps all keys and values. Empty: it does not say.

        Raises ModelError for a layer that keeps anything else.
        """
        from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

        try:
            layers = DynamicCache(config=self.config).layers
        except Exception as error:
            raise ModelError(SOURCE, f"config.json of {self.folder.name} makes no cache: {error!r}") from error
        for index, layer in enumerate(layers):
            if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
                raise ModelError(
                    SOURCE,
                    f"model_type {self.kind!r} is not supported {BACKEND}: layer {index} keeps another state than keys "
                    f"and values ({type(layer).__name__})",
                )
        return [getattr(layer, "sliding_window", None) for layer in layers]

    def parameters(self) -> int:
        """Count the weights, none of which is read. Raises ModelError when the config is none of a model."""
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in self._made().parameters())

    def load(self) -> Any:
        """Return the model in float32 with our attention. Raises ModelError."""
        register()
        try:
            model, report = self._class.from_pretrained(
                self.folder, config=self.config, dtype=torch.float32, attn_implementation=NAME, local_files_only=True,
                use_safetensors=True, output_loading_info=True,
            )  # fmt: skip
        except Exception as error:  # files and weights are checked in many places, with any exception
            raise ModelError(SOURCE, f"{self.folder.name} cannot be loaded {BACKEND}: {error}") from error
        for key, fault in (("missing_keys", "lacks the tensor"), ("unexpected_keys", "has a tensor too much:")):
            if names := sorted(report[key]):
                raise ModelError(SOURCE, f"{self.folder.name} {fault} {names[0]} ({len(names)} in all)")
        return model.eval().requires_grad_(False)

    def _made(self) -> Any:
        register()
        try:
            return self._class._from_config(self.config, attn_implementation=NAME)
        except Exception as error:
            raise ModelError(SOURCE, f"config.json of {self.folder.name} makes no model: {error!r}") from error

    def _check(self, document: Mapping[str, Any]) -> None:
        # Latent attention is here keys and values like any other.
        if other_kind := reason({entry: value for entry, value in document.items() if entry != "kv_lora_rank"}):
            raise ModelError(SOURCE, f"model_type {self.kind!r} is not supported{other_kind}")
        name = self._class.__name__
        if other := next((one for one in document.get("architectures") or [] if one != name), None):
            raise ModelError(SOURCE, f"architecture {other!r} is not supported; supported: {name}")
        if stored := document.get("quantization_config"):
            method = stored.get("quant_method") if isinstance(stored, dict) else stored
            raise ModelError(
                SOURCE, f"config.json: quantization_config {method!r} of {self.kind} is not supported {BACKEND}"
            )
        if not self._class._supports_attention_backend:
            raise ModelError(
                SOURCE,
                f"model_type {self.kind!r} is not supported: its code in transformers computes attention in a way of its own",
            )


def _installed(kind: str) -> None:
    try:
        import transformers
    except ImportError:
        raise ModelError(
            SOURCE,
            f"model_type {kind!r} is not supported by this image: it has no family of its own here, and the package "
            f"transformers is not installed; families: {', '.join(registry.model_types())}",
        ) from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def _classes(kind: str) -> tuple[Any, Any]:
    """The class of the causal text model, and that of its config."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    try:
        config = CONFIG_MAPPING[kind]
        model = MODEL_FOR_CAUSAL_LM_MAPPING[config]
    except KeyError:
        model = None
    if model is None or not model.__name__.endswith(("ForCausalLM", "LMHeadModel")):
        version = importlib.metadata.version("transformers")
        raise ModelError(
            SOURCE,
            f"model_type {kind!r} is not supported: it is no causal text model of transformers {version}; "
            f"families: {', '.join(registry.model_types())}",
        )
    return model, config


def _ropes(parameters: Any) -> Iterator[Mapping[str, Any]]:
    """The rotations of a config: one, or one for each type of layer."""
    if isinstance(parameters, dict):
        yield parameters
        for inner in parameters.values():
            yield from _ropes(inner)
