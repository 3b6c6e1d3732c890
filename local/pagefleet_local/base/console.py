"""Progress for work that takes a while: a spinner on a terminal, plain lines elsewhere, each stage with its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

CONSOLE = Console(highlight=False, soft_wrap=True)
Report = Callable[[str], None]
PLAIN_INTERVAL = 15.0


@contextmanager
def stage(name: str) -> Iterator[Report]:
    """A named piece of work. Yields a function that reports how far it is."""
    began = time.monotonic()
    if CONSOLE.is_terminal:
        with CONSOLE.status(name) as status:
            yield lambda text: status.update(f"{name}: {text} ({time.monotonic() - began:.0f} s)")
    else:
        CONSOLE.print(f"- {name} ...")
        last = [began]

        def report(text: str) -> None:
            if time.monotonic() - last[0] >= PLAIN_INTERVAL:
                last[0] = time.monotonic()
                CONSOLE.print(f"  {name}: {text} ({last[0] - began:.0f} s)")

        yield report
    CONSOLE.print(f"- {name}: done in {time.monotonic() - began:.1f} s")
