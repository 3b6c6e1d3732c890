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


def picture(seen: Progress, note: str = "", wide: bool = False) -> RenderableType:
    """`note` is what went wrong while watching, "" when nothing did. `wide`: what the guard says of each signal."""
    head = Text.assemble((f"{seen.namespace}/{seen.name}  ", "bold"), (seen.phase, ENDS[seen.end]))
    if seen.paused:
        head.append(f"  held up by {seen.paused}", "yellow")
    parts: list[RenderableType] = [head, _steps(seen), _revisions(seen)]
    if seen.signals:
        parts.append(_signals(seen, wide))
    if seen.outcome:
        parts.append(Text.assemble((seen.outcome, COLOURS.get(seen.outcome, "")), f"  {seen.verdict}"))
    if seen.end is End.UNDER_WAY:
        when = "is not known" if seen.expected is None else f"in {span(seen.expected)} at the earliest"
        parts.append(Text(f"next move {when}", "dim"))
    if note:
        parts.append(Text(note, "red"))
    return Group(*parts)


def _steps(seen: Progress) -> Text:
    line = Text("steps  ")
    for number, step in enumerate(seen.steps, 1):
        mark, style = MARKS[step.place]
        line.append(f"[{mark}] {number}: {step.text}", style)
        if step.place is Place.PRESENT and seen.end is End.UNDER_WAY:
            line.append(f" held {span(seen.held)}", style)
        line.append("  ")
    line.append(
        "[v] promoted" if seen.end is End.PROMOTED else "[ ] promoted", "green" if seen.end is End.PROMOTED else "dim"
    )
    return line


def _revisions(seen: Progress) -> Table:
    table = Table("REVISION", "ROLE", "WEIGHT", "READY", "DESIRED", box=None)
    for role, name in (("stable", seen.stable), ("canary", seen.canary)):
        if name:
            ready, desired = seen.replicas.get(name, (0, 0))
            table.add_row(name, role, f"{seen.weights.get(name, 0)} %", str(ready), str(desired))
    return table


def _signals(seen: Progress, wide: bool) -> Table:
    table = Table(
        "SIGNAL", "REVISION", "SAMPLES", "P50", "P95", "INTERVAL", "VERDICT", *(["MESSAGE"] if wide else []), box=None
    )
    for signal in seen.signals:
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
