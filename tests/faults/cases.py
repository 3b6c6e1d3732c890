"""The cases of the campaign: each has a row of the reliability table, a name that replays it, and a script.

Each run makes its own script, because a script remembers whether it has struck.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from faults.edits import Edits
from faults.proxy import Call, Fault, Script, Watching

ANSWERS = (409, 422, 429, 500, 503, 403)
SERVICES = "/inferenceservices"
THINNED_SECONDS = 4.0
EDITS = 3  # by a user, in one story


@dataclass(frozen=True)
class Case:
    """`slack`: seconds that a chapter may take longer than without the fault."""

    row: int
    name: str
    script: Callable[[], Script]
    slack: float = 30.0


def reads_children(call: Call) -> bool:
    return call.method == "GET" and not call.watch and "labelSelector" in call.query


def once(fault: Fault, applies: Callable[[Call], bool]) -> Script:
    """`fault` for the first call that it applies to."""
    struck = False

    def script(call: Call) -> Fault | None:
        nonlocal struck
        if struck or not applies(call):
            return None
        struck = True
        return fault

    return script


def at_write(number: int, fault: Fault) -> Callable[[], Script]:
    return lambda: once(fault, lambda call: call.write == number)


def at_each(numbers: tuple[int, ...], faults: tuple[Fault, ...]) -> Callable[[], Script]:
    """Make a script for several writes, each with its fault."""
    table = dict(zip(numbers, faults, strict=True))
    return lambda: lambda call: table.get(call.write) if call.write else None


def at_watch(path: str, nth: int, fault: Fault) -> Callable[[], Script]:
    """Make a script for the nth watch (from 1) of a collection."""

    def make() -> Script:
        matching = 0

        def script(call: Call) -> Fault | None:
            nonlocal matching
            if not call.watch or not call.path.endswith(path):
                return None
            matching += 1
            return fault if matching == nth else None

        return script

    return make


def old_lists_after(number: int, lists: int = 8) -> Callable[[], Script]:
    """Make a script that kills the operator after a write. The next operator's first lists of children are answered with
    the first answers of the run."""

    def make() -> Script:
        killed, served = False, 0

        def script(call: Call) -> Fault | None:
            nonlocal killed, served
            if call.write == number and not killed:
                killed = True
                return Fault(kill_after=True)
            if not killed or served >= lists or not reads_children(call):
                return None
            served += 1
            return Fault(old_list=True)

        return script

    return make


def cases(writes: int, seed: int = 0) -> Iterator[Case]:
    """Yield all cases for a story of so many writes; the same for the same seed."""
    chance = random.Random(seed)
    before, after = Fault(kill_before=True), Fault(kill_after=True)
    for number in range(1, writes + 1):
        yield Case(2, f"kill-before-write-{number}", at_write(number, before))
        yield Case(2, f"kill-after-write-{number}", at_write(number, after))
    for _ in range(40):
        # The second write may be one that only the first fault makes necessary.
        first, second = sorted(chance.sample(range(1, writes + 3), 2))
        pair = (min(first, writes), second)
        faults = tuple(chance.choice((before, after)) for _ in pair)
        words = "-".join(
            f"{number}{'a' if fault.kill_after else 'b'}" for number, fault in zip(pair, faults, strict=True)
        )
        yield Case(3, f"double-kill-{words}", at_each(pair, faults))
    for number in sorted(chance.sample(range(1, writes + 1), min(20, writes))):
        yield Case(4, f"old-lists-after-write-{number}", old_lists_after(number))
    for path in (SERVICES, "/deployments", "/pods"):
        for events in (0, 1, 3, 7, 15, 30):
            fault = Fault(thinned=THINNED_SECONDS, events=events)
            yield Case(5, f"thinned-{path[1:]}-after-{events}", at_watch(path, 1, fault))
    for how in Watching:
        for events in (0, 1, 4):
            for path in (SERVICES, "/pods"):
                # kopf's guard ends a silent watch after its client timeout, 70 s.
                slack = 75.0 if how is Watching.SILENT else 5.0
                name = f"watch-{how.value}-{path[1:]}-{events}"
                yield Case(6, name, at_watch(path, 1, Fault(watching=how, events=events)), slack)
    for number in sorted(chance.sample(range(1, writes + 1), min(12, writes))):
        for code in ANSWERS:
            yield Case(7, f"answer-{code}-at-write-{number}", at_write(number, answered(code)))
        yield Case(7, f"hang-after-write-{number}", at_write(number, Fault(hang_after=True)))
    for what, fault in edited():
        numbers = tuple(sorted(chance.sample(range(1, writes + 1), min(EDITS, writes))))
        words = "-".join(map(str, numbers))
        yield Case(7, f"edits-{what}-at-writes-{words}", partial(Edits, numbers, fault), 30.0 * EDITS)


def answered(code: int) -> Fault:
    return Fault(answer=(code, {"Retry-After": "1"} if code == 429 else {}))


def edited() -> Iterator[tuple[str, Fault]]:
    """Return faults of a write while a user edits: it is refused, lost after its commit, or comes through."""
    for code in ANSWERS:
        yield str(code), answered(code)
    yield "hang", Fault(hang_after=True)
    yield "kill-before", Fault(kill_before=True)
    yield "kill-after", Fault(kill_after=True)
    yield "only", Fault()


def subset(writes: int, seed: int, most: int) -> list[Case]:
    """Choose a few cases of every row by seed, few enough for `make test`."""
    chance = random.Random(seed)
    everything = list(cases(writes, seed))
    rows = sorted({case.row for case in everything})
    chosen: list[Case] = []
    for row in rows:
        of_row = [case for case in everything if case.row == row and case.slack <= 30]
        chosen += chance.sample(of_row, max(1, most // len(rows)))
    return chosen
