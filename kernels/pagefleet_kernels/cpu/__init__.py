"""The CPU's operations: compiled for AVX-512 with VNNI, AVX2 and ARM's NEON, else the same in torch.

`operations` chooses. All compute the same numbers up to rounding; the compiled ones also give a row the same result,
bit by bit, whatever other rows its batch has.
"""

from __future__ import annotations

from pagefleet_kernels.compile import KINDS
from pagefleet_kernels.cpu import library, native, reference
from pagefleet_kernels.cpu.layout import (
    ACTIVATIONS,
    FINE_GROUP,
    GROUP,
    KEPT_BITS,
    Attention,
    Batch,
    Coded,
    DenseLayer,
    Draw,
    Experts,
    KVPages,
    Linear,
    Norm,
    Operations,
    Weight,
)

__all__ = [
    "ACTIVATIONS", "FINE_GROUP", "GROUP", "KEPT_BITS", "Attention", "Batch", "Coded", "DenseLayer", "Draw", "Experts", "KVPages", "Linear", "Norm",
    "Operations", "Weight", "operations",
]  # fmt: skip


def operations(threads: int, kind: str = "auto") -> Operations:
    """`kind`: one of KINDS. `threads` bind the compiled ones only.

    Raises OSError when compiled ones are asked for and cannot be used.
    """
    if kind not in KINDS:
        raise ValueError(f"CPU operations are {', '.join(KINDS)}, not {kind!r}")
    if kind == "reference" or (kind == "auto" and not library.usable()):
        return reference.Reference()
    return native.Native(threads, "" if kind in ("auto", "native") else kind)
