"""Decides what a night runs, from the table, what earlier runs of the same sources found, and what the machine has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nightly.jobs import Command, Job, Need


@dataclass(frozen=True)
class Result:
    """A job that has ended. `how` is "" or says how it failed; `began` is a time in ISO 8601."""

    name: str
    quick: bool
    passed: bool
    how: str
    seconds: float
    began: str
    command: str


@dataclass(frozen=True)
class Step:
    """A job of this night. It runs unless `left_out` gives a reason or there is a result already."""

    job: Job
    command: Command
    expected_seconds: float
    result: Result | None = None
    left_out: str = ""

    @property
    def runs(self) -> bool:
        return self.result is None and not self.left_out


def chosen(jobs: Sequence[Job], names: Iterable[str]) -> list[Job]:
    """The named jobs in the table's order, all without names. `bench` names every job that begins with `bench-`.

    Raises ValueError for a name that no job has."""
    wanted = [name for listed in names for name in listed.split(",") if name]
    for name in wanted:
        if not any(_named(job, name) for job in jobs):
            raise ValueError(f"no job is called {name}; the jobs are {', '.join(job.name for job in jobs)}")
    return [job for job in jobs if not wanted or any(_named(job, name) for name in wanted)]


def _named(job: Job, name: str) -> bool:
    return job.name == name or job.name.startswith(f"{name}-")


def plan(
    jobs: Iterable[Job],
    quick: bool,
    results: Iterable[Result],
    absent: Mapping[Need, str],
    past: Mapping[tuple[str, bool], float],
    again: bool,
) -> list[Step]:
    """`results` are those of the same sources, the last of a job counts; `again` runs once more what failed. `absent` has the
    reason for each need that the machine does not meet. `past` has the seconds that a job took the last time."""
    known = {one.name: one for one in results if one.quick == quick}
    steps = []
    for job in jobs:
        command = job.quick if quick else job.command
        seconds = past.get((job.name, quick), 60 * (job.quick_minutes if quick else job.minutes))
        result, reasons = known.get(job.name), [absent[need] for need in Need if need in job.needs and need in absent]
        if result is not None and (result.passed or not again):
            steps.append(Step(job, command or (), seconds, result))
        elif command is None:
            steps.append(Step(job, (), seconds, left_out="it has no quick size"))
        else:
            steps.append(Step(job, command, seconds, left_out="; ".join(reasons)))
    return steps


def left_seconds(waiting: Sequence[Step], elapsed: float) -> float:
    """The seconds until all is done, when the first of those that wait has run for `elapsed`. One that takes longer than
    expected may end at any time."""
    if not waiting:
        return 0.0
    first, *others = waiting
    return max(first.expected_seconds - elapsed, 0.0) + sum(step.expected_seconds for step in others)


def with_result(steps: Iterable[Step], result: Result) -> list[Step]:
    return [
        Step(step.job, step.command, step.expected_seconds, result) if step.job.name == result.name else step
        for step in steps
    ]


def filled(command: Command, **values: str) -> list[str]:
    """The command with its placeholders replaced."""
    return [word.format(**values) for word in command]
