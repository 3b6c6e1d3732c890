"""Tables that cut launches up by shape: those that ship with the package, and those that `tune` wrote for one GPU.

A GPU's own table is `tables/<name>.json` beside this file, or in the folder that PAGEFLEET_KERNEL_TABLES names. Missing
entries come from the defaults: Hopper's, or those for GPUs with less shared memory. Nothing is tuned when an engine starts.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

import torch

VARIABLE = "PAGEFLEET_KERNEL_TABLES"
SHIPPED = Path(__file__).with_name("tables")


@dataclass(frozen=True)
class Attention:
    """One program: `rows` (new tokens x heads of a group) against `tile` tokens of KV at a time."""

    rows: int
    tile: int
    warps: int
    stages: int
    resident: int  # programs that fit a multiprocessor at once


@dataclass(frozen=True)
class Gemm:
    """One program: `rows` x `columns` of the product, `depth` of the inner dimension at a time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    resident: int


# By the padded head size. Those of 64, 128 and 256 and FP8's products are the fastest, or nearly so, of sweeps on an H200
# (Llama-3-8B's layers); the others follow from them. A pipeline of two stages leaves room for four programs.
_DECODE = {
    16: Attention(16, 128, 4, 2, 4),
    32: Attention(16, 128, 4, 2, 4),
    64: Attention(16, 128, 4, 2, 4),
    128: Attention(16, 64, 4, 2, 4),
    256: Attention(16, 64, 8, 2, 2),
}
# Prefill: 64 rows are what one warpgroup's wgmma takes, 256 keep two of them busy on the same keys. Of the pipeline's
# stages the first ones look pages up: only from 5 on do the tiles of K and V have two buffers.
_SHORT = {
    16: Attention(64, 64, 4, 5, 4),
    32: Attention(64, 64, 4, 5, 4),
    64: Attention(64, 64, 4, 5, 4),
    128: Attention(64, 64, 4, 5, 4),
    256: Attention(64, 32, 4, 5, 1),
}
_LONG = {
    16: Attention(128, 64, 4, 5, 2),
    32: Attention(128, 64, 4, 5, 2),
    64: Attention(128, 64, 8, 5, 2),
    128: Attention(256, 64, 8, 5, 1),
    256: Attention(128, 64, 8, 2, 1),
}
# By rows of x, at most. Weights stream once while all rows fit one program. AWQ's take 128 columns at least (an eighth of them
# is a matrix product's least width); they follow from the compiled code: registers, and the fewest instructions a weight.
_WEIGHT_ONLY = {16: Gemm(16, 256, 64, 4, 4, 3), 32: Gemm(32, 128, 64, 4, 3, 2), 64: Gemm(64, 128, 128, 4, 3, 2)}
_FP8 = {
    16: Gemm(16, 64, 128, 8, 4, 2),
    32: Gemm(32, 64, 128, 8, 4, 2),
    64: Gemm(64, 128, 128, 4, 4, 1),
    128: Gemm(128, 256, 128, 8, 4, 1),
}


@dataclass(frozen=True)
class Tables:
    """Attention by the padded head size: decode, up to 64 rows, more; products by rows of x, at most."""

    decode: Mapping[int, Attention] = field(default_factory=lambda: _DECODE)
    short: Mapping[int, Attention] = field(default_factory=lambda: _SHORT)
    long: Mapping[int, Attention] = field(default_factory=lambda: _LONG)
    weight_only: Mapping[int, Gemm] = field(default_factory=lambda: _WEIGHT_ONLY)
    fp8: Mapping[int, Gemm] = field(default_factory=lambda: _FP8)


DEFAULT = Tables()
# Every other GPU of today gives a program 99 KiB at least, in place of 227 (CUDA's programming guide, technical specifications by
# compute capability), and its matrix unit takes q from registers. These entries fit; nobody has measured them.
LARGE_MEMORY = (9, 10)  # major compute capabilities
SMALL = Tables(
    decode={dim: replace(entry, resident=1 if dim == 256 else 2) for dim, entry in _DECODE.items()},
    short={**{dim: replace(entry, resident=1) for dim, entry in _SHORT.items()}, 256: Attention(64, 32, 8, 2, 1)},
    long={**_LONG, 128: Attention(128, 32, 8, 5, 1), 256: Attention(64, 32, 8, 2, 1)},
    fp8={**_FP8, 128: Gemm(128, 128, 64, 8, 4, 1)},
)


def defaults(capability: tuple[int, int]) -> Tables:
    """Return the tables of a GPU of a compute capability that has none of its own."""
    return DEFAULT if capability[0] in LARGE_MEMORY else SMALL


def dumped(tables: Tables) -> str:
    """JSON that `loaded` reads."""
    document = {
        part.name: {str(key): asdict(entry) for key, entry in getattr(tables, part.name).items()}
        for part in fields(tables)
    }
    return json.dumps(document, indent=2) + "\n"


def loaded(text: str, over: Tables = DEFAULT) -> Tables:
    """Read a GPU's table over the defaults. Raises ValueError for text that is no table."""
    try:
        document = json.loads(text)
        parts = {}
        for part in fields(Tables):
            given = getattr(over, part.name)
            kind = type(next(iter(given.values())))
            own = {int(key): kind(**entry) for key, entry in document.get(part.name, {}).items()}
            parts[part.name] = {**given, **own}
        unknown = set(document) - set(parts)
    except (TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"not a table of launches: {error}") from error
    if unknown:
        raise ValueError(f"not a table of launches: it holds {', '.join(sorted(unknown))}")
    return Tables(**parts)


def file_name(gpu: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + ".json"


def tables(device: torch.device | None) -> Tables:
    """Return the tables of a GPU; the defaults for the CPU, where the interpreter runs a GPU's launches."""
    if device is None or device.type != "cuda":
        return DEFAULT
    gpu, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    return _of(gpu, os.environ.get(VARIABLE, ""), capability)


@functools.cache
def _of(gpu: str, folder: str, capability: tuple[int, int]) -> Tables:
    over = defaults(capability)
    for place in ([Path(folder)] if folder else []) + [SHIPPED]:
        path = place / file_name(gpu)
        if path.is_file():
            return loaded(path.read_text(), over)
    return over
