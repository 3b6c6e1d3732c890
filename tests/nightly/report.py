"""The report of a night as Markdown: commit, machine, every job's verdict, the last lines of what failed, surviving mutants."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nightly.plan import Step

LAST_LINES = 30
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SCORE = re.compile(r"^\w+: \d+ of \d+ mutants are killed")
SURVIVORS = ("not explained: ", "explained, but no survivor: ")


@dataclass(frozen=True)
class Night:
    """`logs` has the text of each finished job's log, `files` its path."""

    commit: str
    changed: bool
    sources: str
    machine: str
    quick: bool
    steps: Sequence[Step]
    logs: Mapping[str, str]
    files: Mapping[str, str]


def verdict(step: Step) -> str:
    if step.result is None:
        return "left out" if step.left_out else "not run yet"
    return "passed" if step.result.passed else "failed"


def failed(steps: Sequence[Step]) -> list[Step]:
    return [step for step in steps if step.result is not None and not step.result.passed]


def report(night: Night) -> str:
    return "\n".join(_lines(night)) + "\n"


def _lines(night: Night) -> Iterator[str]:
    counts = ", ".join(
        f"{number} {word}"
        for word in ("passed", "failed", "left out", "not run yet")
        if (number := sum(verdict(step) == word for step in night.steps))
    )
    yield f"# The night of {night.commit[:12]}"
    yield ""
    changed = ", with changes that are not committed" if night.changed else ""
    yield f"- Commit: `{night.commit}`{changed}"
    yield f"- Hash of the sources: `{night.sources}`"
    yield f"- Machine: {night.machine}"
    yield f"- Size: {'quick' if night.quick else 'full'}"
    yield f"- Jobs: {counts}"
    yield ""
    yield "| job | what it shows | verdict | minutes | began |"
    yield "|---|---|---|---|---|"
    for step in night.steps:
        minutes, began = (f"{step.result.seconds / 60:.1f}", step.result.began) if step.result else ("", "")
        yield f"| {step.job.name} | {step.job.shows} | {verdict(step)} | {minutes} | {began} |"
    for step in failed(night.steps):
        yield from _failure(night, step)
    if left_out := [step for step in night.steps if verdict(step) == "left out"]:
        yield from ("", "## Left out", "")
        yield from (f"- {step.job.name}: {step.left_out}" for step in left_out)
    if "mutation" in night.logs:
        yield from ("", "## Mutation testing", "", "```")
        yield from survivors(night.logs["mutation"]) or ["no result"]
        yield "```"


def _failure(night: Night, step: Step) -> Iterator[str]:
    name, result = step.job.name, step.result
    if result is None:
        return
    yield from ("", f"## {name} failed: {result.how}", "", f"- Command: `{result.command}`")
    yield from (f"- Log: `{night.files.get(name, '')}`", "", "```")
    yield from last_lines(night.logs.get(name, ""))
    yield "```"


def last_lines(log: str) -> list[str]:
    """The last lines that are not blank, without colours; of a line that a progress bar wrote again, the last state."""
    lines = [COLOUR.sub("", line.rpartition("\r")[2]).rstrip() for line in log.split("\n")]
    return [line for line in lines if line][-LAST_LINES:]


def survivors(log: str) -> list[str]:
    """The scores of the packages, each survivor that is not explained, and each explanation without a survivor, from the log
    of `make mutation`. Each is a line and the two lines of the change."""
    lines = log.splitlines()
    found: list[str] = []
    for number, line in enumerate(lines):
        if SCORE.match(line):
            found.append(line)
        elif line.startswith(SURVIVORS):
            found += lines[number : number + 3]
    return found
