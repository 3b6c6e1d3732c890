"""The rollout guard on simulated fleets: false rollbacks, and how many users meet a worse revision.

    python bench/rollout_guard.py [PART ...] [--quick] [--check] [--processes N] [--rollouts N] [--every] [--resume] [--json FILE]
    python bench/rollout_guard.py peers                     # others' rules on the same traces
    python bench/rollout_guard.py --export DIR [PART ...]   # the traces as JSON lines (bench/README.md, Traces)
    python bench/rollout_guard.py --judge COMMAND --traces DIR   # another program's decisions on exported traces

A rollout is ten minutes of the stable revision alone, then the shipped steps: five minutes at 10 %, five at 50 %. Ten
replicas get 10 requests a second. Engines are queues in virtual time (rolloutbench/engines.py): prompts one after the
other, answers that slow them, prefix caches that start cold. Requests pass the gateway's own picker, ledger and windows;
the verdict is the operator's `decide()` with the shipped limits. `parts.py` has the cells and their targets; a cell's name
(`x2/u0.3/g2`) is a PART too. `u` is the utilisation of the stable revision's engines, `g` the number of gateways.

Every share has its interval of 95 % (Clopper and Pearson), every median its own. A cell with a good canary ends after 450 rollouts
when none of them was rolled back, because the upper end of its interval is then below 1 %; `--every` plays all 2,000. `--quick` takes about a minute and shows
that all parts work. The full size takes hours, and `--resume` goes on where a run of the same sources was stopped. `--check`
exits 1 when a target is missed. The time is virtual: the figures do not depend on the machine, except those of part `cpu`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Worlds are many small objects: one process each, no threads of numpy beside it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.rolloutbench import comparing, cpu, judging
from bench.rolloutbench.campaign import Campaign, Check, Figures, count
from bench.rolloutbench.parts import PARTS, Cell, cells
from bench.rolloutbench.stored import Stored

OTHERS = ("peers", "cpu")  # parts that play no cells
QUICK_TRACES = 1
CPU_SECONDS, QUICK_CPU_SECONDS = 600.0, 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description="The rollout guard on simulated fleets.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join((*PARTS, *OTHERS))}; or a cell's name")
    parser.add_argument("--quick", action="store_true", help="one rollout of each part: about a minute")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rollouts", type=int, help="of each cell, instead of its own number")
    parser.add_argument(
        "--every", action="store_true", help="all rollouts of cells whose first 450 rolled nothing back"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with what a stopped run of the same sources played"
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument(
        "--export", type=Path, metavar="DIR", help="write the traces of the parts there, and judge nothing"
    )
    parser.add_argument("--judge", metavar="COMMAND", help="score a program on the traces of --traces")
    parser.add_argument("--traces", type=Path, metavar="DIR", help="exported traces, for --judge")
    arguments = parser.parse_args()
    if (arguments.judge is None) != (arguments.traces is None):
        parser.error("--judge COMMAND needs --traces DIR, and the other way round")
    if arguments.judge is not None:
        return judging.main(arguments.judge, arguments.traces)
    named = [name for name in arguments.parts if name not in OTHERS]
    try:
        chosen = cells(named) if named or not arguments.parts else []
    except KeyError as unknown:
        parser.error(f"no part or cell is called {unknown}; parts are {', '.join((*PARTS, *OTHERS))}")
    chosen = [cell for cell in chosen if count(cell, arguments.rollouts, arguments.quick)]
    if arguments.export is not None:
        return export(arguments, chosen)
    others = [name for name in OTHERS if name in arguments.parts or not arguments.parts]
    return measure(arguments, chosen, others)


def export(arguments: argparse.Namespace, chosen: list[Cell]) -> int:
    """Write traces."""
    arguments.export.mkdir(parents=True, exist_ok=True)
    total = sum(count(cell, arguments.rollouts, arguments.quick) for cell in chosen)
    campaign = Campaign(arguments.processes, arguments.rollouts, arguments.quick, total)
    try:
        written = sum(campaign.export(cell.scenario, campaign.count(cell), arguments.export) for cell in chosen)
    finally:
        campaign.close()
    print(f"{written} traces in {arguments.export}")
    return 0


def measure(arguments: argparse.Namespace, chosen: list[Cell], others: list[str]) -> int:
    """Play the cells and the other parts, and print what was missed."""
    began, figures = time.monotonic(), list[Figures]()
    document: dict[str, Any] = {"quick": arguments.quick, "cells": []}
    compared = [] if "peers" not in others else comparing.scenarios()[:: 5 if arguments.quick else 1]
    traced = arguments.rollouts or (QUICK_TRACES if arguments.quick else comparing.ROLLOUTS)
    total = sum(count(cell, arguments.rollouts, arguments.quick) for cell in chosen) + traced * len(compared)
    stored = Stored() if arguments.resume else None
    campaign = Campaign(arguments.processes, arguments.rollouts, arguments.quick, total, stored, arguments.every)
    missed: list[str] = []
    try:
        for cell in chosen:
            figures.append(campaign.figures(cell))
            show(figures[-1])
            document["cells"].append(figures[-1].document())
            write(arguments.json, document)
        for scenario in compared:
            table = campaign.compare(scenario, traced)
            document.setdefault("peers", {})[scenario.name] = table
            show_peers(scenario.name, table)
            write(arguments.json, document)
    finally:
        campaign.close()
    if "cpu" in others:
        cost = cpu.measure(QUICK_CPU_SECONDS if arguments.quick else CPU_SECONDS)
        document["cpu"] = {"cores": cost.cores, **asdict(cost)}
        missed += show_cost(cost)
        write(arguments.json, document)
    missed += [f"{one.name}: {text(check)}" for one in figures for check in one.checks if not check.met]
    print(f"\n{total} rollouts in {time.monotonic() - began:.0f} s on {arguments.processes} processes")
    for line in missed:
        print(f"MISSED  {line}")
    return int(arguments.check and bool(missed))


def show_peers(name: str, table: list[dict[str, Any]]) -> None:
    """Print who rolled back the traces of a cell."""
    print(f"{name}, everybody on the same traces")
    for row in table:
        when = "" if row["requests"] is None else f", median after {row['requests']:,.0f} canary requests"
        share = f"{row['rolledBack']:.1%} ({row['low']:.1%} to {row['high']:.1%})"
        print(f"    {row['judge']:<40} {share} of {row['rollouts']} rolled back{when}", flush=True)


def show_cost(cost: cpu.Cost) -> list[str]:
    """Print the cost of decisions; return what was missed."""
    print(
        f"cpu: {1000 * cost.decision_seconds:.2f} ms a decision (longest {1000 * cost.longest_seconds:.1f}, "
        f"the first, with the times before the rollout, {1000 * cost.first_seconds:.0f}), "
        f"{cost.per_second:.2f} decisions/s a service; {cpu.SERVICES:,} services with canaries: {cost.cores:.2f} cores; "
        f"status {cost.status_bytes:,} bytes"
    )
    missed = []
    if cost.cores > cpu.MAX_CORES:
        missed.append(f"cpu: {cost.cores:.2f} cores for {cpu.SERVICES:,} services, at most {cpu.MAX_CORES:g}")
    if cost.status_bytes > cpu.status_budget():
        missed.append(f"cpu: a status of {cost.status_bytes:,} bytes, at most {cpu.status_budget():,}")
    return missed


def show(figures: Figures) -> None:
    """Print a cell: how its rollouts ended, when, and its targets."""
    shares = f"{figures.rolled_back} rolled back, {figures.promoted} promoted of {figures.rollouts}"
    reasons = ", ".join(f"{name} {number}" for name, number in sorted(figures.reasons.items()))
    print(f"{figures.name}: {shares}{f' ({reasons})' if reasons else ''} ({figures.wall_seconds:.0f} s)")
    if figures.requests is not None and figures.seconds is not None:
        middle, low, high, late = figures.requests
        seconds = figures.seconds
        print(
            f"    to the rollback: {middle:,.0f} canary requests ({low:,.0f} to {high:,.0f}; 95 % within {late:,.0f}), "
            f"{seconds[0]:,.0f} s ({seconds[1]:,.0f} to {seconds[2]:,.0f}; {seconds[3]:,.0f})"
        )
    for check in figures.checks:
        print(f"    {'met   ' if check.met else 'MISSED'}  {text(check)}", flush=True)


def text(check: Check) -> str:
    if check.what.startswith("median"):
        return f"{check.what} {check.value:,.0f} ({check.low:,.0f} to {check.high:,.0f}), at most {check.limit:,.0f}"
    bound = "at least" if "within" in check.what or check.limit > 0.5 else "at most"
    return f"{check.what} {check.value:.2%} ({check.low:.2%} to {check.high:.2%}), {bound} {check.limit:.0%}"


def write(path: Path | None, document: dict[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
