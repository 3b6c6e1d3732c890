"""Latency under Poisson arrivals at fractions of each system's own saturation."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cpubench import runs, workload
from cpubench.measures import Measured
from cpubench.servers import running
from cpubench.systems import System

FRACTIONS = (0.5, 0.7, 0.9)
COMPARED = 0.7


@dataclass(frozen=True)
class Point:
    """One system at one rate. `fraction` 0 is the run with all requests at once, which gives the saturation."""

    system: str
    fraction: float
    requests_per_s: float
    measured: Measured


def sweep(
    system: System, text: Sequence[int], count: int, seed: int, log: Path, say: Callable[[str], None]
) -> list[Point]:
    """One start of the system: its saturation, then every fraction of it, each with requests of its own."""
    with running(system, log) as served:
        runs.warm_up(served)
        full = runs.once(served, workload.make(text, count, seed), log)
        most = full.requests / full.makespan_s
        points = [Point(system.name, 0.0, most, full)]
        for part, fraction in enumerate(FRACTIONS, 1):
            say(f"{system.name}: {fraction:.0%} of {most:.2f} requests/s")
            requests = workload.spread(workload.make(text, count, seed, part), fraction * most, seed)
            points.append(Point(system.name, fraction, fraction * most, runs.once(served, requests, log)))
    return points


def show(console: Console, points: Sequence[Point]) -> None:
    table = Table(title="Poisson arrivals at fractions of each system's own saturation")
    table.add_column("system", no_wrap=True)
    headings = (
        "of saturation",
        "requests/s",
        "output tok/s",
        "TTFT p50",
        "p95 ms",
        "ITL p50",
        "p95 ms",
        "others' CPU %",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for point in points:
        run = point.measured
        table.add_row(
            point.system, f"{point.fraction:.0%}" if point.fraction else "all at once", f"{point.requests_per_s:.2f}",
            f"{run.tokens_per_s:.1f}", f"{run.ttft_p50:.0f}", f"{run.ttft_p95:.0f}",
            f"{run.itl_p50:.0f}", f"{run.itl_p95:.0f}", f"{run.others_cpu:.0f}",
        )  # fmt: skip
    console.print(table)
    compared = {point.system: point.measured for point in points if point.fraction == COMPARED}
    theirs = compared.pop("vllm", None)
    for name, run in compared.items():
        if theirs is not None:
            console.print(
                f"  {name} at {COMPARED:.0%} of its saturation: p95 TTFT {run.ttft_p95 / theirs.ttft_p95:.2f}x vllm's, "
                f"p95 ITL {run.itl_p95 / theirs.itl_p95:.2f}x vllm's",
                highlight=False,
            )


def write_json(path: Path, points: Sequence[Point]) -> None:
    path.write_text(json.dumps([asdict(point) for point in points], indent=1) + "\n")
