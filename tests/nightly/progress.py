"""Shows how far a night is and when it ends: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from nightly.plan import Result, Step, left_seconds
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

PLAIN_INTERVAL = 600.0  # seconds between two lines of one job


def ends(now: datetime.datetime, seconds: float) -> str:
    """When all is done, as in "about 04:10, in 3 h 12 min"."""
    hours, minutes = divmod(round(seconds / 60), 60)
    length = f"{hours} h {minutes} min" if hours else f"{minutes} min"
    return f"about {now + datetime.timedelta(seconds=seconds):%H:%M}, in {length}"


def minutes(seconds: float) -> str:
    """Minutes, with a digit after the point where they are few."""
    return f"{seconds / 60:.{0 if seconds >= 120 else 1}f} min"


class Shown:
    """The jobs that run, one after the other."""

    def __init__(self, console: Console, steps: Sequence[Step]) -> None:
        self._console = console
        self._waiting = [step for step in steps if step.runs]
        self._count, self._done, self._printed = len(self._waiting), 0.0, 0.0
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=left_seconds(self._waiting, 0.0) or 1.0, text="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def begins(self, log: str) -> None:
        step, number = self._waiting[0], self._count - len(self._waiting) + 1
        self._printed = 0.0
        length = minutes(step.expected_seconds)
        self._say(f"{step.job.name} ({number} of {self._count}): {step.job.shows}; {length}; {log}")
        self.runs(0.0)

    def runs(self, elapsed: float) -> None:
        """Show that the first of the waiting jobs has run for so long."""
        step = self._waiting[0]
        text = f"{minutes(elapsed)} of {minutes(step.expected_seconds)}; all done {self._ends(elapsed)}"
        share = min(elapsed, step.expected_seconds)
        self._bar.update(self._task, description=step.job.name, completed=self._done + share, text=text)
        if not self._console.is_terminal and elapsed - self._printed >= PLAIN_INTERVAL:
            self._printed = elapsed
            self._say(f"{step.job.name}: {text}")

    def ended(self, result: Result) -> None:
        step = self._waiting.pop(0)
        self._done += step.expected_seconds
        words = "passed" if result.passed else f"FAILED: {result.how}"
        rest = f"; all done {self._ends(0.0)}" if self._waiting else ""
        self._say(f"{result.name}: {words} after {minutes(result.seconds)}{rest}")

    def _ends(self, elapsed: float) -> str:
        return ends(datetime.datetime.now(), left_seconds(self._waiting, elapsed))

    def _say(self, text: str) -> None:
        self._console.print(f"{datetime.datetime.now():%H:%M:%S} {text}", markup=False)
