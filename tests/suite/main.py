"""Runs parts of the tests side by side, as `make test` does:
`PYTHONPATH=tests python -m suite.main PART... [--in-turn]`. Without a part: all.

Every line of a part is shown with the part's name before it. A part that fails ends no other, and what failed is shown again at
the end, where the last lines of a long log have it. Ctrl-C and SIGTERM end all of them, and what they have started. Exit code 1
when a part failed, 130 when it was stopped, 2 for a name that is no part.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Annotated

import typer
from nightly.progress import minutes
from nightly.runner import stopping
from rich.console import Console
from suite.parts import PARTS, Part, chosen
from suite.processes import Outcome, Runner

FAILED, UNKNOWN, INTERRUPTED = 1, 2, 130
TICK_SECONDS = 0.5
console = Console(highlight=False, soft_wrap=True, markup=False)


def main(
    parts: Annotated[list[str] | None, typer.Argument(help=f"of {', '.join(part.name for part in PARTS)}")] = None,
    in_turn: Annotated[
        bool, typer.Option("--in-turn", help="one after the other, for a machine of little memory")
    ] = False,
) -> None:
    """Run parts of the tests side by side."""
    try:
        asked = chosen(parts or [])
    except ValueError as error:
        console.print(f"{error}")
        raise typer.Exit(UNKNOWN) from None
    raise typer.Exit(played(asked, 1 if in_turn else len(asked)))


def played(parts: Sequence[Part], at_once: int, options: Sequence[str] = ("--hypothesis-seed=0",)) -> int:
    """Run the parts, show how they went, and return the exit code."""
    width, began, busy = max(len(part.name) for part in parts), time.monotonic(), Busy()

    def show(name: str, line: str) -> None:
        elapsed, seconds = divmod(int(time.monotonic() - began), 60)
        console.print(f"{elapsed:3}:{seconds:02} {name:{width}} | {line}")

    runner = Runner(show)
    with stopping() as stop, ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(runner.run, part, options) for part in parts]
        waiting: set[Future[Outcome]] = set(futures)
        while waiting:
            waiting = wait(waiting, TICK_SECONDS).not_done
            if stop.asked:
                console.print("stopping; what the tests have started is taken down")
                runner.stop()
                break
        outcomes = [future.result() for future in futures]
    for part, outcome in zip(parts, outcomes, strict=True):
        for line in outcome.causes:
            console.print(f"{part.name:{width}} | {line}")
    for part, outcome in zip(parts, outcomes, strict=True):
        console.print(f"{part.name:{width}} {outcome.how or 'passed':28} {minutes(outcome.seconds):>8}  {part.shows}")
    console.print(f"{'all':{width}} {f'CPU use {busy.share():.0%}':28} {minutes(time.monotonic() - began):>8}")
    if stop.asked:
        return INTERRUPTED
    return FAILED if any(outcome.how for outcome in outcomes) else 0


class Busy:
    """The share of all cores' time that was used since this was made, by any program of the machine."""

    def __init__(self) -> None:
        self._before = _ticks()

    def share(self) -> float:
        used, idle = (now - before for now, before in zip(_ticks(), self._before, strict=True))
        return used / max(1, used + idle)


def _ticks() -> tuple[int, int]:
    """Return the clock ticks in which the cores worked, and in which they did not, since the machine started."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()
    user, nice, system, idle, io_wait, *interrupts = map(int, words[1:9])
    return user + nice + system + sum(interrupts), idle + io_wait


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parents[2])
    typer.run(main)
