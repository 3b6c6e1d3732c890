"""Rollbacks, measured on the parts that are shipped: how long one takes, and whether requests fail meanwhile.

    python bench/rollback.py [PART ...] [--quick] [--check] [--json bench/results/rollback.json]

Parts: alert (with 500 InferenceServices: from an alert's POST to the last request that its canary got, over 200 rollbacks
with open streams), capacity (aborts when the good revision is at zero replicas). Both need root: a real etcd,
kube-apiserver, controller-manager and scheduler, the operator and the gateway as they are shipped, stub engines. About
twenty minutes, four with `--quick`. `--check` exits 1 when a target is missed. All of it shares the machine, and the program
says how busy that was with other things. bench/rollout_guard.py measures the time from a regression's onset to its verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.harness.parts import Verdict, measure, options
from bench.rollbackbench import alerts, capacity

NO_ROOT: Mapping[str, Any] = {"skipped": "the control plane needs root"}


def alert(quick: bool) -> Mapping[str, Any]:
    if os.geteuid() != 0:
        return NO_ROOT
    return asyncio.run(alerts.measure(alerts.Size(40, 20, 2, 10) if quick else alerts.Size(500, 100, 5, 200)))


def aborts(quick: bool) -> Mapping[str, Any]:
    if os.geteuid() != 0:
        return NO_ROOT
    return asyncio.run(capacity.measure(3 if quick else 20))


PARTS: dict[str, Callable[[bool], Mapping[str, Any]]] = {"alert": alert, "capacity": aborts}


def verdicts(results: Mapping[str, Mapping[str, Any]]) -> list[Verdict]:
    """List the measured values and the targets: (name, value, "<=" or ">=", limit)."""
    rows: list[Verdict] = []
    if "ms" in (ours := results.get("alert", {})):
        rows.append(
            (f"alert to last canary request p99, ms, {ours['services']} services", ours["ms"]["p99"], "<=", 1000.0)
        )
        rows.append((f"streams truncated over {ours['rollbacks']} rollbacks", ours["truncated"], "<=", 0))
        rows.append(("requests failed meanwhile", ours["failed"], "<=", 0))
        rows.append(("requests refused with 429 meanwhile", ours["shed"], "<=", 0))
    if "overMs" in (ours := results.get("capacity", {})):
        rows.append((f"5xx over {ours['aborts']} aborts with nothing ready", ours["failed"], "<=", 0))
        rows.append(("streams truncated meanwhile", ours["truncated"], "<=", 0))
        rows.append(("requests refused with 429 meanwhile", ours["shed"], "<=", 0))
    return rows


def show(part: str, figures: Mapping[str, Any]) -> None:
    print(f"\n{part}")
    for name, value in figures.items():
        print(f"  {name:<14} {value}")


def main() -> int:
    given = options(
        argparse.ArgumentParser(description="Rolling back, measured."), PARTS, "small sizes, about four minutes"
    )
    return measure(given, PARTS, verdicts, show, "the times of alert are longer than they need be")


if __name__ == "__main__":
    raise SystemExit(main())
