"""Reads ggml's blocks as codes with scales and offsets, or as float32: bit for bit gguf.quants, several times as fast.

Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
Types without a layout here go through gguf.quants, which is imported for them only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy
import torch

from pagefleet_engine.model.checkpoint.gguf_file import Stored
from pagefleet_kernels.cpu import Coded

PIECE = 1 << 18  # elements, which fit the second-level cache
NIBBLES = 0x0F0F0F0F0F0F0F0F  # the low ones of eight bytes


@dataclass(frozen=True)
class Layout:
    """The layout of a type's blocks: an element is scale * code + offset of its group."""

    elements: int
    bytes: int
    group: int
    bits: int
    codes: Callable[[torch.Tensor, torch.Tensor], None]  # blocks [n, bytes], and where the n * elements uint8 codes go
    ends: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # scales and offsets, n * elements / group


def dequantise(stored: Stored) -> torch.Tensor:
    """Return float32 of the stored shape. Raises NotImplementedError for an unknown type."""
    result = torch.empty(stored.shape)
    flat, source = result.view(-1), torch.from_numpy(stored.data).view(-1)
    plain = PLAIN.get(stored.type)
    if plain is not None:
        flat.copy_(source.view(plain))
    elif stored.type in LAYOUTS:
        layout = LAYOUTS[stored.type]
        for blocks, piece in _pieces(source, layout, flat):
            codes, grouped = torch.empty(piece.shape, dtype=torch.uint8), piece.view(-1, layout.group)
            layout.codes(blocks, codes)
            scales, offsets = layout.ends(blocks)
            torch.mul(codes.view(grouped.shape), scales.reshape(-1, 1), out=grouped).add_(offsets.reshape(-1, 1))
    else:
        flat.copy_(_by_gguf(stored))
    return result


def element_bytes(kind: str) -> float:
    """Return the bytes of an element of a matrix in memory: in its stored form where possible, else as float32."""
    if kind in LAYOUTS:
        return LAYOUTS[kind].bits / 8 + 8 / LAYOUTS[kind].group
    return 2 if kind in HALVES else 4


def halves(stored: Stored) -> torch.Tensor:
    """A tensor of F16 or BF16 as it is."""
    return torch.from_numpy(stored.data).view(-1).view(PLAIN[stored.type]).view(stored.shape)


def coded(stored: Stored, most_bits: int = 8) -> Coded | None:
    """Return a matrix as its codes, without a loss; None when it is no matrix, or its type has no codes of so few bits."""
    if stored.type not in LAYOUTS or len(stored.shape) != 2 or LAYOUTS[stored.type].bits > most_bits:
        return None
    layout, source = LAYOUTS[stored.type], torch.from_numpy(stored.data).view(-1)
    codes = torch.empty(stored.shape, dtype=torch.uint8)
    for blocks, piece in _pieces(source, layout, codes.view(-1)):
        layout.codes(blocks, piece)
    scales, offsets = layout.ends(source.view(-1, layout.bytes))
    rows = stored.shape[0]
    return Coded(codes, scales.reshape(rows, -1), offsets.reshape(rows, -1), layout.bits)


