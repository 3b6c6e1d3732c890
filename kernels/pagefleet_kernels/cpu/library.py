"""Which of the compiled libraries this machine can use, and their C interface as ctypes declares it."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from pagefleet_kernels.compile import INSTRUCTIONS, Instructions, features, here

VERSION = 9


def lacking(instructions: Instructions) -> str | None:
    """Return why operations that are compiled for these cannot run here, None when they can."""
    if instructions not in here():
        return f"{instructions.name} is not of this machine's architecture"
    if not features():
        return "not Linux"
    if without := sorted(instructions.needed - features()):
        return f"this CPU lacks {', '.join(without)}"
    return None if instructions.library.is_file() else "not built: python -m pagefleet_kernels.compile"


def usable() -> list[Instructions]:
    """Return the instruction sets whose operations can be used here, the fastest first."""
    return [one for one in INSTRUCTIONS if lacking(one) is None]


def missing() -> str | None:
    """Return why no compiled operations can be used here, None when some can. It speaks of the set that asks the least."""
    if usable():
        return None
    return lacking(here()[-1]) if here() else "there are none for this machine's architecture"


def named(name: str) -> Instructions:
    """Return the instruction set with this name, and for an empty name the fastest one.

    Raises OSError when its operations cannot be used here.
    """
    reason = missing()
    if not name and reason is None:
        return usable()[0]
    for one in INSTRUCTIONS:
        if one.name == name:
            reason = lacking(one)
            if reason is None:
                return one
    raise OSError(f"the compiled CPU operations cannot be used: {reason or f'no instructions are called {name}'}")


class Rectangle(Structure):
    """A part of a weight's rows, `stride` bytes from one another."""

    _fields_ = [("begin", c_void_p), ("rows", c_int64), ("stride", c_int64)]  # fmt: skip


class AttentionJob(Structure):
    _fields_ = [
        ("q", c_void_p), ("q_stride", c_int64), ("out", c_void_p), ("keys", c_void_p), ("values", c_void_p),
        ("table", c_void_p), ("table_width", c_int64), ("first", c_void_p), ("context", c_void_p),
        ("sequences", c_int64), ("heads", c_int64), ("kv_heads", c_int64), ("head_dim", c_int64),
        ("page_size", c_int64), ("window", c_int64), ("scale", c_float), ("cap", c_float), ("sinks", c_void_p),
    ]  # fmt: skip


class RopeJob(Structure):
    _fields_ = [
        ("qkv", c_void_p), ("q_norm", c_void_p), ("k_norm", c_void_p), ("cos", c_void_p), ("sin", c_void_p),
        ("positions", c_void_p), ("slots", c_void_p), ("keys", c_void_p), ("values", c_void_p), ("tokens", c_int64),
        ("heads", c_int64), ("kv_heads", c_int64), ("head_dim", c_int64), ("page_size", c_int64), ("epsilon", c_float),
    ]  # fmt: skip


class LayerJob(Structure):
    """`rope` and `attention` without what each step brings."""

    _fields_ = [
        ("qkv", c_void_p), ("out", c_void_p), ("gate_up", c_void_p), ("down", c_void_p),
        ("attention_norm", c_void_p), ("mlp_norm", c_void_p), ("attention_epsilon", c_float), ("mlp_epsilon", c_float),
        ("rope", RopeJob), ("attention", AttentionJob),
    ]  # fmt: skip


class PagesJob(Structure):
    _fields_ = [("keys", c_void_p), ("values", c_void_p)]


class StepJob(Structure):
    _fields_ = [
        ("x", c_void_p), ("tokens", c_int64), ("positions", c_void_p), ("slots", c_void_p), ("table", c_void_p),
        ("table_width", c_int64), ("first", c_void_p), ("context", c_void_p), ("sequences", c_int64),
        ("kv_heads", c_int64), ("head_dim", c_int64), ("page_size", c_int64),
    ]  # fmt: skip


class DrawJob(Structure):
    _fields_ = [
        ("row", c_int64), ("uniform", c_double), ("temperature", c_float), ("top_p", c_float), ("min_p", c_float),
        ("top_k", c_int32), ("token", c_int32),
    ]  # fmt: skip


# Of each function: its result and its arguments.
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "threads": (None, [c_int]),
    "linear": (c_void_p, [c_int64, c_int64, POINTER(Rectangle), c_int64, *3 * [c_void_p], *3 * [c_int64], c_int]),
    "linear_free": (None, [c_void_p]),
    "linear_apply": (None, [c_void_p, c_void_p, c_void_p, c_float, c_int64, c_void_p, c_int]),
    "mlp": (None, [c_void_p, c_void_p, c_void_p, c_float, c_int64, c_void_p, c_void_p, c_int]),
    "experts": (c_void_p, [c_void_p, c_void_p, c_int64]),
    "experts_free": (None, [c_void_p]),
    "experts_apply": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_void_p]),
    "rms_norm": (None, [c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_float]),
    "gate": (None, [c_int, c_void_p, c_void_p, c_int64, c_int64]),
    "rope": (None, [POINTER(RopeJob), c_int]),
    "attend": (None, [POINTER(AttentionJob), c_int]),
    "decode": (None, [POINTER(LayerJob), c_int64, POINTER(PagesJob), POINTER(StepJob), c_int]),
    "sample": (None, [c_void_p, c_int64, POINTER(DrawJob), c_int64]),
    "version": (c_int, []),
}


@cache
def load(path: Path) -> ctypes.CDLL:
    """Raises OSError when it is not a library of this version."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, f"pagefleet_{name}")
        function.restype, function.argtypes = result, arguments
    if library.pagefleet_version() != VERSION:
        raise OSError(f"{path.name} is of another version: build it again")
    return library
