"""What campaigns have told, kept as lines in build/: the last word on each case and seed counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from faults.cases import cases
from faults.outages import POINTS, batches
from faults.runs import Told

from pagefleet_local.fleet.install import CHECKOUT

KEPT = CHECKOUT / "build/campaign.jsonl"
WRITES = CHECKOUT / "build/campaign.writes"  # how many writes a story takes, which is how many cases there are
OUTAGES = 8


def known(seed: int) -> dict[str, Told]:
    """By the case's name."""
    if not KEPT.exists():
        return {}
    found = {}
    for text in KEPT.read_text().splitlines():
        line = json.loads(text)
        if line.pop("seed") == seed:
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


def totals(seed: int) -> Counter[int]:
    """How many cases each row has; empty before any campaign."""
    if not WRITES.exists():
        return Counter()
    writes = int(WRITES.read_text())
    found = Counter(case.row for case in cases(writes, seed))
    found[OUTAGES] = POINTS + len(batches(writes, seed))  # a story at each point, and each outage's requests
    return found
