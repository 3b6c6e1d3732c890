"""The night (`make nightly`): everything that `make test` leaves out, one job after the other, with one report.

`PYTHONPATH=tests python -m nightly.main [--list] [--only JOB]... [--quick] [--again] [--fresh]`

Results are stored in build/nightly by commit and hash of the sources: a night that was stopped goes on with the jobs that have
none. build/nightly/report.md is written after each job. Exit code 1 when a job failed, 130 when the night was stopped, 2 when
it cannot run.
"""

from __future__ import annotations

import datetime
import os
import random
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from nightly import machine, runner
from nightly.jobs import JOBS, Need
from nightly.plan import Result, Step, chosen, filled, left_seconds, plan, with_result
from nightly.progress import Shown
from nightly.report import Night, failed, report, verdict
from nightly.stored import Store
from rich.console import Console

NIGHTS = machine.ROOT / "build/nightly"
REPORT = NIGHTS / "report.md"
FAILED, CANNOT_RUN, INTERRUPTED = 1, 2, 130
console = Console(highlight=False, soft_wrap=True)


def main(
    only: Annotated[
        list[str] | None, typer.Option(help="only this job; may be given again; bench: all of them")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="every program at its smallest size")] = False,
    listed: Annotated[bool, typer.Option("--list", help="print the jobs, and run none")] = False,
    again: Annotated[bool, typer.Option("--again", help="run once more what failed")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="forget the results of these sources")] = False,
    seed: Annotated[int | None, typer.Option(help="of random order and fuzzing; by chance if not given")] = None,
) -> None:
    """Run what `make test` leaves out."""
    try:
        jobs, sources = chosen(JOBS, only or []), machine.checkout()
    except ValueError as unknown:
        console.print(f"make nightly: {unknown}")
        raise typer.Exit(CANNOT_RUN) from None
    needs = {need for job in jobs for need in job.needs}
    store = Store(NIGHTS, sources.key)
    if fresh and not listed:
        store.forget()
    steps = plan(jobs, quick, store.results(), machine.absent(needs), store.past(), again)
    if listed:
        for line in lines(steps):
            console.print(line, markup=False)
        return
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    night = _Night(sources, store, quick, seed)
    console.print(f"commit {sources.commit[:12]}, sources {sources.sources}, seed {seed}; {machine.machine_class()}")
    for step in steps:
        if not step.runs:
            how = step.left_out or f"{verdict(step)} before, on the same sources"
            console.print(f"{step.job.name}: {'left out: ' if step.left_out else ''}{how}", markup=False)
    status = night.run(steps)
    console.print(f"report: {REPORT.relative_to(machine.ROOT)}")
    raise typer.Exit(status)


class _Night:
    def __init__(self, sources: machine.Checkout, store: Store, quick: bool, seed: int) -> None:
        self._sources, self._store, self._quick, self._seed = sources, store, quick, seed

    def run(self, steps: Sequence[Step]) -> int:
        """Run what has no result yet; return the exit code."""
        self._write(steps)
        with runner.stopping() as stop, Shown(console, steps) as shown:
            for step in [step for step in steps if step.runs]:
                log = self._store.log(step.job.name, self._quick)
                shown.begins(str(log.relative_to(machine.ROOT)))
                try:
                    result = self._result(step, log, shown, stop)
                except runner.Stopped:
                    console.print(f"stopped; {step.job.name} has no result, and the same command goes on with it")
                    return INTERRUPTED
                if machine.checkout() != self._sources:
                    console.print(f"the sources have changed while {step.job.name} ran: its result is dropped")
                    return CANNOT_RUN
                self._store.put(result)
                steps = with_result(steps, result)
                shown.ended(result)
                self._write(steps)
        return FAILED if failed(steps) else 0

    def _result(self, step: Step, log: Path, shown: Shown, stop: runner.Stop) -> Result:
        folder, python = self._store.folder, Path(sys.executable)
        command = filled(
            step.command,
            python=str(python),
            bin=str(python.parent),
            seed=str(self._seed),
            folder=str(folder.relative_to(machine.ROOT)),
        )
        variables = runner.environment({"PAGEFLEET_RELIABILITY": str(folder / "reliability")} if self._quick else {})
        if Need.ROOT in step.job.needs:
            command = runner.as_root(command, variables, is_root=os.geteuid() == 0)
        began = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        how, seconds = runner.run(command, variables, log, 60 * step.job.limit_minutes, shown.runs, stop)
        return Result(step.job.name, self._quick, not how, how, round(seconds, 1), began, shlex.join(command))

    def _write(self, steps: Sequence[Step]) -> None:
        ended = [step.job.name for step in steps if step.result is not None]
        files = {name: self._store.log(name, self._quick) for name in ended}
        logs = {name: file.read_text(errors="replace") for name, file in files.items() if file.exists()}
        shown = {name: str(file.relative_to(machine.ROOT)) for name, file in files.items()}
        sources = self._sources
        night = Night(
            sources.commit, sources.changed, sources.sources, machine.machine_class(), self._quick, steps, logs, shown
        )
        REPORT.write_text(report(night))


def lines(steps: Sequence[Step]) -> Iterator[str]:
    """The jobs with their minutes, what a night would do with them now, and what each needs."""
    for step in steps:
        now = "runs" if step.runs else verdict(step)
        needs = ", ".join(need for need in Need if need in step.job.needs)
        shows = step.job.shows + (f" (needs {needs})" if needs else "")
        yield f"{step.job.name:22} {step.expected_seconds / 60:4.0f} min  {now:8}  {shows}"
        if step.left_out:
            yield f"{'':22}           because {step.left_out}"
    seconds = left_seconds([step for step in steps if step.runs], 0.0)
    yield f"{len(steps)} jobs; those that run take {seconds / 3600:.1f} hours"


if __name__ == "__main__":
    typer.run(main)
