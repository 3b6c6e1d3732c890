"""A library of compiled operations for another processor, whose functions an emulated process (foreign_calls.cpp) calls."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pagefleet_kernels.cpu.library import SIGNATURES

DRIVER = Path(__file__).with_name("foreign_calls.cpp")
INTEGER, FLOAT, MEMORY, POINTED_TO = range(4)


class Memory(TorchDispatchMode):
    """Holds every tensor that torch's operations return while it is entered, to find the memory behind a bare pointer."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(one, torch.Tensor):
                self._held[one.untyped_storage().data_ptr()] = one.untyped_storage()
        return result

    def behind(self, pointer: int) -> tuple[int, int] | None:
        """Return the begin and the size of the memory in which a pointer lies, None when no held tensor has it."""
        for begin, storage in self._held.items():
            if begin <= pointer < begin + storage.nbytes():
                return begin, storage.nbytes()
        return None


class _Request:
    """The arguments of one call as they are sent, and the memory of this process that the answer's bytes belong to."""

    def __init__(self, memory: Memory, handles: set[int]) -> None:
        self._memory, self._handles = memory, handles
        self.sent: list[tuple[int, bytes, bytes]] = []  # kind, number, what follows
        self.pointers: list[tuple[int, int, int, int]] = []
        self.returned: list[tuple[int, int]] = []  # begin, size

    def integer(self, value: int) -> None:
        self.sent.append((INTEGER, struct.pack("<q", value), b""))

    def region(self, kind: int, begin: int, size: int) -> int:
        self.sent.append((kind, struct.pack("<q", size), ctypes.string_at(begin, size)))
        self.returned.append((begin, size))
        return len(self.sent) - 1

    def pointer(self, value: int | None) -> None:
        """A tensor's memory is sent; what is no tensor's is a handle, that the other process gave."""
        if not value or value in self._handles:
            self.integer(value or 0)
        else:
            found = self._memory.behind(value)
            assert found is not None and value == found[0], "an argument begins with a tensor that is held"
            self.region(MEMORY, *found)

    def structs(self, array: Sequence[ctypes.Structure], begin: int) -> None:
        """An array of structs, and all that the pointers in them point to."""
        size = ctypes.sizeof(array[0])
        inside = self.region(MEMORY, begin, size * len(array))
        for index, one in enumerate(array):
            self._pointers_of(one, inside, index * size)

    def _pointers_of(self, one: ctypes.Structure, inside: int, begin: int) -> None:
        """What the pointers of a struct point to, at `begin` of an argument. Handles are addresses of the other process."""
        for name, kind, *_ in one._fields_:
            value, offset = getattr(one, name), begin + getattr(type(one), name).offset
            if isinstance(value, ctypes.Structure):
                self._pointers_of(value, inside, offset)
            elif kind is ctypes.c_void_p and value and value not in self._handles:
                found = self._memory.behind(value)
                assert found is not None, name
                target = self.region(POINTED_TO, *found)
                self.pointers.append((inside, offset, target, value - found[0]))


class ForeignLibrary:
    """As ctypes.CDLL: its attributes are the functions of SIGNATURES. `command` starts foreign_calls.cpp."""

    def __init__(self, command: Sequence[str], memory: Memory) -> None:
        self._memory = memory
        self._handles: set[int] = set()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)

    def _call(self, name: str, *values: Any) -> int:
        request = _Request(self._memory, self._handles)
        kind_of_result, kinds = SIGNATURES[name.removeprefix("pagefleet_")]
        for value, kind in zip(values, kinds, strict=True):
            if kind is ctypes.c_float:
                request.sent.append((FLOAT, struct.pack("<d", value), b""))
            elif isinstance(value, ctypes.Array) and issubclass(value._type_, ctypes.Structure):
                request.structs(list(value), ctypes.addressof(value))
            elif isinstance(value, ctypes.Array):
                request.region(MEMORY, ctypes.addressof(value), ctypes.sizeof(value))
            elif kind is ctypes.c_void_p:
                request.pointer(value)
            elif isinstance(kind, type) and issubclass(kind, ctypes._Pointer):
                request.structs([value._obj], ctypes.addressof(value._obj))
            else:
                request.integer(int(value))
        assert self._process.stdin is not None
        self._process.stdin.write(self._bytes(name, request))
        self._process.stdin.flush()
        (result,) = struct.unpack("<q", self._read(8))
        for begin, size in request.returned:
            ctypes.memmove(begin, self._read(size), size)
        if kind_of_result is ctypes.c_void_p:
            self._handles.add(result)
        return int(result)

    @staticmethod
    def _bytes(name: str, request: _Request) -> bytes:
        numbers = partial(struct.pack, "<q")
        parts = [numbers(len(name)), name.encode(), numbers(len(request.sent))]
        for kind, number, rest in request.sent:
            parts += [numbers(kind), number, rest]
        parts.append(numbers(len(request.pointers)))
        parts += [struct.pack("<4q", *pointer) for pointer in request.pointers]
        return b"".join(parts)

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        assert len(data) == size, f"the process ended: {self._process.poll()}"
        return data
