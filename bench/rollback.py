"""Rolling back, measured on the parts that are shipped: how soon, and whether anybody notices.

    python bench/rollback.py [PART ...] [--quick] [--check] [--json bench/results/rollback.json]

Parts: alert (with 500 InferenceServices: from an alert's POST to the last request that its canary got, over 200 rollbacks
with open streams), capacity (aborts when the good revision is at zero replicas), onset (from a regression's onset to the
rollback, in virtual time). alert and capacity need root: a real etcd, kube-apiserver, controller-manager and scheduler, the
operator and the gateway as they are shipped, stub engines. About twenty minutes, four with `--quick`. `--check` exits 1 when
a target is missed. All of it shares the machine, and the program says how busy that was with other things.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.rollbackbench import alerts, capacity, onset

BUSY = 0.10  # cores that others may use before the measurement


def alert(quick: bool) -> Mapping[str, Any]:
    return asyncio.run(alerts.measure(alerts.Size(40, 20, 2, 10) if quick else alerts.Size(500, 100, 5, 200)))


def aborts(quick: bool) -> Mapping[str, Any]:
    return asyncio.run(capacity.measure(3 if quick else 20))


def regression(quick: bool) -> Mapping[str, Any]:
    return onset.measure(10 if quick else 100)


PARTS: dict[str, Callable[[bool], Mapping[str, Any]]] = {"alert": alert, "capacity": aborts, "onset": regression}
NEEDS_ROOT = ("alert", "capacity")


def verdicts(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, float, str, float]]:
    """What was measured, and the targets: (name, value, "<=" or ">=", limit)."""
    rows: list[tuple[str, float, str, float]] = []
    if "ms" in (ours := found.get("alert", {})):
        rows.append(
            (f"alert to last canary request p99, ms, {ours['services']} services", ours["ms"]["p99"], "<=", 1000.0)
        )
        rows.append((f"streams truncated over {ours['rollbacks']} rollbacks", ours["truncated"], "<=", 0))
        rows.append(("requests failed meanwhile", ours["failed"], "<=", 0))
    if "overMs" in (ours := found.get("capacity", {})):
        rows.append((f"5xx over {ours['aborts']} aborts with nothing ready", ours["failed"], "<=", 0))
        rows.append(("streams truncated meanwhile", ours["truncated"], "<=", 0))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="Rolling back, measured.")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all when none is named")
    parser.add_argument("--quick", action="store_true", help="small sizes, about four minutes")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    busy = psutil.cpu_percent(2.0) / 100 * (os.cpu_count() or 1)
    print(f"{os.cpu_count()} cores, {platform.machine()}; others use {busy:.2f} cores")
    if busy > BUSY:
        print("NOT A QUIET MACHINE: the times of alert are longer than they need be")
    found: dict[str, Mapping[str, Any]] = {}
    for part in arguments.parts or list(PARTS):
        began = time.monotonic()
        if part in NEEDS_ROOT and os.geteuid() != 0:
            found[part] = {"skipped": "the control plane needs root"}
        else:
            found[part] = PARTS[part](arguments.quick)
        print(f"\n{part}")
        for name, value in found[part].items():
            print(f"  {name:<14} {value}")
        print(f"  ({time.monotonic() - began:.0f} s)", flush=True)
    missed = False
    print()
    for name, value, relation, limit in verdicts(found):
        met = value <= limit if relation == "<=" else value >= limit
        missed |= not met
        print(f"{'met   ' if met else 'MISSED'}  {name}: {value:g} ({relation} {limit:g})")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        document = {"cores": os.cpu_count(), "othersUsed": round(busy, 2), "quick": arguments.quick, **found}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return int(arguments.check and missed)


if __name__ == "__main__":
    raise SystemExit(main())
