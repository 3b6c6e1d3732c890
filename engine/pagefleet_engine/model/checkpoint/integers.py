"""Weights stored as integers with a scale and a zero point for each row and group of columns: AWQ, GPTQ, compressed-tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagefleet_kernels.cpu import Coded

# Column c of each eight lies in the nibble AWQ_NIBBLES[c] of their int32 word.
# https://github.com/casper-hansen/AutoAWQ/blob/main/awq/utils/packing_utils.py
AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
CODED_GROUPS = (32, 16)  # columns that share a scale in the CPU's kernels


@dataclass(frozen=True)
class Awq:
    """One linear layer as stored. qweight [in, out / 8] int32, qzeros [groups, out / 8] int32, scales [groups, out];
    each of the groups covers in / groups consecutive input columns.
    """

    qweight: torch.Tensor
    qzeros: torch.Tensor
    scales: torch.Tensor

    def integers(self) -> Integers:
        """Raises ValueError when the shapes do not fit each other."""
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
        codes, zeros = awq_nibbles(self.qweight), awq_nibbles(self.qzeros).int()
        return Integers(codes.t().contiguous(), zeros.t().contiguous(), self.scales.t().contiguous(), 4)

    def dequantise(self) -> torch.Tensor:
        """[out, in] float32. Raises ValueError when the shapes do not fit each other."""
        return self.integers().dequantise()


@dataclass(frozen=True)
class Integers:
    """codes [out, in] uint8 of `bits`, zeros [out, groups] int32, scales [out, groups], all not negative: a weight is
    (code - zero) * scale.

    owners [in]: the group of each column where groups are not of consecutive columns.
    """

    codes: torch.Tensor
    zeros: torch.Tensor
    scales: torch.Tensor
    bits: int
    owners: torch.Tensor | None = None

    def dequantise(self) -> torch.Tensor:
        """[out, in] float32."""
        if self.owners is not None:
            return (self.codes - self.zeros[:, self.owners]).float() * self.scales.float()[:, self.owners]
        grouped = self.codes.view(*self.scales.shape, -1)
        return ((grouped - self.zeros.unsqueeze(2)).float() * self.scales.float().unsqueeze(2)).view(self.codes.shape)

    def coded(self) -> Coded | None:
        """The layer as the CPU keeps it, None where that would not be exactly the same floats or has no kernel."""
        group = self.codes.shape[1] // self.scales.shape[1]
        finest = next((size for size in CODED_GROUPS if group % size == 0), None)
        if self.owners is not None or finest is None or not _short(self.scales):
            return None
        scales = self.scales.float()
        offsets = -self.zeros.float() * scales

        def repeated(values: torch.Tensor) -> torch.Tensor:
            return values.repeat_interleave(group // finest, dim=1).contiguous()

        return Coded(self.codes, repeated(scales), repeated(offsets), self.bits)

    def awq(self) -> Awq | None:
        """The layer as AWQ stores it, None where AWQ cannot."""
        if self.owners is not None or self.bits != 4 or self.codes.shape[0] % 8 or int(self.zeros.max()) > 15:
            return None  # GPTQ's first version adds 1 to its zero points, so that they reach 16
        return Awq(awq_words(self.codes.t()), awq_words(self.zeros.t()), self.scales.t().contiguous())


def _short(scales: torch.Tensor) -> bool:
    """Whether a scale has so few digits that its product with a code is exact. Nothing is known of scales without data."""
    if scales.dtype in (torch.float16, torch.bfloat16):
        return True
    return not scales.is_meta and any(
        torch.equal(scales.to(dtype).float(), scales.float()) for dtype in (torch.float16, torch.bfloat16)
    )


def awq_nibbles(words: torch.Tensor) -> torch.Tensor:
    """[rows, n] int32 words -> [rows, 8 n] uint8 values 0 to 15, in the order of the columns."""
    return unpacked(words, 4).view(words.shape[0], -1, 8)[:, :, list(AWQ_NIBBLES)].flatten(1)


def awq_words(values: torch.Tensor) -> torch.Tensor:
    """[rows, 8 n] values 0 to 15 -> [rows, n] int32 words: the inverse of `awq_nibbles`."""
    shifts = torch.tensor(AWQ_NIBBLES, dtype=torch.int32) * 4
    return (values.reshape(values.shape[0], -1, 8).to(torch.int32) << shifts).sum(dim=2, dtype=torch.int32)


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """[rows, n] int32 words -> [rows, n * 32 / bits] uint8 values of 4 or 8 bits, the lowest bits first."""
    values = words.contiguous().view(torch.uint8)
    return values if bits == 8 else torch.stack((values & 15, values >> 4), dim=2).flatten(1)
