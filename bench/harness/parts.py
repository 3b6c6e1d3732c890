"""The command line of a program that measures in parts: the choice of parts, the load of the machine, the missed targets,
and the figures as JSON. The parts and their targets belong to the program."""

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
Parts = Mapping[str, Callable[[bool], Figures]]  # the argument: whether to be quick
Verdict = tuple[str, float, str, float]  # name, value, "<=" or ">=", limit


def options(parser: argparse.ArgumentParser, parts: Parts, quick: str) -> argparse.Namespace:
    """Parse the command line, with the flags that `parser` has already. `quick` explains --quick. Exits with 2 for an unknown
    part."""
    parser.add_argument("parts", nargs="*", help=f"Some of {', '.join(parts)}; all when none is named.")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(parts):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(parts)}")
    return arguments


def measure(
    arguments: argparse.Namespace,
    parts: Parts,
    verdicts: Callable[[Mapping[str, Figures]], Sequence[Verdict]],
    show: Callable[[str, Figures], None],
    disturbed: str,
) -> int:
    """Run and show the parts, then their verdicts. `disturbed` warns about the figures of a busy machine. Returns the exit
    status."""
    busy = psutil.cpu_percent(2.0) / 100 * (os.cpu_count() or 1)
    print(f"{os.cpu_count()} cores, {platform.machine()}; others use {busy:.2f} cores")
    if busy > BUSY:
        print(f"NOT A QUIET MACHINE: {disturbed}")
    results: dict[str, Figures] = {}
    for part in arguments.parts or list(parts):
        began = time.monotonic()
        results[part] = parts[part](arguments.quick)
        show(part, results[part])
        print(f"  ({time.monotonic() - began:.0f} s)", flush=True)
    missed = False
    print()
    for name, value, relation, limit in verdicts(results):
        met = value <= limit if relation == "<=" else value >= limit
        missed |= not met
        print(f"{'met   ' if met else 'MISSED'}  {name}: {value:g} ({relation} {limit:g})")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        document = {"cores": os.cpu_count(), "othersUsed": round(busy, 2), "quick": arguments.quick, **results}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return int(arguments.check and missed)
