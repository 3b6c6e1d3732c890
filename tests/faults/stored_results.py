"""Results of campaigns, stored as lines in build/campaign. The last line of a case and seed counts.

A result holds while the operator, the contract and the campaign's own files are the same: another state of them has files of
its own, so that no change of code passes by what an earlier code did.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from faults.cases import cases
from faults.outages import batches, names
from faults.runs import StoryResult

from pagefleet_local.base.sources import digest, python_files
from pagefleet_local.fleet.install import CHECKOUT

SOURCES = digest(
    python_files(*(CHECKOUT / name for name in ("operator", "contract", "tests/faults", "tests/support"))), CHECKOUT
)
RESULTS = CHECKOUT / f"build/campaign/{SOURCES}.jsonl"
WRITES = RESULTS.with_suffix(".writes")  # number of writes of a story, which is the number of cases
OUTAGES = 8


def known(seed: int) -> dict[str, StoryResult]:
    """Return the results by the name of the case. A name that is no case any more, because the number of writes of a story
    has changed, is left out."""
    if not RESULTS.exists():
        return {}
    results, present = {}, {name for name, _ in _present(seed)}
    for text in RESULTS.read_text().splitlines():
        line = json.loads(text)
        if line.pop("seed") == seed and line["name"] in present:
            line |= {"problems": tuple(line["problems"]), "struck": tuple(line["struck"])}
            results[line["name"]] = StoryResult(**line)
    return results


@contextmanager
def storing(seed: int, writes: int, *, fresh: bool) -> Iterator[Callable[[StoryResult], None]]:
    """Yield a function that stores a result. `fresh` drops the results of earlier campaigns."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    WRITES.write_text(str(writes))
    with RESULTS.open("w" if fresh else "a") as file:

        def store(result: StoryResult) -> None:
            file.write(json.dumps({"seed": seed, **asdict(result)}) + "\n")
            file.flush()

        yield store


def writes(measured: int) -> int:
    """Return the number of writes of a story, which names the cases: that of an earlier campaign if it is not larger."""
    return min(_earlier() or measured, measured)


def totals(seed: int) -> Counter[int]:
    """Count the cases of each row; empty before any campaign."""
    return Counter(row for _, row in _present(seed))


def _present(seed: int) -> Iterator[tuple[str, int]]:
    """Yield the names and rows of the cases, among them a story at each point of an outage, and each outage's requests."""
    if earlier := _earlier():
        yield from ((case.name, case.row) for case in cases(earlier, seed))
        yield from ((name, OUTAGES) for daemon, group in batches(earlier, seed) for name in names(daemon, group))


def _earlier() -> int | None:
    return int(WRITES.read_text()) if WRITES.exists() else None
