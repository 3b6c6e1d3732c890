"""What campaigns have told, kept as lines in build/: the last word on each case and seed counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from faults.cases import cases
from faults.outages import batches, names
from faults.runs import Told

from pagefleet_local.fleet.install import CHECKOUT

KEPT = CHECKOUT / "build/campaign.jsonl"
WRITES = CHECKOUT / "build/campaign.writes"  # how many writes a story takes, which is how many cases there are
OUTAGES = 8


def known(seed: int) -> dict[str, Told]:
    """By the case's name. What is no case any more, since a story's number of writes has changed, is left out."""
    if not KEPT.exists():
        return {}
    found, present = {}, {name for name, _ in _present(seed)}
    for text in KEPT.read_text().splitlines():
        line = json.loads(text)
        if line.pop("seed") == seed and line["name"] in present:
            line |= {"problems": tuple(line["problems"]), "struck": tuple(line["struck"])}
            found[line["name"]] = Told(**line)
    return found


@contextmanager
def keeping(seed: int, writes: int, *, fresh: bool) -> Iterator[Callable[[Told], None]]:
    """`fresh`: what was told before is forgotten."""
    KEPT.parent.mkdir(exist_ok=True)
    WRITES.write_text(str(writes))
    with KEPT.open("w" if fresh else "a") as file:

        def keep(told: Told) -> None:
            file.write(json.dumps({"seed": seed, **asdict(told)}) + "\n")
            file.flush()

        yield keep


def writes(found: int) -> int:
    """A story's writes, by which the cases are named: as an earlier campaign had it where there still are so many."""
    return min(_earlier() or found, found)


def totals(seed: int) -> Counter[int]:
    """How many cases each row has; empty before any campaign."""
    return Counter(row for _, row in _present(seed))


def _present(seed: int) -> Iterator[tuple[str, int]]:
    """The cases' names and rows: a story at each point of an outage, and each outage's requests, beside the others."""
    if earlier := _earlier():
        yield from ((case.name, case.row) for case in cases(earlier, seed))
        yield from ((name, OUTAGES) for daemon, group in batches(earlier, seed) for name in names(daemon, group))


def _earlier() -> int | None:
    return int(WRITES.read_text()) if WRITES.exists() else None
