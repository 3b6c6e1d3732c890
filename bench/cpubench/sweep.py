"""Latency under Poisson arrivals at fractions of each system's own saturation, every run with an end in sight."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cpubench import runs, workload
from cpubench.measures import Measured
from cpubench.servers import running
from cpubench.systems import System

COMPARED = 0.7
FULL = 0.0  # the fraction of the run with all requests at once, which gives the saturation
SPARE_SECONDS, MOST_TIMES = 60.0, 3.0  # a run at a rate may take so many times as long as its arrivals, and some more


@dataclass(frozen=True)
class Point:
    """One system at one rate, in one round or as the median of several."""

    system: str
    fraction: float
    requests_per_s: float
    measured: Measured


def sweep(
    system: System,
    text: Sequence[int],
    count: int,
    seed: int,
    fractions: Sequence[float],
    log: Path,
    say: Callable[[str], None],
) -> list[Point]:
    """One start of the system: its saturation, then every fraction of it, each with requests of its own.

    A rate that the system does not keep up with ends after a bounded time, said and left out. Raises RuntimeError when
    the system does not start, or not all requests at once are answered.
    """
    with running(system, log) as served:
        say(f"{system.name}: ready after {served.ready_s:.0f} s; {count} requests at once")
        runs.warm_up(served)
        full = runs.once(served, workload.make(text, count, seed), log)
        most = full.requests / full.makespan_s
        points = [Point(system.name, FULL, most, full)]
        say(f"{system.name}: {most:.2f} requests/s, {full.tokens_per_s:.0f} tok/s in {full.makespan_s:.0f} s")
        for part, fraction in enumerate(fractions, 1):
            requests = workload.spread(workload.make(text, count, seed, part), fraction * most, seed)
            limit = MOST_TIMES * requests[-1].at + SPARE_SECONDS
            say(f"{system.name}: {fraction:.0%} of that, arrivals over {requests[-1].at:.0f} s, at most {limit:.0f} s")
            try:
                run = runs.once(served, requests, log, limit)
            except RuntimeError as error:
                say(str(error))
                continue
            say(f"{system.name}: p95 TTFT {run.ttft_p95:.0f} ms, p95 ITL {run.itl_p95:.0f} ms")
            points.append(Point(system.name, fraction, fraction * most, run))
    return points


def medians(points: Sequence[Point]) -> list[Point]:
    """Of the rounds, by system and fraction."""
    groups: dict[tuple[str, float], list[Point]] = {}
    for point in points:
        groups.setdefault((point.system, point.fraction), []).append(point)
    numbers = [field.name for field in fields(Measured) if field.name != "system"]
    middle = []
    for same in groups.values():
        run = replace(
            same[0].measured,
            **{name: statistics.median(getattr(point.measured, name) for point in same) for name in numbers},
        )
        rate = statistics.median(point.requests_per_s for point in same)
        middle.append(replace(same[0], requests_per_s=rate, measured=run))
    return middle


def show(console: Console, points: Sequence[Point]) -> None:
    rounds = max(sum(point.fraction == FULL and point.system == one.system for point in points) for one in points)
    table = Table(title=f"Poisson arrivals at fractions of each system's own saturation; median of {rounds}")
    table.add_column("system", no_wrap=True)
    for heading in ("of saturation", "requests/s", "output tok/s", "TTFT p50", "p95 ms", "ITL p50", "p95 ms",
                    "others' CPU %"):  # fmt: skip
        table.add_column(heading, justify="right")
    middle = medians(points)
    for point in middle:
        run = point.measured
        table.add_row(
            point.system, f"{point.fraction:.0%}" if point.fraction else "all at once", f"{point.requests_per_s:.2f}",
            f"{run.tokens_per_s:.1f}", f"{run.ttft_p50:.0f}", f"{run.ttft_p95:.0f}",
            f"{run.itl_p50:.0f}", f"{run.itl_p95:.0f}", f"{run.others_cpu:.0f}",
        )  # fmt: skip
    console.print(table)
    compared = {point.system: point.measured for point in middle if point.fraction == COMPARED}
    for ours, run in compared.items():
        for name, theirs in compared.items():
            if ours.startswith("pagefleet") and name.startswith("vllm"):
                console.print(
                    f"  {ours} at {COMPARED:.0%} of its saturation: p95 TTFT {run.ttft_p95 / theirs.ttft_p95:.2f}x "
                    f"{name}'s, p95 ITL {run.itl_p95 / theirs.itl_p95:.2f}x {name}'s",
                    highlight=False,
                )


def write_json(path: Path, points: Sequence[Point]) -> None:
    path.write_text(json.dumps([asdict(point) for point in points], indent=1) + "\n")
