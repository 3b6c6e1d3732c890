"""Fuzzing by time: `PYTHONPATH=tests python -m nightly.fuzz --minutes 60 [--seed N]`.

Rounds of every hypothesis test, and of schemathesis against a real engine, each with the next seed, until the time is over. A
kind of test that fails is not run again. The command of each round is printed: it repeats the round.
"""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

FOLDERS = ("tests/unit", "tests/property", "tests/engine", "tests/contract")
REQUESTS = 2000  # of one round, at least

Round = tuple[dict[str, str], list[str]]  # variables, options of pytest


def examples(seed: int) -> Round:
    """Every hypothesis test, with other examples."""
    return {}, ["-n", "auto", "-m", "hypothesis", f"--hypothesis-seed={seed}", *FOLDERS]


def requests(seed: int) -> Round:
    """Requests that schemathesis makes from the engine's OpenAPI document."""
    variables = {"PAGEFLEET_API_SEED": str(seed), "PAGEFLEET_API_CASES": str(REQUESTS)}
    return variables, ["tests/engine/test_engine_openapi.py::test_schemathesis_finds_nothing"]


def main(
    minutes: Annotated[float, typer.Option(help="no round begins later")] = 60.0,
    seed: Annotated[int, typer.Option(help="of the first round; the next has one more")] = 1,
) -> None:
    """Look for an example that breaks a test until the time is over."""
    failed = rounds([examples, requests], seed, until=time.monotonic() + 60 * minutes)
    raise typer.Exit(1 if failed else 0)


def rounds(
    kinds: list[Callable[[int], Round]],
    first: int,
    until: float,
    passes: Callable[[Round], bool] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """Play a round of each kind in turn, at least one, with seeds from `first` on. Return the kinds that failed."""
    passes, failed = passes or play, list[str]()
    for seed in itertools.count(first):
        for kind in [kind for kind in kinds if kind.__name__ not in failed]:
            if seed > first and clock() >= until:
                return failed
            if not passes(kind(seed)):
                failed.append(kind.__name__)
        if len(failed) == len(kinds):
            return failed
    raise AssertionError("seeds do not end")


def play(chosen: Round) -> bool:
    """Run pytest; CI is unset, because hypothesis then tries the same examples whatever the seed is."""
    variables, options = chosen
    command = [sys.executable, "-m", "pytest", "-q", *options]
    shown = " ".join([*(f"{name}={value}" for name, value in variables.items()), shlex.join(command)])
    print(f"{time.strftime('%H:%M:%S')} {shown}", flush=True)  # noqa: T201
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | variables
    return subprocess.run(command, env=environment, check=False).returncode == 0


if __name__ == "__main__":
    typer.run(main)
