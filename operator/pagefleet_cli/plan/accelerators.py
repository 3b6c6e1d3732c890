"""Accelerators by name: memory, bandwidth and arithmetic as their makers' public datasheets give them (decimal GB, GB/s and TFLOP/s).

A datasheet's peak is an upper bound. The total memory that a driver reports differs by a few per cent: give it with --memory. Arithmetic
is that of dense matrices in 16 bits, with sums in 32 bits where the datasheet tells the two apart; in FP8 it is twice as fast.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from pagefleet_cli.base.errors import CommandError

GB, TERA = 10**9, 10**12


@dataclass(frozen=True)
class Accelerator:
    """`memory` in bytes; `bandwidth` in bytes per second, `flops` in operations per second, None when not known. `fp8`: computes in FP8."""

    name: str
    memory: int
    bandwidth: float | None
    fp8: bool = False
    flops: float | None = None


def _known(name: str, memory: int, bandwidth: float, tflops: float, fp8: bool = False) -> Accelerator:
    return Accelerator(name, memory * GB, bandwidth * GB, fp8, tflops * TERA)


TABLE = (
    _known("A10", 24, 600, 125),
    _known("A100-40GB", 40, 1555, 312),
    _known("A100-80GB", 80, 2039, 312),  # SXM; the PCIe card has 1935
    _known("A100-80GB-PCIe", 80, 1935, 312),
    _known("B200", 180, 8000, 2250, True),
    _known("H100", 80, 3350, 989, True),  # SXM
    _known("H100-PCIe", 80, 2000, 756, True),
    _known("H100-NVL", 94, 3900, 835, True),
    _known("H200", 141, 4800, 989, True),
    _known("L4", 24, 300, 121, True),
    _known("L40S", 48, 864, 362, True),
    _known("MI250X", 128, 3277, 383),
    _known("MI300X", 192, 5300, 1307, True),
    _known("MI325X", 256, 6000, 1307, True),
    _known("RTX4090", 24, 1008, 165, True),
    _known("V100-32GB", 32, 900, 125),
)


def accelerator(name: str) -> Accelerator:
    """The accelerator of that name, whatever its case. Raises a CommandError that suggests similar names."""
    names = {entry.name.lower(): entry for entry in TABLE}
    known = names.get(name.lower())
    if known:
        return known
    near = [names[key].name for key in difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.4)]
    listed = near or [entry.name for entry in TABLE]
    raise CommandError(
        f"--accelerator: {name!r} is not known; {'near' if near else 'known'}: {', '.join(listed)} (or --memory)"
    )
