"""The command line of a program that measures in parts: which parts, how busy the machine is with other things, what was
missed, and the figures as JSON. What is measured, and against what, is the program's own."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

BUSY = 0.10  # cores that others may use before the measurement
Figures = Mapping[str, Any]
Parts = Mapping[str, Callable[[bool], Figures]]  # each told whether it is to be quick
Verdict = tuple[str, float, str, float]  # what was measured, its value, "<=" or ">=", the limit


def options(parser: argparse.ArgumentParser, parts: Parts, quick: str) -> argparse.Namespace:
    """What was given, with flags that `parser` has already. `quick` explains --quick. Exits with 2 for a part that is
    not there."""
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(parts)}; all when none is named")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(parts):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(parts)}")
    return given


def measure(
    given: argparse.Namespace,
    parts: Parts,
    verdicts: Callable[[Mapping[str, Figures]], Sequence[Verdict]],
    show: Callable[[str, Figures], None],
    disturbed: str,
) -> int:
    """Runs and shows the parts, then their verdicts. `disturbed`: what a busy machine makes of the figures. Returns the
    exit status."""
    busy = psutil.cpu_percent(2.0) / 100 * (os.cpu_count() or 1)
    print(f"{os.cpu_count()} cores, {platform.machine()}; others use {busy:.2f} cores")
    if busy > BUSY:
        print(f"NOT A QUIET MACHINE: {disturbed}")
    found: dict[str, Figures] = {}
    for part in given.parts or list(parts):
        began = time.monotonic()
        found[part] = parts[part](given.quick)
        show(part, found[part])
        print(f"  ({time.monotonic() - began:.0f} s)", flush=True)
    missed = False
    print()
    for name, value, relation, limit in verdicts(found):
        met = value <= limit if relation == "<=" else value >= limit
        missed |= not met
        print(f"{'met   ' if met else 'MISSED'}  {name}: {value:g} ({relation} {limit:g})")
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        document = {"cores": os.cpu_count(), "othersUsed": round(busy, 2), "quick": given.quick, **found}
        given.json.write_text(json.dumps(document, indent=1) + "\n")
    return int(given.check and missed)
