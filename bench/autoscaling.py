"""Autoscaling: accelerator-hours at the same SLO attainment, ours beside HPA, KPA, KEDA, WVA and Dynamo's rules.

    python bench/autoscaling.py [--quick] [--check] [--json FILE] [--png FILE] [--processes N]

A simulation in virtual time (pagefleet_simulator): the figures do not depend on the machine, but for the last one.
Every scaler, ours too, gets the setting that is cheapest at 95 % attainment (`--goal`) on a calibration trace of another seed, and
is then measured on the built-in traces; medians over the seeds. The best of the others on a trace is the cheapest of
those that keep the goal there, or the nearest to it when none does. `--check` exits 1 unless ours keeps attainment
within 0.1 points of that one's and takes at least 15 % fewer accelerator-hours on burst and diurnal, at most 5 % more
on any trace, does not flap under noise of +-10 % (after its first 15 minutes), and 10,000 replicas pass a day in 60 s.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "operator"))

from pagefleet_operator.domain.spec_scaling import Scaling
from pagefleet_simulator import profile as profiles
from pagefleet_simulator import traces
from pagefleet_simulator.calibrate import GOAL, Tried, best
from pagefleet_simulator.capacity import sustainable
from pagefleet_simulator.flow import Flow
from pagefleet_simulator.fluid import FluidSimulation
from pagefleet_simulator.outcome import Objective, flaps
from pagefleet_simulator.plots import draw
from pagefleet_simulator.scalers.catalog import PEERS, candidates, describe, ours
from pagefleet_simulator.scalers.ours import Ours
from pagefleet_simulator.simulation import Setting, Simulation
from pagefleet_simulator.view import Bounds, Scaler

PROFILE = profiles.load("h100x4-llama-70b")
LENGTHS = traces.Lengths(prompt=1500, output=700)
OBJECTIVE = Objective(ttft=2.0, tpot=0.1)
FLEET = 8  # replicas that the peak needs at a full batch
MOST = 16
SCALING = Scaling(min=1, max=MOST, ttft=OBJECTIVE.ttft)
NAMES = ("steady", "step", "burst", "diurnal", "heavy", "noise")
SETTLED_SECONDS = 900.0
EQUAL = 0.001
LESS, MORE = 0.85, 1.05
LARGE, LARGE_SECONDS = 10_000, 60.0
EACH = sustainable(PROFILE, *LENGTHS.means)


@dataclass(frozen=True)
class Job:
    trace: str
    hours: float | None
    seed: int
    scaler: Scaler


@dataclass(frozen=True)
class Result:
    job: Job
    attainment: float
    hours: float
    events: int
    flaps: int
    dropped: float


def run(job: Job) -> Result:
    trace = traces.build(job.trace, FLEET * EACH, job.seed, job.hours, LENGTHS)
    begin = sum(1 for arrival in trace.arrivals if arrival.at < 300) / 300
    initial = max(1, min(MOST, int(np.ceil(begin / EACH / 0.7))))
    setting = Setting(PROFILE, Bounds(1, MOST), initial, seed=job.seed)
    outcome = Simulation(setting, job.scaler, trace.arrivals, trace.seconds).run()
    # How a fleet finds its size from an empty start is no flap: the noise claim counts what comes after it.
    counted = [event for event in outcome.events if job.trace != "noise" or event.time > SETTLED_SECONDS]
    return Result(
        job, outcome.attainment(OBJECTIVE), outcome.accelerator_hours, len(outcome.events), flaps(counted),
        outcome.dropped,
    )  # fmt: skip


def everything(jobs: list[Job], processes: int, what: str, log: Path | None) -> list[Result]:
    with Progress(console=Console(stderr=True)) as bar, ProcessPoolExecutor(processes) as pool:
        task = bar.add_task(what, total=len(jobs))
        found = []
        for result in pool.map(run, jobs):
            found.append(result)
            if log:
                with log.open("a") as file:
                    line = (
                        what,
                        result.job.trace,
                        result.job.seed,
                        result.job.scaler.name,
                        describe(result.job.scaler),
                    )
                    print(
                        *line,
                        f"{result.attainment:.4f} {result.hours:.2f} h",
                        result.events,
                        result.flaps,
                        file=file,
                        sep="; ",
                    )
            bar.advance(task)
        return found


def settings(hours: float, processes: int, goal: float, log: Path | None) -> dict[str, Scaler]:
    """For each scaler the setting that the calibration trace prefers."""
    choices = {"ours": ours(SCALING)}
    choices |= {name: candidates(name, PROFILE, SCALING, OBJECTIVE) for name in PEERS}
    jobs = [Job("calibration", hours, 1_000_003, scaler) for found in choices.values() for scaler in found]
    results = everything(jobs, processes, "calibrating", log)
    chosen, place = {}, 0
    for name, found in choices.items():
        tried = [Tried(one.job.scaler, one.attainment, one.hours) for one in results[place : place + len(found)]]
        place += len(found)
        chosen[name] = best(tried, goal).scaler
    return chosen


def large(hours: float) -> tuple[float, float]:
    """Seconds that 10,000 replicas take for a day (or for `hours` of it), and their attainment."""
    lengths = traces.Lengths()
    each = sustainable(PROFILE, *lengths.means)
    random, seconds = np.random.default_rng(1), np.arange(0, 24 * 3600, 2.0)
    rate = traces.rates("diurnal", 0.7 * LARGE * each, 24 * 3600, random, seconds)[: int(hours * 1800)]
    prompt, output = (np.full(len(rate), mean) for mean in lengths.means)
    flow = Flow(random.poisson(rate * 2).astype(float), prompt, output, prompt + 0.7 * output)
    initial = int(rate[0] / each / 0.6)
    setting = Setting(PROFILE, Bounds(1, LARGE), initial, seed=1)
    scaler = Ours(Scaling(min=1, max=LARGE, free_pages=0.5, ttft=OBJECTIVE.ttft))
    began = time.perf_counter()
    outcome = FluidSimulation(setting, scaler, flow).run()
    return time.perf_counter() - began, outcome.attainment(OBJECTIVE)


def judge(rows: dict[str, dict[str, dict[str, float]]], goal: float) -> list[tuple[str, bool]]:
    """Each claim with whether it holds."""
    claims = []
    for name, found in rows.items():
        mine = found["ours"]
        peer = best_peer(found, goal)
        ratio = mine["hours"] / found[peer]["hours"]
        kept = mine["attainment"] >= found[peer]["attainment"] - EQUAL
        limit = LESS if name in ("burst", "diurnal") else MORE
        claims.append(
            (
                f"{name}: {mine['attainment']:.2%} beside {found[peer]['attainment']:.2%} of {peer}, "
                f"{ratio:.2f} x its accelerator-hours (<= {limit:.2f})",
                kept and ratio <= limit,
            )
        )
    if "noise" in rows:
        claims.append(
            (f"noise of +-10 %: {rows['noise']['ours']['flaps']:g} flaps (0)", rows["noise"]["ours"]["flaps"] == 0)
        )
    return claims


def best_peer(found: dict[str, dict[str, float]], goal: float) -> str:
    good = [name for name in PEERS if found[name]["attainment"] >= goal]
    if good:
        return min(good, key=lambda name: found[name]["hours"])
    return max(PEERS, key=lambda name: (round(found[name]["attainment"], 3), -found[name]["hours"]))


def main() -> int:
    parser = argparse.ArgumentParser(description="Autoscalers compared, simulated.")
    parser.add_argument("--quick", action="store_true", help="shorter traces, one seed, 3 h of the 10,000 replicas")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--json", type=Path, help="write everything there")
    parser.add_argument("--png", type=Path, help="draw the burst trace there (.png or .svg)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--goal", type=float, default=GOAL, help="share of requests that must meet the objective")
    parser.add_argument("--log", type=Path, help="append a line for each run there")
    parser.add_argument("--traces", default=",".join(NAMES))
    arguments = parser.parse_args()
    quick, processes = arguments.quick, arguments.processes
    seeds = (1,) if quick else (1, 2, 3)
    hours = {"diurnal": 6.0, "burst": 2.0} if quick else {}
    chosen = settings(1.0 if quick else 2.0, processes, arguments.goal, arguments.log)
    names = arguments.traces.split(",")
    jobs = [
        Job(trace, hours.get(trace, 1.0) if quick else None, seed, scaler)
        for trace in names for seed in seeds for scaler in chosen.values()
    ]  # fmt: skip
    results = everything(jobs, processes, "measuring", arguments.log)
    rows = medians(results, names)
    console = Console()
    for name, scaler in chosen.items():
        console.print(f"{name:<8} {describe(scaler)}", markup=False)
    console.print(_table(rows, arguments.goal))
    claims = judge(rows, arguments.goal)
    day = 3.0 if quick else 24.0
    took, attained = large(day)
    claims.append(
        (f"{LARGE} replicas, {day:g} h: {took:.1f} s (<= {LARGE_SECONDS * day / 24:.1f}), {attained:.2%}",
         took <= LARGE_SECONDS * day / 24)
    )  # fmt: skip
    for text, holds in claims:
        console.print(f"{'ok    ' if holds else 'MISSED'} {text}", markup=False)
    if arguments.json:
        settings_made = {name: describe(scaler) for name, scaler in chosen.items()}
        arguments.json.write_text(
            json.dumps({"settings": settings_made, "medians": rows, "claims": claims, "quick": quick}, indent=1) + "\n"
        )
    if arguments.png:
        trace = traces.build("burst", FLEET * EACH, 1, 2.0, LENGTHS)
        setting = Setting(PROFILE, Bounds(1, MOST), 3, seed=1)
        draw(
            [Simulation(setting, one, trace.arrivals, trace.seconds).run() for one in chosen.values()],
            arguments.png,
            "burst",
        )
    return int(arguments.check and not all(holds for _, holds in claims))


def medians(results: list[Result], names: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for trace in names:
        rows[trace] = {}
        for scaler in ("ours", *PEERS):
            mine = [one for one in results if one.job.trace == trace and one.job.scaler.name == scaler]
            rows[trace][scaler] = {
                key: median(getattr(one, key) for one in mine)
                for key in ("attainment", "hours", "events", "flaps", "dropped")
            }
    return rows


def _table(rows: dict[str, dict[str, dict[str, float]]], goal: float) -> Table:
    table = Table(title="medians", title_justify="left")
    for column in ("trace", "scaler", "SLO met", "accelerator h", "x ours", "changes", "flaps", "refused"):
        table.add_column(column, justify="left" if column in ("trace", "scaler") else "right")
    for trace, found in rows.items():
        peer = best_peer(found, goal)
        for name, row in found.items():
            table.add_row(
                trace if name == "ours" else "",
                name + (" (best)" if name == peer else ""),
                f"{row['attainment']:.2%}",
                f"{row['hours']:.1f}",
                f"{row['hours'] / found['ours']['hours']:.2f}",
                f"{row['events']:g}",
                f"{row['flaps']:g}",
                f"{row['dropped']:g}",
            )
        table.add_section()
    return table


if __name__ == "__main__":
    raise SystemExit(main())
