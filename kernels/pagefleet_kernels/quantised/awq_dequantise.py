"""AWQ weights widened to a matrix, for products of many rows: each block of rows would unpack the words again.

Floor: the words are read and the matrix is written once, inner * columns * (1/2 + 2.5 / group + itemsize) bytes; cuBLAS
then reads it like any other. Tolerance: the reference rounded to the matrix' dtype.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import torch

from pagefleet_kernels.launch.language import jit, tl

ROWS, WORDS = 16, 32  # of one program


def awq_dequantise_triton(
    qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """[inner, columns] of dtype: the arguments are awq_gemm's."""
    inner, words = qweight.shape
    out = torch.empty(inner, words * 8, dtype=dtype, device=qweight.device)
    _kernel[(-(-inner // ROWS), -(-words // WORDS))](
        qweight, qzeros, scales, out, *qweight.stride(), *qzeros.stride(), *scales.stride(), out.stride(0), inner, words,
        GROUP=inner // scales.shape[0], ROWS=ROWS, WORDS=WORDS,
    )  # fmt: skip
    return out


@jit
def _kernel(
    qweight, qzeros, scales, out, w_row, w_column, z_row, z_column, s_row, s_column, out_row, inner, words,
    GROUP: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """One program per ROWS x WORDS words, all of one group: GROUP is a multiple of ROWS."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    nibble = tl.arange(0, 8)
    shifts = (nibble % 2 * 4 + nibble // 2) * 4  # where each of eight columns lies
    group = (tl.program_id(0) * ROWS // GROUP).to(tl.int64)
    inside = word < words
    column = word[:, None] * 8 + nibble[None, :]
    packed = tl.load(
        qweight + row.to(tl.int64)[:, None] * w_row + (word * w_column)[None, :],
        mask=(row < inner)[:, None] & inside[None, :], other=0,
    )  # fmt: skip
    zeros = (tl.load(qzeros + group * z_row + word * z_column, mask=inside, other=0)[:, None] >> shifts[None, :]) & 15
    scale = tl.load(scales + group * s_row + column * s_column, mask=inside[:, None], other=0.0).to(tl.float32)
    weight = ((packed[:, :, None] >> shifts[None, None, :]) & 15) - zeros[None, :, :]
    wide = weight.to(tl.float32) * scale[None, :, :]
    place = out + row.to(tl.int64)[:, None, None] * out_row + column[None, :, :]
    tl.store(place, wide.to(out.dtype.element_ty), mask=(row < inner)[:, None, None] & inside[None, :, None])
