"""Reads and checks config.json's `quantization_config`: how a checkpoint's weights are stored. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError


class Method(StrEnum):
    """How a linear layer is stored. The first ones are also `quant_method`s; compressed-tensors and modelopt have several."""

    AWQ = "awq"
    GPTQ = "gptq"
    FP8 = "fp8"
    MXFP4 = "mxfp4"
    PACKED = "pack-quantized"
    INT8 = "int8"
    NVFP4 = "nvfp4"


METHODS = ("awq", "gptq", "fp8", "mxfp4", "compressed-tensors", "modelopt")


@dataclass(frozen=True)
class Stored:
    """AWQ, GPTQ, PACKED: integers of `bits`; `group_size` input columns share a scale and a zero point, 0: all do.
    zero_offset: is added to GPTQ's zero points. FP8: a scale covers a `block` of (output rows, input columns); None: a whole
    tensor or a row each, which the scale's shape shows.
    """

    method: Method
    group_size: int = 0
    block: tuple[int, int] | None = None
    bits: int = 4
    zero_offset: int = 0


# Settings that change the arithmetic, with the values that this implementation computes; the first is the usual one.
AWQ: dict[str, tuple[Any, ...]] = {"bits": (4,), "version": ("gemm", "GEMM"), "zero_point": (True,)}
GPTQ: dict[str, tuple[Any, ...]] = {"bits": (4, 8), "checkpoint_format": ("gptq", "gptq_v2", None)}
FP8: dict[str, tuple[Any, ...]] = {"activation_scheme": ("dynamic", None), "fmt": ("e4m3", None)}
FORMATS = (
    "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized",
)  # fmt: skip


def parse(document: Mapping[str, Any] | None) -> Stored | None:
    """Read the entry; None for weights that are not quantised. Raises ModelError for unsupported settings."""
    if document is None:
        return None
    match method := document.get("quant_method"):
        case "awq":
            _check(document, AWQ, {"bits": document.get("w_bit"), "version": "gemm", "zero_point": True})
            size = document.get("group_size", document.get("q_group_size", 128))
            return Stored(Method.AWQ, group_size=_group(size))
        case "gptq":
            form = document.get("checkpoint_format") or document.get("format")  # the entry's newer name
            _check({**document, "checkpoint_format": form}, GPTQ, {})
            offset = 0 if form == "gptq_v2" else 1
            return Stored(
                Method.GPTQ, _group(document.get("group_size", 128)), bits=int(document["bits"]), zero_offset=offset
            )
        case "fp8":
            _check(document, FP8, {})
            return Stored(Method.FP8, block=_block(document.get("weight_block_size"), "weight_block_size"))
        case "mxfp4":
            return Stored(Method.MXFP4)
        case "compressed-tensors":
            return _compressed(document)
        case "modelopt":
            return _modelopt(document)
        case _:
            raise _refused("quant_method", method, ", ".join(METHODS))


def _compressed(document: Mapping[str, Any]) -> Stored:
    """compressed-tensors: every group of layers must be stored alike. Activations are rounded as the runner does it."""
    groups: Mapping[str, Mapping[str, Any]] = document.get("config_groups") or {}
    if document.get("sparsity_config") and document["sparsity_config"].get("format") not in (None, "dense"):
        raise _refused("sparsity_config.format", document["sparsity_config"]["format"], "dense")
    for group in ((document.get("transform_config") or {}).get("config_groups") or {}).values():
        for entry in group.get("apply") or ():
            if not str(entry.get("location")).startswith("weight_"):  # a rotation that is not part of the weights
                raise _refused("transform_config.location", entry.get("location"), "weight_input, weight_output")
    found = {_scheme(group, str(group.get("format") or document.get("format"))) for group in groups.values()}
    if len(found) != 1:
        raise ModelError(
            SOURCE, f"config.json: quantization_config has {len(found)} schemes of weights; supported: one"
        )
    return found.pop()


def _scheme(group: Mapping[str, Any], form: str) -> Stored:
    weights = group.get("weights") or {}
    bits, kind, strategy = int(weights.get("num_bits", 8)), weights.get("type", "int"), weights.get("strategy")
    if form not in FORMATS:
        raise _refused("format", form, ", ".join(FORMATS))
    if strategy not in ("tensor", "channel", "group", "block", "tensor_group"):
        raise _refused("strategy", strategy, "tensor, channel, group, block, tensor_group")
    if form == "nvfp4-pack-quantized":
        return Stored(Method.NVFP4)
    if kind == "float" and bits == 8:
        return Stored(Method.FP8, block=_block(weights.get("block_structure"), "block_structure"))
    if kind == "int" and form == "pack-quantized" and bits in (4, 8):
        return Stored(Method.PACKED, _group(weights.get("group_size") or -1), bits=bits)
    if kind == "int" and bits == 8:
        return Stored(Method.INT8, _group(weights.get("group_size") or -1), bits=8)
    raise ModelError(
        SOURCE, f"config.json: quantization_config: {kind} of {bits} bits as {form} are not supported; supported: int of 4 or 8, "
        "float of 8",
    )  # fmt: skip


def _modelopt(document: Mapping[str, Any]) -> Stored:
    match algorithm := document.get("quant_algo") or (document.get("quantization") or {}).get("quant_algo"):
        case "FP8":
            return Stored(Method.FP8)
        case "NVFP4":
            return Stored(Method.NVFP4)
        case _:
            raise _refused("quant_algo", algorithm, "FP8, NVFP4")


def _group(value: Any) -> int:
    size = int(value)
    if size < -1 or size == 0:
        raise _refused("group_size", size, "-1, 32, 64, 128, ...")
    return max(size, 0)


def _block(value: Any, name: str) -> tuple[int, int] | None:
    if value is None:
        return None
    rows, columns = (int(size) for size in value)
    if rows < 1 or columns < 1:
        raise _refused(name, value, "[128, 128]")
    return rows, columns


def _check(document: Mapping[str, Any], computed: Mapping[str, tuple[Any, ...]], absent: Mapping[str, Any]) -> None:
    for name, allowed in computed.items():
        value = document.get(name, absent.get(name))
        if value not in allowed:
            raise _refused(name, value, str(allowed[0]))


def _refused(name: str, value: Any, allowed: str) -> ModelError:
    return ModelError(
        SOURCE, f"config.json: quantization_config.{name} {value!r} is not supported; supported: {allowed}"
    )
