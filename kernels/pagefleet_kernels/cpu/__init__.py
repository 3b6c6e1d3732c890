"""The CPU's operations: compiled for AVX-512 with VNNI where the processor has it, else the same in torch.

`operations` chooses. Both compute the same numbers up to rounding; the compiled ones also give a row the same result,
bit by bit, whatever other rows its batch has.
"""

from __future__ import annotations

from pagefleet_kernels.cpu import native, reference
from pagefleet_kernels.cpu.layout import (
    ACTIVATIONS,
    FINE_GROUP,
    GROUP,
    Attention,
    Batch,
    Coded,
    Draw,
    Experts,
    KVPages,
    Linear,
    Norm,
    Operations,
)

__all__ = [
    "ACTIVATIONS", "FINE_GROUP", "GROUP", "Attention", "Batch", "Coded", "Draw", "Experts", "KVPages", "Linear", "Norm",
    "Operations", "operations",
]  # fmt: skip


def operations(threads: int, kind: str = "auto") -> Operations:
    """`kind`: native (raises OSError when it cannot be), reference, or auto. `threads` bind the native ones only."""
    match kind:
        case "reference":
            return reference.Reference()
        case "native":
            return native.Native(threads)
        case "auto":
            return native.Native(threads) if native.usable() else reference.Reference()
        case _:
            raise ValueError(f"CPU operations are native, reference or auto, not {kind!r}")
