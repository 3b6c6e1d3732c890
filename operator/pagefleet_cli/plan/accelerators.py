"""Accelerators by name: memory and bandwidth as their makers' public datasheets give them (decimal GB and GB/s).

A datasheet's peak is an upper bound. The total memory that a driver reports differs by a few per cent: give it with --memory.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from pagefleet_cli.base.errors import CommandError

GB = 10**9


@dataclass(frozen=True)
class Accelerator:
    """`memory` in bytes; `bandwidth` in bytes per second, None when it is not known. `fp8`: computes in FP8."""

    name: str
    memory: int
    bandwidth: float | None
    fp8: bool = False


def _known(name: str, memory: int, bandwidth: float, fp8: bool = False) -> Accelerator:
    return Accelerator(name, memory * GB, bandwidth * GB, fp8)


TABLE = (
    _known("A10", 24, 600),
    _known("A100-40GB", 40, 1555),
    _known("A100-80GB", 80, 2039),  # SXM; the PCIe card has 1935
    _known("A100-80GB-PCIe", 80, 1935),
    _known("B200", 180, 8000, True),
    _known("H100", 80, 3350, True),  # SXM
    _known("H100-PCIe", 80, 2000, True),
    _known("H100-NVL", 94, 3900, True),
    _known("H200", 141, 4800, True),
    _known("L4", 24, 300, True),
    _known("L40S", 48, 864, True),
    _known("MI250X", 128, 3277),
    _known("MI300X", 192, 5300, True),
    _known("MI325X", 256, 6000, True),
    _known("RTX4090", 24, 1008, True),
    _known("V100-32GB", 32, 900),
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
