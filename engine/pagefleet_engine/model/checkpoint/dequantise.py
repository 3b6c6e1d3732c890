"""Finds the quantised layers of a checkpoint, and turns their weights back to floats. The quantised kernels must agree with
this. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pagefleet_engine.model.checkpoint import fp4
from pagefleet_engine.model.checkpoint.fp4 import Fp4
from pagefleet_engine.model.checkpoint.integers import Awq, Integers, unpacked
from pagefleet_engine.model.checkpoint.quantization import Method, Stored
from pagefleet_kernels.cpu import Coded

# For each method the names of a layer's tensors after the one that shows it, which is the first; those after the bar may lack.
PARTS: dict[Method, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Method.AWQ: (("qweight", "qzeros", "scales"), ()),
    Method.GPTQ: (("qweight", "qzeros", "scales"), ("g_idx",)),
    Method.PACKED: (("weight_packed", "weight_scale"), ("weight_zero_point", "weight_g_idx")),
    Method.INT8: (("weight_scale", "weight"), ("weight_zero_point",)),
    Method.NVFP4: (("weight_scale",), ("weight_packed", "weight", "weight_global_scale", "weight_scale_2")),
}
# FP8's names of the scale beside the weight.
FP8_SCALES = ("weight_scale_inv", "weight_scale")
# What some formats have beside the weights, which no kernel here reads.
UNUSED = (
    ".weight_shape", ".input_scale", ".input_zero_point", ".input_global_scale", ".k_scale", ".v_scale",
)  # fmt: skip


@dataclass(frozen=True)
class Fp8:
    """One linear layer as stored. weight [out, in] float8; scale: one value, [out, 1] or [out], or a value for each
    `block` (rows, columns), the last ones cut off at the edge.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    block: tuple[int, int] | None = None

    def dequantise(self) -> torch.Tensor:
        """[out, in] float32. Raises ValueError when the scale does not fit the weight."""
        rows, columns = self.weight.shape
        scale, shape = self.scale.float(), tuple(self.scale.shape)
        if self.block is not None:
            high, wide = self.block
            if shape != (-(-rows // high), -(-columns // wide)):
                raise ValueError(f"FP8 scales {shape} do not fit {rows} x {columns} in blocks of {high} x {wide}")
            scale = scale.repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)[:, :columns]
        elif scale.numel() == 1:
            scale = scale.view(1, 1)
        elif shape in ((rows, 1), (rows,)):
            scale = scale.view(rows, 1)
        else:
            raise ValueError(f"FP8 scales {shape} do not fit {rows} x {columns}: one value or one for each row")
        return self.weight.float().mul_(scale)


Packed = Awq | Integers | Fp4 | Fp8


def coded(layer: Packed, most_bits: int = 8) -> Coded | None:
    """A layer as the CPU keeps it, None for one that becomes floats, as codes of more bits do."""
    integers = layer.integers() if isinstance(layer, Awq) else layer
    return integers.coded() if isinstance(integers, Integers) and integers.bits <= most_bits else None


def coded_bytes(layer: Packed) -> float:
    """Return the bytes of an element of a layer as the CPU keeps it; the layer's tensors need no data (device "meta")."""
    kept = coded(layer)
    return 4 if kept is None else kept.bits / 8 + 8 / kept.group


def parts(stored: Stored, names: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """Find the quantised tensors of a checkpoint: the name of the float tensor ("model.layers.0.mlp.up_proj.weight") to the
    names of the stored ones. A layer that the checkpoint left in floats is not among them.
    """
    if stored.method is Method.MXFP4:
        found = [name.removesuffix("_blocks") for name in names if name.endswith("_blocks")]
        return {name: (f"{name}_blocks", f"{name}_scales") for name in found}
    if stored.method is Method.FP8:
        return {
            f"{prefix}.weight": (f"{prefix}.weight", name)
            for scale in FP8_SCALES
            for name in names
            if name.endswith(f".{scale}") and (prefix := name.removesuffix(f".{scale}"))
        }
    needed, optional = PARTS[stored.method]
    prefixes = [name.removesuffix(f".{needed[0]}") for name in names if name.endswith(f".{needed[0]}")]
    return {
        f"{prefix}.weight": (
            *(f"{prefix}.{part}" for part in needed),
            *(name for part in optional if (name := f"{prefix}.{part}") in names),
        )
        for prefix in prefixes
    }


def packed(stored: Stored, tensors: Mapping[str, torch.Tensor]) -> Packed:
    """One layer from its tensors by the last part of their names. Raises ValueError for tensors that are not of the method."""
    match stored.method:
        case Method.AWQ:
            return _awq(stored, tensors)
        case Method.GPTQ:
            return _gptq(stored, tensors)
        case Method.PACKED:
            return _pack_quantized(stored, tensors)
        case Method.INT8:
            zeros, scales = tensors.get("weight_zero_point"), tensors["weight_scale"]
            weight, scales = _matrix(tensors["weight"], torch.int8), _by_row(scales, tensors["weight"].shape[0])
            shifted = torch.zeros_like(scales) if zeros is None else zeros.float().view(scales.shape)
            return Integers(weight.view(torch.uint8) ^ 128, (shifted + 128).int(), scales, 8)
        case Method.MXFP4:
            blocks, powers = (
                next(one for name, one in tensors.items() if name.endswith(end)) for end in ("_blocks", "_scales")
            )
            return fp4.mxfp4(blocks, powers)
        case Method.NVFP4:
            pairs = tensors["weight_packed"] if "weight_packed" in tensors else tensors["weight"]
            if "weight_global_scale" in tensors:
                factor = 1 / tensors["weight_global_scale"].float()
            else:
                factor = tensors["weight_scale_2"]
            return fp4.nvfp4(_matrix(pairs, torch.uint8), tensors["weight_scale"], factor)
        case Method.FP8:
            scale = next(tensors[name] for name in FP8_SCALES if name in tensors)
            weight = tensors["weight"]
            if weight.dtype != torch.float8_e4m3fn or weight.dim() != 2:
                raise ValueError(f"FP8 wants a float8_e4m3fn matrix, not {weight.dtype} {tuple(weight.shape)}")
            return Fp8(weight, scale, stored.block)


def _awq(stored: Stored, tensors: Mapping[str, torch.Tensor]) -> Awq:
    qweight, qzeros, scales = (tensors[name] for name in PARTS[Method.AWQ][0])
    if qweight.dtype != torch.int32 or qzeros.dtype != torch.int32 or qweight.dim() != 2 or scales.dim() != 2:
        raise ValueError(f"AWQ wants int32 matrices, not {qweight.dtype} {tuple(qweight.shape)}")
    groups = qweight.shape[0] // stored.group_size if stored.group_size else 1
    if scales.shape[0] != groups:
        raise ValueError(f"AWQ scales {tuple(scales.shape)} are not those of {groups} groups")
    return Awq(qweight, qzeros, scales)


def _gptq(stored: Stored, tensors: Mapping[str, torch.Tensor]) -> Integers:
    """qweight [in * bits / 32, out], qzeros [groups, out * bits / 32], scales [groups, out], g_idx [in]."""
    qweight, qzeros = _matrix(tensors["qweight"], torch.int32), _matrix(tensors["qzeros"], torch.int32)
    codes = unpacked(qweight.t(), stored.bits).contiguous()
    zeros = (unpacked(qzeros, stored.bits).int() + stored.zero_offset).t().contiguous()
    scales = tensors["scales"].t().contiguous()
    return Integers(*_fitting(codes, zeros, scales), stored.bits, _owners(tensors.get("g_idx"), codes, scales))


def _pack_quantized(stored: Stored, tensors: Mapping[str, torch.Tensor]) -> Integers:
    """weight_packed [out, in * bits / 32], weight_scale [out, groups], weight_zero_point [out * bits / 32, groups]."""
    codes = unpacked(_matrix(tensors["weight_packed"], torch.int32), stored.bits)
    scales = _by_row(tensors["weight_scale"], codes.shape[0])
    zero_point = tensors.get("weight_zero_point")
    if zero_point is None:
        zeros = torch.full_like(scales, 2 ** (stored.bits - 1), dtype=torch.int32)
    else:
        zeros = unpacked(_matrix(zero_point, torch.int32).t(), stored.bits).int().t().contiguous()
    owners = _owners(tensors.get("weight_g_idx"), codes, scales)
    return Integers(*_fitting(codes, zeros, scales), stored.bits, owners)


def _owners(given: torch.Tensor | None, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor | None:
    """The group of each column where the groups are not of consecutive columns."""
    if given is None or int(given.min()) < 0:  # -1: not used
        return None
    columns, groups = codes.shape[1], scales.shape[1]
    if given.shape != (columns,) or int(given.max()) >= groups:
        raise ValueError(f"the groups {tuple(given.shape)} of {columns} columns do not fit {groups} scales")
    in_order = torch.arange(columns) // (columns // groups)
    return None if torch.equal(given.long(), in_order) else given.long()


def _fitting(
    codes: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if zeros.shape != scales.shape or codes.shape[0] != scales.shape[0] or codes.shape[1] % scales.shape[1]:
        raise ValueError(
            f"weights {tuple(codes.shape)}, zero points {tuple(zeros.shape)} and scales {tuple(scales.shape)} do not fit"
        )
    return codes, zeros, scales


def _by_row(scales: torch.Tensor, rows: int) -> torch.Tensor:
    """Scales [rows, groups] of one for all, of one for each row, or as they are."""
    if scales.numel() == 1:
        return scales.reshape(1, 1).expand(rows, 1).contiguous()
    return scales.view(rows, -1)


def _matrix(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.dtype != dtype or tensor.dim() != 2:
        raise ValueError(f"the format wants a matrix of {dtype}, not {tensor.dtype} {tuple(tensor.shape)}")
    return tensor
