"""Pagefleet's engine on the CPU against vLLM, llama.cpp and transformers: the same model, the same requests.

`python bench/peers.py` makes the peers first. Systems run one at a time, each round starts every one of them anew. All requests come
at once, or at rates (--sweep), or one after the other (--single); --real-text compares prompt lookup with none.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from cpubench import float_model, report, targets, workload
from cpubench.measures import Measured
from cpubench.modes import at_once, realtext, single, sweep
from cpubench.modes.realtext import Spoken
from cpubench.modes.single import Stream
from cpubench.rounds import Rounds
from cpubench.shapes import LOADS, Shape
from cpubench.systems import System, everything
from rich.console import Console

TEXT = Path(__file__).parent / "cpubench/text.txt"
QUICK = ("pagefleet", "pagefleet-int8", "vllm-bf16", "llama-q4_0")
SWEPT = ("pagefleet", "pagefleet-int8", "vllm", "vllm-bf16")
ONE_STREAM = (
    "pagefleet", "pagefleet-nospec", "pagefleet-int8", "pagefleet-int8-nospec", "pagefleet-q4_0", "pagefleet-q4_0-nospec",
    "llama-q4_0", "llama-q4_0-one",
)  # fmt: skip
SPOKEN = tuple(name for pair in realtext.PAIRS.items() for name in pair)
ONLY_SINGLE = "llama-q4_0-one"  # one slot serves no load
QUICK_REQUESTS = 24
ROUNDS, FEWER_ROUNDS = 5, 3

console = Console(width=int(os.environ.get("COLUMNS", "132")))


def main(
    count: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            min=1,
            show_default=f"{ROUNDS}, {FEWER_ROUNDS} with --sweep, --single and --real-text",
            help="every number shown is their median",
        ),
    ] = None,
    shape: Annotated[Shape, typer.Option(help="the model; the larger ones have random weights")] = Shape.SMOLLM2,
    requests: Annotated[
        int | None,
        typer.Option(
            min=2,
            show_default=", ".join(f"{load.requests} of {shape}" for shape, load in LOADS.items()),
            help="requests of one run",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="of lengths and prompts")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"1 round, {QUICK_REQUESTS} requests: {', '.join(QUICK)}")
    ] = False,
    only: Annotated[str | None, typer.Option(help=f"names with commas between, of: {', '.join(everything())}")] = None,
    check: Annotated[bool, typer.Option("--check", help="end with 1 when a target is missed")] = False,
    sweeping: Annotated[bool, typer.Option("--sweep", help="latency at rates instead of all requests at once")] = False,
    alone: Annotated[
        bool, typer.Option("--single", help="requests one after the other instead, beside llama-bench")
    ] = False,
    spoken: Annotated[
        bool, typer.Option("--real-text", help="chat prompts, greedy, to the end: prompt lookup on and off")
    ] = False,
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
    if sweeping + alone + spoken > 1:
        raise typer.BadParameter("--sweep, --single and --real-text are different measurements: choose one")
    if spoken and shape is not Shape.SMOLLM2:
        raise typer.BadParameter(
            "--real-text needs a model whose answers mean something: the shapes have random weights"
        )
    if png and (sweeping or alone or spoken):
        raise typer.BadParameter("--png draws what came of all requests at once")
    if png and importlib.util.find_spec("matplotlib") is None:
        raise typer.BadParameter("--png needs matplotlib: pip install matplotlib")
    named = ONE_STREAM if alone else SPOKEN if spoken else QUICK if quick else SWEPT if sweeping else None
    chosen = choose(only.split(",") if only else named, shape)
    count = 1 if quick else count or (FEWER_ROUNDS if sweeping or alone or spoken else ROUNDS)
    requests = requests or LOADS[shape].requests
    if quick:
        requests = min(requests, QUICK_REQUESTS)
    folder = logs or Path(tempfile.mkdtemp(prefix="pagefleet-bench-"))
    rounds = Rounds(console, count, folder, quiet_timeout, repeats)
    encode = encoder()
    text = encode(TEXT.read_text())
    measured: Sequence[Measured | Stream | Spoken]
    judged: tuple[targets.Target, ...] = ()
    if sweeping:
        planned = sweep.Settings(requests, seed, shares(fractions), rates(at), answers)
        raise typer.Exit(0 if sweep.measure(rounds, chosen, text, planned, json) else 2)
    if spoken:
        measured = realtext.measure(rounds, chosen, realtext.requests(TEXT.read_text(), encode))
    elif alone:
        few = 2 if quick else single.REQUESTS
        asked = workload.alike(text, few, seed, single.PROMPT, single.OUTPUT, answers)
        measured, judged = single.measure(rounds, chosen, asked, shape), targets.SINGLE
    else:
        asked = workload.make(text, requests, seed, answers=answers)
        measured, judged = at_once.measure(rounds, chosen, asked), targets.AT_ONCE[shape]
    if not measured:
        raise typer.Exit(2)
    ratios = targets.ratios(report.medians(measured), judged)
    report.verdicts(console, ratios)
    if json:
        settings = {"shape": shape, "rounds": count, "requests": requests, "seed": seed, "answers": answers}
        report.write_json(json, measured, settings, chosen, ratios)
    if png:
        report.draw(png, [run for run in measured if isinstance(run, Measured)])
    if rounds.failed:
        raise typer.Exit(2)
    if check and any(ratio.missed for ratio in ratios):
        raise typer.Exit(1)


def choose(names: Sequence[str] | None, shape: Shape) -> list[System]:
    """The named systems, or all; those that are not made yet are left out, saying so. Raises BadParameter."""
    known = everything(shape)
    if unknown := sorted(set(names or []) - set(known)):
        raise typer.BadParameter(f"unknown systems: {', '.join(unknown)}; known: {', '.join(known)}")
    chosen = []
    for system in [known[name] for name in names or known if names or name != ONLY_SINGLE]:
        if missing := system.missing():
            console.print(f"{system.name} is left out: {missing}", markup=False, highlight=False)
        else:
            chosen.append(system)
    if not chosen:
        raise typer.BadParameter("no system to measure")
    return chosen


def encoder() -> Callable[[str], list[int]]:
    """The tokenizer of the 135M model, whose tokens the larger shapes share."""
    from pagefleet_engine.model.checkpoint.source import resolve
    from pagefleet_engine.model.text import tokenizer

    return partial(tokenizer.load(resolve(float_model.URI)).encode, add_special_tokens=False)


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


if __name__ == "__main__":
    typer.run(main)
