"""The tensors of a folder's safetensors files, memory-mapped: one file, or the shards that an index names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HALVES = ("F16", "BF16")
DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "I32": torch.int32, "I8": torch.int8}


class _Slice(Protocol):
    def get_dtype(self) -> str: ...

    def get_shape(self) -> list[int]: ...

    def __getitem__(self, index: int) -> torch.Tensor: ...


class _File(Protocol):
    """The methods of a `safe_open` handle that are used here; the library has no types for it."""

    def keys(self) -> list[str]: ...

    def get_tensor(self, name: str) -> torch.Tensor: ...

    def get_slice(self, name: str) -> _Slice: ...


@dataclass(frozen=True)
class Reader:
    """One tensor of a file."""

    file: _File
    name: str

    def __call__(self) -> torch.Tensor:
        return self.file.get_tensor(self.name)

    def expert(self, index: int) -> torch.Tensor:
        """One matrix of a tensor that holds one for each expert."""
        return self.file.get_slice(self.name)[index]

    @property
    def bytes(self) -> int:
        """Return the bytes of one element, for float types."""
        return 2 if self.file.get_slice(self.name).get_dtype() in HALVES else 4

    def outline(self) -> torch.Tensor:
        """The tensor without its data, of device "meta". Raises KeyError for dtypes of no integers with scales."""
        found = self.file.get_slice(self.name)
        return torch.empty(found.get_shape(), dtype=DTYPES[found.get_dtype()], device="meta")


def readers(folder: Path) -> dict[str, Reader]:
    """Names and readers of all tensors. Raises ModelError for a missing or damaged file.

    model.safetensors goes before the index, the index before whatever else there is, as in transformers; Mistral's
    repositories hold the same weights a second time as consolidated.safetensors.
    """
    if (folder / SINGLE).is_file():
        return _tensors(folder / SINGLE)
    if (folder / INDEX).is_file():
        return _indexed(folder)
    tensors: dict[str, Reader] = {}
    for path in sorted(folder.glob("*.safetensors")):
        if not path.name.startswith("consolidated"):
            tensors |= _tensors(path)
    return tensors


def _indexed(folder: Path) -> dict[str, Reader]:
    try:
        index: Any = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        places = {str(name): str(shard) for name, shard in index["weight_map"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(SOURCE, f"{INDEX} cannot be used: {error!r}") from error
    names = sorted(set(places.values()))
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise ModelError(SOURCE, f"{INDEX} names {outside[0]!r}, which is not a file beside it")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            SOURCE,
            f"{folder.name} lacks {len(missing)} of the {len(names)} files that {INDEX} names: {', '.join(missing)}",
        )
    shards = {name: _tensors(folder / name) for name in names}
    for name, shard in places.items():
        if name not in shards[shard]:
            raise ModelError(SOURCE, f"{shard} lacks the tensor {name}, which {INDEX} says is there")
    return {name: shards[shard][name] for name, shard in places.items()}


def _tensors(path: Path) -> dict[str, Reader]:
    try:
        file: _File = safe_open(path, framework="pt")
        return {name: Reader(file, name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise ModelError(SOURCE, f"{path.name} is not a readable safetensors file: {error}") from error
