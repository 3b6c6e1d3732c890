"""Reads a GGUF file's header: metadata and where each tensor lies. No torch, no gguf.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. Arrays (a
vocabulary has a hundred thousand strings) are stepped over and decoded when they are asked for. Every length is
checked against the file's end before anything of that length is made.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError

STRING, ARRAY = 8, 9
# Value types: the struct format of one.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
MAX_DIMENSIONS, MAX_ALIGNMENT = 4, 1 << 20
U32, U64, ARRAY_HEAD, TENSOR_TAIL = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<IQ"), struct.Struct("<IQ")


class Damaged(Exception):
    """The file is not what its header promises."""


@dataclass(frozen=True)
class Array:
    """An array that lies in the file and is not decoded yet: its first byte, number and type of entries."""

    start: int
    count: int
    type: int


@dataclass(frozen=True)
class TensorInfo:
    """`shape` outermost first, as numpy has it; `start` is the offset of the first byte in the file."""

    name: str
    shape: tuple[int, ...]
    type: int
    start: int


class Header:
    """Metadata and tensors of one file. Raises ModelError when it is no GGUF or damaged."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self.data = mmap.mmap(
                    file.fileno(), 0, access=mmap.ACCESS_COPY
                )  # numpy and torch warn of read-only memory
            self._at = 0
            self._values: dict[str, Any] = {}
            self.tensors: dict[str, TensorInfo] = {}
            self._read()
        except (OSError, ValueError, OverflowError, struct.error, Damaged) as error:
            raise ModelError(SOURCE, f"{path.name} is not a readable GGUF file: {error}") from error

    def field(self, name: str) -> Any:
        """A metadata value as Python has it, None when it is not there. Raises ModelError for damaged text."""
        value = self._values.get(name)
        if isinstance(value, Array):
            try:
                return self._decode(value)
            except UnicodeDecodeError as error:
                raise ModelError(SOURCE, f"the GGUF file's {name} is damaged: {error}") from error
        return value

    def length(self, name: str) -> int | None:
        """Return how many entries an array has, None when there is no array of this name. Decodes nothing."""
        value = self._values.get(name)
        return value.count if isinstance(value, Array) else None

    def _read(self) -> None:
        if self._take(4) != b"GGUF":
            raise Damaged("it does not begin with GGUF")
        version = self._u32()
        if version not in (2, 3):
            raise Damaged(f"version {version}; versions 2 and 3 are read, little-endian")
        tensors, values = self._u64(), self._u64()
        for _ in range(values):
            name = self._string()
            if name in self._values:
                raise Damaged(f"{name} comes twice")
            self._values[name] = self._value(self._u32())
        infos = [self._tensor() for _ in range(tensors)]
        alignment = self._values.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= MAX_ALIGNMENT:
            raise Damaged(f"its alignment is {alignment!r}")
        base = -(-self._at // alignment) * alignment
        for info in infos:
            if info.name in self.tensors:
                raise Damaged(f"tensor {info.name} comes twice")
            self.tensors[info.name] = TensorInfo(info.name, info.shape, info.type, base + info.start)

    def _tensor(self) -> TensorInfo:
        name, dimensions = self._string(), self._u32()
        if dimensions > MAX_DIMENSIONS:
            raise Damaged(f"tensor {name} has {dimensions} dimensions")
        shape = struct.unpack(f"<{dimensions}Q", self._take(8 * dimensions))
        kind, start = TENSOR_TAIL.unpack(self._take(TENSOR_TAIL.size))
        # A quantised element takes at least an eighth of a byte. A product of 0 says nothing of the other dimensions.
        if start > len(self.data) or max((prod(shape), *shape)) > 8 * len(self.data):
            raise Damaged(f"tensor {name} {shape} ends behind the file's end")
        return TensorInfo(name, tuple(reversed(shape)), kind, start)

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return struct.unpack("<" + self._format(kind), self._take(struct.calcsize(self._format(kind))))[0]
        entry, count = ARRAY_HEAD.unpack(self._take(ARRAY_HEAD.size))
        start = self._at
        if entry == STRING:
            self._step_over_strings(count)
        else:
            self._skip(count * struct.calcsize(self._format(entry)))
        return Array(start, count, entry)

    def _format(self, kind: int) -> str:
        if kind not in SCALARS:
            raise Damaged(f"value type {kind} is not known")
        return SCALARS[kind]

    def _step_over_strings(self, count: int) -> None:
        at, data, size, length = self._at, self.data, len(self.data), U64.unpack_from
        if count * U64.size > size - at:
            raise Damaged(f"an array of {count} strings ends behind the file's end")
        for _ in range(count):
            at += 8 + length(data, at)[0]  # beyond the end: an error at the next string, or by the check below
        if at > size:
            raise Damaged("a string ends behind the file's end")
        self._at = at

    def _decode(self, array: Array) -> list[Any]:
        if array.type != STRING:
            return list(struct.unpack_from(f"<{array.count}{SCALARS[array.type]}", self.data, array.start))
        at, data, length, strings = array.start, self.data, U64.unpack_from, []
        for _ in range(array.count):
            end = at + 8 + length(data, at)[0]
            strings.append(data[at + 8 : end].decode())
            at = end
        return strings

    def _string(self) -> str:
        return self._take(self._u64()).decode()

    def _u32(self) -> int:
        value: int = U32.unpack(self._take(4))[0]
        return value

    def _u64(self) -> int:
        value: int = U64.unpack(self._take(8))[0]
        return value

    def _take(self, count: int) -> bytes:
        self._skip(count)
        return self.data[self._at - count : self._at]

    def _skip(self, count: int) -> None:
        if count > len(self.data) - self._at:
            raise Damaged(f"{count} bytes at {self._at} end behind the file's end at {len(self.data)}")
        self._at += count
