"""Latency under Poisson arrivals: at fractions of each system's own saturation, and at rates that are the same for all.

Every run has an end in sight.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cpubench import report, runs, workload
from cpubench.measures import Measured
from cpubench.rounds import Rounds
from cpubench.servers import running
from cpubench.systems import System

COMPARED = 0.7
FULL = 0.0  # the fraction of the run with all requests at once, which gives the saturation
GIVEN = -1.0  # the fraction of a run at a rate that is the same for all systems
SPARE_SECONDS, MAX_TIMES = 60.0, 3.0  # a run at a rate may take so many times as long as its arrivals, and some more


@dataclass(frozen=True)
class Point:
    """One system at one rate, in one round or as the median of several."""

    system: str
    fraction: float
    requests_per_s: float
    measured: Measured


@dataclass(frozen=True)
class Settings:
    """count: requests of a run. fractions: of a system's own saturation; rates: requests per second, the same for all."""

    count: int
    seed: int
    fractions: Sequence[float]
    rates: Sequence[float]
    answers: workload.Answers


def measure(
    rounds: Rounds, systems: Sequence[System], text: Sequence[int], settings: Settings, json_file: Path | None
) -> bool:
    """Measure and show the systems, with other requests in each round; whether all were measured.

    What is known is in the file after every system.
    """
    points: list[Point] = []

    def step(system: System, log: Path, number: int) -> list[Point]:
        found = _sweep(system, text, replace(settings, seed=settings.seed + number), log, rounds.say)
        points.extend(found)
        if json_file:
            _write_json(json_file, points)
        return found

    streaming = [system for system in systems if system.streams]
    rounds.every({system.name: partial(step, system) for system in streaming})
    if points:
        _show(rounds.console, points)
    return len(points) == len(streaming) * rounds.count * (1 + len(settings.fractions) + len(settings.rates))


def _sweep(
    system: System, text: Sequence[int], settings: Settings, log: Path, say: Callable[[str], None]
) -> list[Point]:
    """One start of the system: its saturation, every fraction of it, every rate, each with requests of its own.

    A rate that the system does not keep up with ends after a bounded time; it is reported and left out. Raises RuntimeError when
    the system does not start, or not all requests at once are answered.
    """
    count, seed, answers = settings.count, settings.seed, settings.answers
    with running(system, log) as served:
        say(f"{system.name}: ready after {served.ready_s:.0f} s; {count} requests at once")
        runs.warm_up(served)
        full = runs.once(served, workload.make(text, count, seed, answers=answers), log)
        most = full.requests / full.makespan_s
        points = [Point(system.name, FULL, most, full)]
        say(f"{system.name}: {most:.2f} requests/s, {full.tokens_per_s:.0f} tok/s in {full.makespan_s:.0f} s")
        planned = [(fraction, fraction * most) for fraction in settings.fractions]
        planned += [(GIVEN, rate) for rate in settings.rates]
        for part, (fraction, rate) in enumerate(planned, 1):
            requests = workload.spread(workload.make(text, count, seed, part, answers), rate, seed)
            limit = MAX_TIMES * requests[-1].at + SPARE_SECONDS
            say(f"{system.name}: {rate:.2f} requests/s, arrivals over {requests[-1].at:.0f} s, at most {limit:.0f} s")
            try:
                run = runs.once(served, requests, log, limit)
            except RuntimeError as error:
                say(str(error))
                continue
            say(f"{system.name}: p95 TTFT {run.ttft_p95:.0f} ms, p95 ITL {run.itl_p95:.0f} ms")
            points.append(Point(system.name, fraction, rate, run))
    return points


def _medians(points: Sequence[Point]) -> list[Point]:
    """Return the medians of the rounds, by system and fraction or given rate."""
    groups: dict[tuple[str, float, float], list[Point]] = {}
    for point in points:
        rate = point.requests_per_s if point.fraction == GIVEN else 0.0
        groups.setdefault((point.system, point.fraction, rate), []).append(point)
    middle = []
    for same in groups.values():
        (run,) = report.medians([point.measured for point in same]).values()
        rate = statistics.median(point.requests_per_s for point in same)
        middle.append(replace(same[0], requests_per_s=rate, measured=run))
    return middle


def _show(console: Console, points: Sequence[Point]) -> None:
    rounds = max(sum(point.fraction == FULL and point.system == one.system for point in points) for one in points)
    table = Table(
        title=f"Poisson arrivals at fractions of each system's own saturation, or as given; median of {rounds}"
    )
    table.add_column("system", no_wrap=True)
    for heading in ("of saturation", "requests/s", "output tok/s", "TTFT p50", "p95 ms", "ITL p50", "p95 ms",
                    "others' CPU %"):  # fmt: skip
        table.add_column(heading, justify="right")
    middle = _medians(points)
    for point in middle:
        run = point.measured
        table.add_row(
            point.system, _share(point), f"{point.requests_per_s:.2f}",
            f"{run.tokens_per_s:.1f}", f"{run.ttft_p50:.0f}", f"{run.ttft_p95:.0f}",
            f"{run.itl_p50:.0f}", f"{run.itl_p95:.0f}", f"{run.others_cpu:.0f}",
        )  # fmt: skip
    console.print(table)
    for one in middle:
        for other in middle:
            if one.system.startswith("pagefleet") and other.system.startswith("vllm") and _comparable(one, other):
                at = f"{one.requests_per_s:.2f}/s" if one.fraction == GIVEN else f"{COMPARED:.0%} of its saturation"
                ours, theirs = one.measured, other.measured
                console.print(
                    f"  {one.system} at {at}: p95 TTFT {ours.ttft_p95 / theirs.ttft_p95:.2f}x {other.system}'s, "
                    f"p95 ITL {ours.itl_p95 / theirs.itl_p95:.2f}x {other.system}'s",
                    highlight=False,
                )


def _share(point: Point) -> str:
    return {FULL: "all at once", GIVEN: "as given"}.get(point.fraction, f"{point.fraction:.0%}")


def _comparable(one: Point, other: Point) -> bool:
    """Whether both are at their 70 %, or both at the same given rate."""
    if one.fraction == GIVEN:
        return other.fraction == GIVEN and one.requests_per_s == other.requests_per_s
    return one.fraction == other.fraction == COMPARED


def _write_json(path: Path, points: Sequence[Point]) -> None:
    path.write_text(json.dumps([asdict(point) for point in points], indent=1) + "\n")