def _pieces(source: torch.Tensor, layout: Layout, out: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Blocks, and their elements of `out`."""
    blocks, many = source.view(-1, layout.bytes), PIECE // layout.elements
    return zip(torch.split(blocks, many), torch.split(out, many * layout.elements), strict=True)


def _by_gguf(stored: Stored) -> torch.Tensor:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    values: numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float32]]
    values = dequantize(stored.data, GGMLQuantizationType[stored.type])
    return torch.from_numpy(values).view(-1)


def _half(blocks: torch.Tensor, first: int) -> torch.Tensor:
    """The float16 at byte `first` of each block, [blocks, 1] float32."""
    return blocks[:, first : first + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor, out: torch.Tensor) -> None:
    """packed [..., n] bytes: low nibbles to out[..., 0, n], high ones to out[..., 1, n]. n is a multiple of eight."""
    eight, (low, high) = packed.contiguous().view(torch.int64), out.view(torch.int64).unbind(-2)
    torch.bitwise_and(eight, NIBBLES, out=low)
    torch.bitwise_and(eight >> 4, NIBBLES, out=high)


def _codes_q4(first: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    return lambda blocks, out: _nibbles(blocks[:, first:], out.view(-1, 2, 16))


def _codes_q5(first: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Q5_0's and Q5_1's: 32 fifth bits from byte `first` on, then nibbles."""

    def codes(blocks: torch.Tensor, out: torch.Tensor) -> None:
        low = torch.empty(blocks.shape[0], 2, 16, dtype=torch.uint8)
        _nibbles(blocks[:, first + 4 :], low)
        bits = torch.arange(8, dtype=torch.uint8)
        high = (blocks[:, first : first + 4].unsqueeze(2) >> bits) & 1
        out.view(-1, 32).copy_(low.view(-1, 32) | (high << 4).view(-1, 32))

    return codes


def _codes_q8_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    out.view(-1, 32).copy_(blocks[:, 2:] ^ 128)


def _codes_q4_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    _nibbles(blocks[:, 16:].reshape(-1, 4, 32), out.view(-1, 4, 2, 32))


def _codes_q5_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    low = torch.empty(blocks.shape[0], 4, 2, 32, dtype=torch.uint8)
    _nibbles(blocks[:, 48:].reshape(-1, 4, 32), low)
    bits = torch.arange(8, dtype=torch.uint8).view(1, 8, 1)
    high = (blocks[:, 16:48].unsqueeze(1) >> bits) & 1
    out.view(-1, 8, 32).copy_(low.view(-1, 8, 32) | (high << 4))


def _codes_q6_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    low = torch.empty(blocks.shape[0], 2, 2, 64, dtype=torch.uint8)
    _nibbles(blocks[:, :128].reshape(-1, 2, 64), low)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8).view(1, 1, 4, 1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    out.view(-1, 8, 32).copy_(low.view(-1, 8, 32) | (high << 4).view(-1, 8, 32))


def _centred(middle: int) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Codes less `middle`, times the block's scale."""

    def ends(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scales = _half(blocks, 0)
        return scales, scales * -middle

    return ends


def _ends_from_minimum(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _half(blocks, 0), _half(blocks, 2)


def _ends_k(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Q4_K's and Q5_K's eight 6-bit scales and minima from 12 bytes."""
    first, second, mixed = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((first & 63, (mixed & 15) | ((first >> 2) & 48)), dim=1)
    minima = torch.cat((second & 63, (mixed >> 4) | ((second >> 2) & 48)), dim=1)
    return _half(blocks, 0) * scales.float(), _half(blocks, 2) * -minima.float()


def _ends_q6_k(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scales = blocks[:, 192:208].view(torch.int8).float() * _half(blocks, 208)
    return scales, scales * -32


PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
HALVES = ("F16", "BF16")
LAYOUTS: dict[str, Layout] = {
    "Q4_0": Layout(32, 18, 32, 4, _codes_q4(2), _centred(8)),
    "Q4_1": Layout(32, 20, 32, 4, _codes_q4(4), _ends_from_minimum),
    "Q5_0": Layout(32, 22, 32, 8, _codes_q5(2), _centred(16)),
    "Q5_1": Layout(32, 24, 32, 8, _codes_q5(4), _ends_from_minimum),
    "Q8_0": Layout(32, 34, 32, 8, _codes_q8_0, _centred(128)),
    "Q4_K": Layout(256, 144, 32, 4, _codes_q4_k, _ends_k),
    "Q5_K": Layout(256, 176, 32, 8, _codes_q5_k, _ends_k),
    "Q6_K": Layout(256, 210, 16, 8, _codes_q6_k, _ends_q6_k),
}
