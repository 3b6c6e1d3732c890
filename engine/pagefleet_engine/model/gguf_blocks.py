"""Dequantises ggml's blocks to float32 with torch, bit for bit what gguf.quants computes and several times as fast.

Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
Types without a function here go through gguf.quants, which is imported for them only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy
import torch

from pagefleet_engine.model.gguf_file import Stored

# Elements. Fits the second-level cache, and torch splits no work as small as this: its thread pool stalls for as long
# as another process has one of the cores.
PIECE = 1 << 15


def dequantise(stored: Stored, out: torch.Tensor | None = None) -> torch.Tensor:
    """float32 of the stored shape; written to `out`, contiguous and of as many elements, when it is given.

    Raises NotImplementedError for a type that nothing here knows.
    """
    result = torch.empty(stored.shape) if out is None else out
    flat, source = result.view(-1), torch.from_numpy(stored.data).view(-1)
    plain = PLAIN.get(stored.type)
    if plain is not None:
        flat.copy_(source.view(plain))
    elif stored.type in BLOCKS:
        elements, size, function = BLOCKS[stored.type]
        blocks, many = source.view(-1, size), PIECE // elements
        for start in range(0, blocks.shape[0], many):
            piece = blocks[start : start + many]
            function(piece, flat[start * elements : (start + piece.shape[0]) * elements])
    else:
        flat.copy_(_by_gguf(stored))
    return result


def _by_gguf(stored: Stored) -> torch.Tensor:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    found: numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float32]]
    found = dequantize(stored.data, GGMLQuantizationType[stored.type])
    return torch.from_numpy(found).view(-1)


def _halves(blocks: torch.Tensor, first: int) -> torch.Tensor:
    """The float16 at byte `first` of each block, [blocks, 1] float32."""
    return blocks[:, first : first + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor, out: torch.Tensor) -> None:
    """packed [..., n] bytes: low nibbles to out[..., 0, n], high ones to out[..., 1, n]."""
    out[..., 0, :].copy_(packed & 15)
    out[..., 1, :].copy_(packed >> 4)


def _q4_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    _nibbles(blocks[:, 2:], out.view(-1, 2, 16))
    out.view(-1, 32).sub_(8).mul_(_halves(blocks, 0))


def _q4_1(blocks: torch.Tensor, out: torch.Tensor) -> None:
    _nibbles(blocks[:, 4:], out.view(-1, 2, 16))
    out.view(-1, 32).mul_(_halves(blocks, 0)).add_(_halves(blocks, 2))


def _q8_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    out.view(-1, 32).copy_(blocks[:, 2:].view(torch.int8)).mul_(_halves(blocks, 0))


def _scales_and_mins(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Q4_K's and Q5_K's eight 6-bit scales and minima from 12 bytes: [blocks, 8] each."""
    first, second, mixed = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((first & 63, (mixed & 15) | ((first >> 2) & 48)), dim=1)
    minima = torch.cat((second & 63, (mixed >> 4) | ((second >> 2) & 48)), dim=1)
    return scales.float(), minima.float()


def _q4_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    scales, minima = _scales_and_mins(blocks[:, 4:16])
    _nibbles(blocks[:, 16:].reshape(-1, 4, 32), out.view(-1, 4, 2, 32))
    out.view(-1, 8, 32).mul_((_halves(blocks, 0) * scales).unsqueeze(2)).sub_(
        (_halves(blocks, 2) * minima).unsqueeze(2)
    )


def _q5_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    scales, minima = _scales_and_mins(blocks[:, 4:16])
    low = torch.empty(blocks.shape[0], 4, 2, 32, dtype=torch.uint8)
    _nibbles(blocks[:, 48:].reshape(-1, 4, 32), low)
    bits = torch.arange(8, dtype=torch.uint8).view(1, 8, 1)
    high = (blocks[:, 16:48].unsqueeze(1) >> bits) & 1
    out.view(-1, 8, 32).copy_(low.view(-1, 8, 32) | (high << 4))
    out.view(-1, 8, 32).mul_((_halves(blocks, 0) * scales).unsqueeze(2)).sub_(
        (_halves(blocks, 2) * minima).unsqueeze(2)
    )


def _q6_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    low = torch.empty(blocks.shape[0], 2, 2, 64, dtype=torch.uint8)
    _nibbles(blocks[:, :128].reshape(-1, 2, 64), low)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8).view(1, 1, 4, 1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    out.view(-1, 8, 32).copy_(low.view(-1, 8, 32) | (high << 4).view(-1, 8, 32))
    scales = blocks[:, 192:208].view(torch.int8).float() * _halves(blocks, 208)
    out.view(-1, 16, 16).sub_(32).mul_(scales.unsqueeze(2))


PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
Function = Callable[[torch.Tensor, torch.Tensor], None]
# Elements and bytes of a block, and what writes a piece of blocks [n, bytes] to n * elements floats.
BLOCKS: dict[str, tuple[int, int, Function]] = {
    "Q4_0": (32, 18, _q4_0),
    "Q4_1": (32, 20, _q4_1),
    "Q8_0": (32, 34, _q8_0),
    "Q4_K": (256, 144, _q4_k),
    "Q5_K": (256, 176, _q5_k),
    "Q6_K": (256, 210, _q6_k),
}
