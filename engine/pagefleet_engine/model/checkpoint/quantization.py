"""Reads and checks config.json's `quantization_config`: how a checkpoint's weights are stored. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError


class Method(StrEnum):
    AWQ = "awq"
    FP8 = "fp8"


@dataclass(frozen=True)
class Stored:
    """AWQ: `group_size` input columns share a scale and a zero point, 0: all do. FP8: a scale covers a `block` of
    (output rows, input columns); None: a whole tensor or a row each, which the scale's shape shows.
    """

    method: Method
    group_size: int = 0
    block: tuple[int, int] | None = None


# Settings that change the arithmetic, with the values that this implementation computes; the first is the usual one.
AWQ: dict[str, tuple[Any, ...]] = {"bits": (4,), "version": ("gemm", "GEMM"), "zero_point": (True,)}
FP8: dict[str, tuple[Any, ...]] = {"activation_scheme": ("dynamic", None), "fmt": ("e4m3", None)}


def parse(document: Mapping[str, Any] | None) -> Stored | None:
    """Read the entry; None for weights that are not quantised. Raises ModelError for unsupported settings."""
    if document is None:
        return None
    method = document.get("quant_method")
    match method:
        case Method.AWQ:
            _check(document, AWQ, {"bits": document.get("w_bit"), "version": "gemm", "zero_point": True})
            size = int(document.get("group_size", document.get("q_group_size", 128)))
            if size < -1 or size == 0:
                raise _refused("group_size", size, "-1, 32, 64, 128, ...")
            return Stored(Method.AWQ, group_size=max(size, 0))
        case Method.FP8:
            _check(document, FP8, {})
            block = document.get("weight_block_size")
            if block is None:
                return Stored(Method.FP8)
            rows, columns = (int(size) for size in block)
            if rows < 1 or columns < 1:
                raise _refused("weight_block_size", block, "[128, 128]")
            return Stored(Method.FP8, block=(rows, columns))
        case _:
            raise _refused("quant_method", method, ", ".join(Method))


def _check(document: Mapping[str, Any], computed: Mapping[str, tuple[Any, ...]], absent: Mapping[str, Any]) -> None:
    for name, allowed in computed.items():
        value = document.get(name, absent.get(name))
        if value not in allowed:
            raise _refused(name, value, str(allowed[0]))


def _refused(name: str, value: Any, allowed: str) -> ModelError:
    return ModelError(
        SOURCE, f"config.json: quantization_config.{name} {value!r} is not supported; supported: {allowed}"
    )
