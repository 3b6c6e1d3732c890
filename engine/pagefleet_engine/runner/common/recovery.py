"""Recovers from a step that raises: finds and ends the requests that make it raise, and lets the engine go on."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from pagefleet_engine.core.requests import Finish, TokenOutput
from pagefleet_engine.core.scheduler import Scheduler
from pagefleet_engine.core.work import Work, output_of

Result = TypeVar("Result")


def bisected(
    work_items: Sequence[Work], compute: Callable[[list[Work]], Result]
) -> Iterator[tuple[list[Work], Result | Exception]]:
    """Compute the work items; where `compute` raises, each half of them, down to single ones whose result is the error.

    `compute` changes nothing when it raises. A caller that takes a part's result before it asks for the next part
    may end requests: work items whose sequences no longer run are left out.
    """
    running = [work for work in work_items if work.sequence.runs]
    if not running:
        return
    result: Result | Exception
    try:
        result = compute(running)
    except Exception as error:
        result = error
    if isinstance(result, Exception) and len(running) > 1:
        report(f"{len(running)} sequences together raised {result!r}: each half is computed alone")
        del result  # its traceback holds the step's tensors
        half = len(running) // 2
        yield from bisected(running[:half], compute)
        yield from bisected(running[half:], compute)
        return
    yield running, result


def start_over(
    before: Scheduler, after: Scheduler, work_items: Iterable[Work], outputs: Iterable[TokenOutput]
) -> list[TokenOutput]:
    """Move the requests that `before` has not begun to `after`; the returned outputs end all others.

        `work_items` are those of the step that raised, `outputs` its outputs so far: the last output of a sequence may be
    lost.
    """
    ends = after.inherit(before)
    ended = {(one.request_id, one.index) for one in (*outputs, *ends) if one.finish_reason is not None}
    lost = [one.sequence for one in work_items if (one.sequence.request_id, one.sequence.index) not in ended]
    return [*ends, *(output_of(sequence, (), Finish.ERROR) for sequence in lost)]


def report(
    message: str, error: Exception | None = None, request_id: str | None = None, *, level: str = "error"
) -> None:
    """Write one JSON line to stderr, with the error's traceback."""
    trace = None if error is None else "".join(traceback.format_exception(error))
    line = {"time": round(time.time(), 3), "level": level, "message": message, "request": request_id, "trace": trace}
    sys.stderr.write(json.dumps({name: value for name, value in line.items() if value is not None}) + "\n")
    sys.stderr.flush()
