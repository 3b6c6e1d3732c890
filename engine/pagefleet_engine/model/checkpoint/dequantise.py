"""Turns weights of AWQ and FP8 checkpoints back to floats. The quantised kernels must agree with this. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pagefleet_engine.model.checkpoint.quantization import Method, Stored

# Column c of each eight lies in the nibble AWQ_NIBBLES[c] of their int32 word.
# https://github.com/casper-hansen/AutoAWQ/blob/main/awq/utils/packing_utils.py
AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
# The tensors of a quantised linear layer `x` in place of `x.weight`, and FP8's names of the scale beside it.
AWQ_PARTS = ("qweight", "qzeros", "scales")
FP8_SCALES = ("weight_scale_inv", "weight_scale")


@dataclass(frozen=True)
class Awq:
    """One linear layer as stored. qweight [in, out / 8] int32, qzeros [groups, out / 8] int32, scales [groups, out];
    each of the groups covers in / groups consecutive input columns.
    """

    qweight: torch.Tensor
    qzeros: torch.Tensor
    scales: torch.Tensor

    def dequantise(self) -> torch.Tensor:
        """[out, in] float32. Raises ValueError when the shapes do not fit each other."""
        columns, groups = self.qweight.shape[0], self.scales.shape[0]
        if (
            self.qweight.shape[1] * 8 != self.scales.shape[1]
            or self.qzeros.shape != (groups, self.qweight.shape[1])
            or columns % groups
        ):
            raise ValueError(
                f"AWQ qweight {tuple(self.qweight.shape)}, qzeros {tuple(self.qzeros.shape)} and scales "
                f"{tuple(self.scales.shape)} do not fit each other"
            )
        levels = awq_nibbles(self.qweight).view(groups, columns // groups, -1)
        shifted = levels - awq_nibbles(self.qzeros).unsqueeze(1)
        return (shifted.float() * self.scales.float().unsqueeze(1)).view(columns, -1).t().contiguous()


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


Packed = Awq | Fp8


def awq_nibbles(words: torch.Tensor) -> torch.Tensor:
    """[rows, n] int32 words -> [rows, 8 n] int32 values 0 to 15, in the order of the columns."""
    shifts = torch.tensor(AWQ_NIBBLES, dtype=torch.int32) * 4
    return ((words.unsqueeze(2) >> shifts) & 15).view(words.shape[0], -1)


def parts(stored: Stored, names: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """Find the quantised layers among a checkpoint's tensors: prefix ("model.layers.0.mlp.up_proj") to its tensors.

    A layer that the checkpoint left in floats is not among them.
    """
    if stored.method is Method.AWQ:
        prefixes = [name.removesuffix(".qweight") for name in names if name.endswith(".qweight")]
        return {prefix: tuple(f"{prefix}.{part}" for part in AWQ_PARTS) for prefix in prefixes}
    return {
        name.removesuffix(f".{scale}"): (f"{name.removesuffix(f'.{scale}')}.weight", name)
        for scale in FP8_SCALES
        for name in names
        if name.endswith(f".{scale}")
    }


def packed(stored: Stored, tensors: tuple[torch.Tensor, ...]) -> Packed:
    """One layer from its tensors, in the order of `parts`. Raises ValueError for tensors that are not of the method."""
    if stored.method is Method.AWQ:
        qweight, qzeros, scales = tensors
        if qweight.dtype != torch.int32 or qzeros.dtype != torch.int32 or qweight.dim() != 2 or scales.dim() != 2:
            raise ValueError(f"AWQ wants int32 matrices, not {qweight.dtype} {tuple(qweight.shape)}")
        groups = qweight.shape[0] // stored.group_size if stored.group_size else 1
        if scales.shape[0] != groups:
            raise ValueError(f"AWQ scales {tuple(scales.shape)} are not those of {groups} groups")
        return Awq(qweight, qzeros, scales)
    weight, scale = tensors
    if weight.dtype != torch.float8_e4m3fn or weight.dim() != 2:
        raise ValueError(f"FP8 wants a float8_e4m3fn matrix, not {weight.dtype} {tuple(weight.shape)}")
    return Fp8(weight, scale, stored.block)
