"""Work on tables of thousands of entries, cut into steps. Pure: whoever drives the steps lets the event loop answer requests between them.

A function that returns `Steps` does its work while it is iterated: `for _ in steps: await asyncio.sleep(0)`, or `finish(steps)` where
nothing else wants the time. Between two steps the tables may change.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import islice
from typing import TypeVar

STEP_ENTRIES = 500  # of one table: a tenth of a millisecond, and up to one where each entry is looked at closely

Entry = TypeVar("Entry")
Value = TypeVar("Value")
Steps = Iterator[None]


def parts(entries: Iterable[Entry], size: int = STEP_ENTRIES) -> Iterator[list[Entry]]:
    """Yield the entries that there are now, so many at a time."""
    rest = iter(list(entries))
    while part := list(islice(rest, size)):
        yield part


def forget(table: dict[Entry, Value] | set[Entry], there: Container[Entry]) -> Steps:
    """Remove the entries whose keys are not in `there`, which each step asks anew: what comes in between stays."""
    for part in parts(table):
        gone = [key for key in part if key not in there]
        if isinstance(table, set):
            table.difference_update(gone)
        else:
            for key in gone:
                table.pop(key, None)
        yield


def finish(steps: Iterable[object]) -> None:
    """Take all steps at once."""
    for _ in steps:
        pass
