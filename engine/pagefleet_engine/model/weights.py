"""A model's weights as float32 tensors under Hugging Face's names, read one at a time: never all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open

from pagefleet_engine.model.config import ModelConfig, from_gguf, from_json
from pagefleet_engine.model.errors import SOURCE, ModelError
from pagefleet_engine.model.gguf_file import GGUF
from pagefleet_engine.model.source import Format, ModelSource

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# Beside weights some files carry tables that the config says as well.
TABLES = ("rotary_emb.inv_freq", "rope_freqs.weight")


class Weights:
    """Names and readers of tensors. `take` reads one; `left` names those that nobody took."""

    def __init__(self, readers: dict[str, Callable[[], torch.Tensor]], where: str) -> None:
        self._readers, self._where = readers, where

    def __contains__(self, name: str) -> bool:
        return name in self._readers

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The float32 tensor `name`, once. Raises ModelError when it is missing, unreadable or of another shape."""
        if name not in self._readers:
            raise ModelError(SOURCE, f"{self._where} lacks the tensor {name}")
        try:
            tensor = self._readers.pop(name)()
        except (SafetensorError, NotImplementedError, ValueError, OSError) as error:
            raise ModelError(SOURCE, f"{self._where}: tensor {name} cannot be read: {error}") from error
        if tuple(tensor.shape) != shape:
            raise ModelError(SOURCE, f"{self._where}: tensor {name} is {tuple(tensor.shape)}, the config says {shape}")
        if tensor.dtype not in FLOATS:
            raise ModelError(
                SOURCE, f"{self._where}: tensor {name} is {tensor.dtype}; allowed: float32, float16, bfloat16"
            )
        return tensor.to(torch.float32)

    def left(self) -> list[str]:
        return sorted(name for name in self._readers if not name.endswith(TABLES))


def load(source: ModelSource) -> tuple[ModelConfig, Weights]:
    """Config, and weights that are still to be read. Raises ModelError."""
    match source.format:
        case Format.GGUF:
            file = GGUF(source.path)
            config = from_gguf(file.field, file.rope_divisors(), tied="lm_head.weight" not in file.names)
            return config, Weights(_gguf_readers(file, config), source.path.name)
        case Format.SAFETENSORS:
            return from_json(source.path), Weights(_safetensors_readers(source), source.path.name)


def _gguf_readers(file: GGUF, config: ModelConfig) -> dict[str, Callable[[], torch.Tensor]]:
    def read(name: str) -> torch.Tensor:
        return torch.from_numpy(file.read(name, config))

    return {name: partial(read, name) for name in file.names}


class _File(Protocol):
    """What is used of a `safe_open` handle; the library has no types for it."""

    def keys(self) -> list[str]: ...

    def get_tensor(self, name: str) -> torch.Tensor: ...


def _safetensors_readers(source: ModelSource) -> dict[str, Callable[[], torch.Tensor]]:
    readers: dict[str, Callable[[], torch.Tensor]] = {}
    for path in sorted(source.path.glob("*.safetensors")):
        try:
            file: _File = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise ModelError(SOURCE, f"{path.name} is not a readable safetensors file: {error}") from error
        readers |= {name: partial(file.get_tensor, name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    return readers
