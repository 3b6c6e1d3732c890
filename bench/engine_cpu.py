"""Pagefleet's engine on the CPU against vLLM, llama.cpp and transformers: the same model, the same requests.

`python bench/peers.py` makes the peers first. Systems run one at a time, each round starts every one of them anew.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from cpubench import float_model, report, runs, sweep, workload
from cpubench.measures import Measured
from cpubench.systems import System, everything
from rich.console import Console

TEXT = Path(__file__).parent / "cpubench/text.txt"
QUICK = ("pagefleet", "vllm", "llama")
SWEPT = ("pagefleet", "pagefleet-int8", "vllm", "vllm-bf16")
QUICK_REQUESTS, REQUESTS = 24, 64
ROUNDS, SWEPT_ROUNDS = 5, 3

console = Console(width=int(os.environ.get("COLUMNS", "132")))


def main(
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, show_default=f"{ROUNDS}, {SWEPT_ROUNDS} with --sweep", help="every number shown is their median"
        ),
    ] = None,
    requests: Annotated[int, typer.Option(min=2, help="requests of one run")] = REQUESTS,
    seed: Annotated[int, typer.Option(help="of lengths and prompts")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"1 round, {QUICK_REQUESTS} requests: {', '.join(QUICK)}")
    ] = False,
    only: Annotated[str | None, typer.Option(help=f"names with commas between, of: {', '.join(everything())}")] = None,
    check: Annotated[bool, typer.Option("--check", help="end with 1 when a target is missed")] = False,
    sweeping: Annotated[bool, typer.Option("--sweep", help="latency at rates instead of all requests at once")] = False,
    fractions: Annotated[str, typer.Option(help="of saturation, for --sweep, with commas between")] = "0.7",
    at: Annotated[
        str, typer.Option(help="requests per second, for --sweep: the same for all systems, commas between")
    ] = "",
    answers: Annotated[
        workload.Answers,
        typer.Option(help="sampled at temperature 1, or the likeliest tokens, which soon repeat themselves"),
    ] = workload.Answers.SAMPLED,
    json: Annotated[Path | None, typer.Option(help="write every number to this file")] = None,
    png: Annotated[Path | None, typer.Option(help="draw the medians into this file (needs matplotlib)")] = None,
    quiet_timeout: Annotated[float, typer.Option(min=0, help="seconds to wait for a quiet machine before a run")] = 60,
    repeats: Annotated[int, typer.Option(min=0, help="times to repeat a run that other programs disturbed")] = 2,
    logs: Annotated[Path | None, typer.Option(help="folder for the systems' logs")] = None,
) -> None:
    """Compare CPU serving systems. See bench/README.md."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that no server outlives this program
    chosen = choose(only.split(",") if only else list(QUICK) if quick else list(SWEPT) if sweeping else None)
    rounds = rounds or (SWEPT_ROUNDS if sweeping else ROUNDS)
    if png and importlib.util.find_spec("matplotlib") is None:
        raise typer.BadParameter("--png needs matplotlib: pip install matplotlib")
    if quick:
        rounds, requests = 1, min(requests, QUICK_REQUESTS)
    folder = logs or Path(tempfile.mkdtemp(prefix="pagefleet-bench-"))
    text = tokens()
    if sweeping:
        if not sweep_all(chosen, text, requests, seed, rounds, shares(fractions), rates(at), answers, folder, json):
            raise typer.Exit(2)
        return
    measured = measure_all(
        chosen, workload.make(text, requests, seed, answers=answers), rounds, folder, quiet_timeout, repeats
    )
    if not measured:
        raise typer.Exit(2)
    report.show(console, measured, everything())
    if json:
        report.write_json(
            json, measured, {"rounds": rounds, "requests": requests, "seed": seed, "answers": answers}, chosen
        )
    if png:
        report.draw(png, measured)
    if len(measured) < rounds * len(chosen):
        raise typer.Exit(2)
    if check and any(ratio.missed for ratio in report.ratios(report.medians(measured))):
        raise typer.Exit(1)


