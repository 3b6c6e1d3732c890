"""Reads a GGUF file: metadata, and the stored bytes of tensors under Hugging Face's names. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy

from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.checkpoint.gguf_metadata import Header, TensorInfo
from pagefleet_engine.model.families import registry
from pagefleet_engine.model.families.family import GGUF_TENSORS

Bytes = numpy.ndarray[Any, numpy.dtype[numpy.uint8]]

ROPE_DIVISORS = "rope_freqs.weight"
# ggml's numbers of the types that are dequantised here: (name, elements of a block, bytes of a block).
# https://github.com/ggml-org/ggml/blob/master/include/ggml.h
F32 = 0
TYPES = {
    F32: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2),
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 20: ("IQ4_NL", 32, 18), 23: ("IQ4_XS", 256, 136),
}  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """One tensor as it lies in the file: `shape` in elements, `data` [rows, bytes of a row], a 1-d tensor is one row."""

    type: str
    shape: tuple[int, ...]
    data: Bytes


class GGUF:
    """One open file. Raises ModelError when it is not GGUF or damaged."""

    def __init__(self, path: Path) -> None:
        self._header, self._where = Header(path), path.name
        family = registry.of_architecture(self.field("general.architecture"))
        names = family.gguf_tensors if family else GGUF_TENSORS
        self._tensors = {hugging_face_name(name, names): info for name, info in self._header.tensors.items()}
        self._permuted = family is not None and family.gguf_interleaved

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def field(self, name: str) -> Any:
        """A metadata value as Python has it, None when it is not there."""
        return self._header.field(name)

    def length(self, name: str) -> int:
        """Return how many entries an array of the metadata has, 0 when it is missing. Decodes nothing."""
        return self._header.length(name) or 0

    def type(self, name: str) -> str:
        """ggml's name of a tensor's type, empty for one that is not known here."""
        return TYPES.get(self._tensors[name].type, ("",))[0]

    def stored(self, name: str, heads: int, kv_heads: int) -> Stored:
        """One tensor by its Hugging Face name, rotary halves as Hugging Face lays them out. Raises ModelError."""
        tensor = self._read(self._tensors[name])
        if self._permuted and ".self_attn.q_proj." in name:
            return unpermute(tensor, heads)
        if self._permuted and ".self_attn.k_proj." in name:
            return unpermute(tensor, kv_heads)
        return tensor

    def rope_divisors(self) -> tuple[float, ...]:
        """Return the divisor of each rotary frequency (Llama 3.1's scaling, precomputed); empty when it is not scaled."""
        info = self._tensors.get(ROPE_DIVISORS)
        if info is None:
            return ()
        if info.type != F32:
            raise ModelError(SOURCE, f"{self._where}: tensor {ROPE_DIVISORS} is not F32")
        return tuple(self._read(info).data.view(numpy.float32).ravel().tolist())

    def _read(self, info: TensorInfo) -> Stored:
        if info.type not in TYPES:
            known = ", ".join(name for name, _, _ in TYPES.values())
            raise ModelError(
                SOURCE, f"{self._where}: tensor {info.name} is of ggml's type {info.type}; supported: {known}"
            )
        kind, elements, size = TYPES[info.type]
        columns = info.shape[-1] if info.shape else 1
        rows, stride = prod(info.shape[:-1]), columns // elements * size
        if columns % elements or info.start + rows * stride > len(self._header.data):
            raise ModelError(
                SOURCE, f"{self._where}: tensor {info.name}, {kind} {info.shape}, ends behind the file's end"
            )
        data = numpy.frombuffer(self._header.data, numpy.uint8, rows * stride, info.start)
        return Stored(kind, info.shape, data.reshape(rows, stride))


def hugging_face_name(name: str, names: Mapping[str, str] = GGUF_TENSORS) -> str:
    """ "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; a name that is not in `names` stays as it is."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if not match or match[2] not in names:
        return name
    prefix = f"model.layers.{match[1]}." if match[1] else ""
    return f"{prefix}{names[match[2]]}.{match[3]}"


def unpermute(stored: Stored, heads: int) -> Stored:
    """Undo llama.cpp's interleaving of rotary halves: rows (pair, half) of each head back to (half, pair).

    Whole rows move, so it works on quantised bytes as well. Raises ModelError when the rows are not those of `heads`.
    """
    count = stored.shape[0] if stored.shape else 0
    rows = stored.data.reshape(count, -1)  # a bias is one row of elements, unquantised
    if count % (2 * heads) or (len(stored.shape) == 1 and stored.type not in ("F32", "F16", "BF16")):
        raise ModelError(SOURCE, f"a tensor of {stored.shape} {stored.type} does not hold {heads} rotated heads")
    moved = rows.reshape(heads, count // heads // 2, 2, -1).swapaxes(1, 2).reshape(stored.data.shape)
    return Stored(stored.type, stored.shape, moved)
