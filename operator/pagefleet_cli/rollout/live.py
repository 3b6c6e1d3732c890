"""A rollout's progress as a rich picture: steps, revisions, signals, verdict. Pure: a Progress in, a renderable out."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pagefleet_cli.base.words import milliseconds, span
from pagefleet_cli.rollout.progress import End, Place, Progress, Side

MARKS = {Place.DONE: ("v", "green"), Place.PRESENT: (">", "bold yellow"), Place.COMING: (" ", "dim")}
COLOURS = {"Passed": "green", "Regressed": "red", "Inconclusive": "yellow"}
ENDS = {End.PROMOTED: "green", End.ROLLED_BACK: "red", End.UNDER_WAY: "yellow"}


def picture(progress: Progress, note: str = "", wide: bool = False) -> RenderableType:
    """`note` is an error of the watch, "" when there is none. `wide` adds the guard's message for each signal."""
    head = Text.assemble((f"{progress.namespace}/{progress.name}  ", "bold"), (progress.phase, ENDS[progress.end]))
    if progress.paused:
        head.append(f"  paused by {progress.paused}", "yellow")
    parts: list[RenderableType] = [head, _steps(progress), _revisions(progress)]
    if progress.signals:
        parts.append(_signals(progress, wide))
    if progress.outcome:
        parts.append(Text.assemble((progress.outcome, COLOURS.get(progress.outcome, "")), f"  {progress.verdict}"))
    if progress.end is End.UNDER_WAY:
        when = "is not known" if progress.expected is None else f"in {span(progress.expected)} at the earliest"
        parts.append(Text(f"next move {when}", "dim"))
    if note:
        parts.append(Text(note, "red"))
    return Group(*parts)


def _steps(progress: Progress) -> Text:
    line = Text("steps  ")
    for number, step in enumerate(progress.steps, 1):
        mark, style = MARKS[step.place]
        line.append(f"[{mark}] {number}: {step.text}", style)
        if step.place is Place.PRESENT and progress.end is End.UNDER_WAY:
            line.append(f" held {span(progress.held)}", style)
        line.append("  ")
    line.append(
        "[v] promoted" if progress.end is End.PROMOTED else "[ ] promoted",
        "green" if progress.end is End.PROMOTED else "dim",
    )
    return line


def _revisions(progress: Progress) -> Table:
    table = Table("REVISION", "ROLE", "WEIGHT", "READY", "DESIRED", box=None)
    for role, name in (("stable", progress.stable), ("canary", progress.canary)):
        if name:
            ready, desired = progress.replicas.get(name, (0, 0))
            table.add_row(name, role, f"{progress.weights.get(name, 0)} %", str(ready), str(desired))
            if name in progress.prefill:
                table.add_row(name, "prefill pods", "", *map(str, progress.prefill[name]))
    return table


def _signals(progress: Progress, wide: bool) -> Table:
    table = Table(
        "SIGNAL", "REVISION", "SAMPLES", "P50", "P95", "INTERVAL", "VERDICT", *(["MESSAGE"] if wide else []), box=None
    )
    for signal in progress.signals:
        for role, side in (("stable", signal.stable), ("canary", signal.canary)):
            first = role == "stable"
            verdict = Text("" if first else signal.outcome, COLOURS.get(signal.outcome, ""))
            samples = str(side.samples) if side.samples or not first else "-"
            cells = (Text(signal.name if first else ""), role, samples, milliseconds(side.p50))
            message = [Text("" if first else signal.message)] if wide else []
            table.add_row(*cells, milliseconds(side.p95), interval(side), verdict, *message)
    return table


def interval(side: Side) -> str:
    if side.low is None and side.high is None:
        return "-"
    high = "no bound yet" if side.high is None else milliseconds(side.high)
    return f"{milliseconds(side.low)} .. {high}"
