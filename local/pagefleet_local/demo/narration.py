"""Prints the demo's narration: rich on a terminal, plain lines elsewhere. Decides nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.panel import Panel
from rich.status import Status as Spinner
from rich.syntax import Syntax
from rich.table import Table

PLAIN_INTERVAL = 5.0


class SceneFailed(Exception):
    """A check of a scene failed; the demo exits non-zero with this message."""


class Narrator:
    """Prints scenes, commands, facts and a live line. Not for concurrent scenes."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self._start = time.monotonic()
        self._spinner: Spinner | None = None
        self._last_live = ("", 0.0)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def scene(self, number: int, title: str) -> None:
        self.quiet()
        heading = f"{number}. {title}   [dim]({self.elapsed:.0f} s)[/dim]"
        if self.console.is_terminal:
            self.console.print()
            self.console.print(Panel(heading, border_style="cyan", expand=False))
        else:
            self.console.print(f"\n=== {heading}")

    def say(self, text: str) -> None:
        self.quiet()
        self.console.print(text)

    def command(self, text: str) -> None:
        self.say(f"[bold]$[/bold] {text}")

    def output(self, text: str, limit: int = 12) -> None:
        """Print a command's output, indented, at most `limit` lines."""
        self.quiet()
        lines = text.strip().splitlines()
        for line in lines[:limit]:
            self.console.print(f"  {line}", markup=False, style="dim")
        if len(lines) > limit:
            self.console.print(f"  … {len(lines) - limit} more lines", style="dim")

    def yaml(self, text: str) -> None:
        self.quiet()
        if self.console.is_terminal:
            self.console.print(Syntax(text.rstrip(), "yaml", background_color="default"))
        else:
            self.output(text, limit=40)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        self.quiet()
        table = Table(title=title, title_justify="left", title_style="bold")
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

    def live(self, text: str) -> None:
        """A line that replaces itself on a terminal; elsewhere printed when it changed and 5 s have passed."""
        if self.console.is_terminal:
            if self._spinner is None:
                self._spinner = self.console.status(text)
                self._spinner.start()
            self._spinner.update(text)
            return
        last, when = self._last_live
        if text != last and self.elapsed - when >= PLAIN_INTERVAL:
            self.console.print(f"  {self.elapsed:5.0f} s  {text}")
            self._last_live = (text, self.elapsed)

    def quiet(self) -> None:
        """End the live line, if one is shown."""
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None

    def check(self, holds: bool, claim: str) -> None:
        """State a claim with its outcome. Raises SceneFailed when it does not hold."""
        self.quiet()
        if not holds:
            self.console.print(f"[red]FAILED[/red]  {claim}")
            raise SceneFailed(claim)
        self.console.print(f"[green]holds[/green]   {claim}")
