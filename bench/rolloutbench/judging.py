"""Scores any program on exported traces: it reads one trace on its standard input and prints its decision as JSON."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

from bench.rolloutbench import comparing
from bench.rolloutbench.comparing import Decision
from bench.rolloutbench.traces import Trace, load_all


def main(command: str, folder: Path) -> int:
    """Print a program's decisions by cell. Returns the exit status."""
    by_cell: dict[str, list[Decision]] = {}
    for trace in load_all(folder):
        by_cell.setdefault(trace.name, []).append(comparing.decision(command, trace, ask(command, trace)))
    if not by_cell:
        print(f"there are no traces (*.jsonl) in {folder}")
        return 2
    for name, decisions in by_cell.items():
        row = comparing.rows(decisions)[0]
        when = "" if row["requests"] is None else f", median after {row['requests']:,.0f} canary requests"
        share = f"{row['rolledBack']:.1%} ({row['low']:.1%} to {row['high']:.1%})"
        print(f"{name}: {share} of {row['rollouts']} rolled back{when}")
    return 0


def ask(command: str, trace: Trace) -> float | None:
    """Return when a program rolls a trace back; None: never. Raises ValueError when the answer is no decision."""
    text = "\n".join(trace.lines()) + "\n"
    done = subprocess.run(shlex.split(command), input=text, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    if not isinstance(answer, dict) or "rolledBackAt" not in answer:
        raise ValueError(f'{command} answered {done.stdout[:200]!r}, not {{"rolledBackAt": seconds or null}}')
    at = answer["rolledBackAt"]
    return None if at is None else float(at)