def choose(names: list[str] | None) -> list[System]:
    """The named systems, or all; those that are not made yet are left out, saying so. Raises BadParameter."""
    known = everything()
    if unknown := sorted(set(names or []) - set(known)):
        raise typer.BadParameter(f"unknown systems: {', '.join(unknown)}; known: {', '.join(known)}")
    chosen = []
    for system in (known[name] for name in names or known):
        if missing := system.missing():
            say(f"{system.name} is left out: {missing}")
        else:
            chosen.append(system)
    if not chosen:
        raise typer.BadParameter("no system to measure")
    return chosen


def tokens() -> list[int]:
    """The text that prompts are cut from, in the model's tokens."""
    from pagefleet_engine.model.checkpoint.source import resolve
    from pagefleet_engine.model.text import tokenizer

    return tokenizer.load(resolve(float_model.URI)).encode(TEXT.read_text(), add_special_tokens=False)


def measure_all(
    systems: list[System],
    requests: list[workload.Request],
    rounds: int,
    folder: Path,
    quiet_timeout: float,
    repeats: int,
) -> list[Measured]:
    """Rounds over all systems; every other round goes the other way, so that none always follows the same one.

    A system that fails is left out of the round, with its reason printed.
    """
    measured = []
    for number in range(1, rounds + 1):
        for system in systems if number % 2 else reversed(systems):
            say(f"round {number} of {rounds}, {system.name}")
            log = folder / f"{system.name}-{number}.log"
            try:
                measured.append(least_disturbed(system, requests, log, quiet_timeout, repeats))
            except RuntimeError as error:
                console.print(str(error), style="red", markup=False)
    return measured


def least_disturbed(
    system: System, requests: list[workload.Request], log: Path, quiet_timeout: float, repeats: int
) -> Measured:
    """The run that the rest of the machine disturbed least; its speed plays no part in the choice."""
    tried: list[Measured] = []
    while not tried or (min(run.others_cpu for run in tried) > runs.QUIET and len(tried) <= repeats):
        runs.await_quiet(quiet_timeout)
        run = runs.measure(system, requests, log)
        say(f"  {run.tokens_per_s:.1f} tok/s in {run.makespan_s:.1f} s (others used {run.others_cpu:.0f} % CPU)")
        tried.append(run)
    return min(tried, key=lambda run: run.others_cpu)


def shares(fractions: str) -> list[float]:
    """Raises BadParameter."""
    chosen = numbers(fractions)
    if not chosen or not all(0 < fraction < 1 for fraction in chosen):
        raise typer.BadParameter(f"--fractions are numbers between 0 and 1 with commas between, not {fractions!r}")
    return chosen


def rates(at: str) -> list[float]:
    """Raises BadParameter."""
    chosen = numbers(at)
    if at and not (chosen and all(rate > 0 for rate in chosen)):
        raise typer.BadParameter(f"--at are numbers of requests per second with commas between, not {at!r}")
    return chosen


def numbers(text: str) -> list[float]:
    """None where they are not all numbers."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        return []


def sweep_all(
    systems: list[System],
    text: list[int],
    requests: int,
    seed: int,
    rounds: int,
    fractions: list[float],
    given: list[float],
    answers: workload.Answers,
    folder: Path,
    json: Path | None,
) -> bool:
    """Rounds over all systems, every other one the other way, with other requests each; whether all were measured.

    What is known is in the file after every system.
    """
    points: list[sweep.Point] = []
    streaming = [system for system in systems if system.streams]
    for number in range(1, rounds + 1):
        for system in streaming if number % 2 else reversed(streaming):
            say(f"round {number} of {rounds}, {system.name}")
            log = folder / f"{system.name}-sweep-{number}.log"
            try:
                points += sweep.sweep(system, text, requests, seed + number, fractions, given, answers, log, say)
            except RuntimeError as error:
                console.print(str(error), style="red", markup=False)
            if json:
                sweep.write_json(json, points)
    if points:
        sweep.show(console, points)
    return len(points) == len(streaming) * rounds * (1 + len(fractions) + len(given))


def say(line: str) -> None:
    console.print(f"{time.strftime('%H:%M:%S')} {line}", markup=False, highlight=False)


if __name__ == "__main__":
    typer.run(main)
