"""Store the measurement of each program, and write docs/reliability.md from all of them.

The page is the reliability table with a measured column beside each limit. A row that was never run is marked "not run";
a failed case is listed by the name that runs it again."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from faults import stored_results
from faults.rows import PROGRAMS, ROWS, Row
from faults.runs import StoryResult

from pagefleet_local.fleet.install import CHECKOUT

RESULTS = Path(os.environ.get("PAGEFLEET_RELIABILITY") or CHECKOUT / "build/reliability")
HEAD = """\
# Reliability, as measured

`make reliability` makes this page from the last runs on one machine; edit `tests/faults/rows.py`, not this page. Each row
names a fault or a load, the limit at which it passes, the last measurement, and the test or program that measures it.

A *story* is one service's life on a real API server, with the shipped operator behind a fault proxy: the service is created, a
canary is promoted, a canary is rolled back by an alert of severity `page`, the service is scaled and deleted. Each of these
parts is a chapter. Row 2 has five more stories (`tests/faults/lives.py`): what people do by hand; replicas with a warm spare to zero
and back; canaries that the guard judges by requests through a real gateway; replicas of two pods each, made from a LeaderWorkerSet;
traffic split by an HTTPRoute. A story passes when all of this holds:

- Its end states after each chapter are those of runs without faults. So are the numbers of the operator's creations and
  deletions, by the API server's audit log.
- Every chapter ends within its time limit. The limit is the chapter's time without faults plus the seconds of its row (30 where it names
  none), which hold every restart of the operator. The machine does other work too: the time without faults is stretched when an
  interpreter's imports take longer than they did in the runs without faults.
- Every version of the object that a watch saw keeps the invariants of the rollout and the conditions (rows 13, 15, 16).

To run one failing case again: `PYTHONPATH=tests python -m faults.campaign --private again --seed SEED --case NAME`.

"not run" means that no result is stored, not that the test is missing: the last column names the test or program. A downgrade
needs the old CRD as well as the old operator, because an old operator makes no change when a spec has defaults that it does
not know.

"""


@dataclass(frozen=True)
class Measurement:
    name: str
    passed: bool
    figure: str
    day: str


def store(name: str, passed: bool, figure: str) -> None:
    """Store a result; it replaces the last one of the same name."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    (RESULTS / f"{name}.json").write_text(json.dumps({"name": name, "passed": passed, "figure": figure, "day": day}))


def results() -> dict[str, Measurement]:
    return {path.stem: Measurement(**json.loads(path.read_text())) for path in sorted(RESULTS.glob("*.json"))}


def page(
    results_of_stories: Iterable[StoryResult],
    measurements: Mapping[str, Measurement],
    seed: int,
    cases: Mapping[int, int],
) -> str:
    """Return the page as Markdown. `cases` is the number of cases of each row."""
    stories = list(results_of_stories)
    lines = ["| # | fault or load | passes when | measured | proof |", "|---|---|---|---|---|"]
    for row in ROWS:
        measured = "; ".join(_measured(row, stories, measurements, cases)) or "not run"
        lacking = f". Not covered: {row.lacks}" if row.lacks else ""
        lines.append(f"| {row.number} | {row.what} | {row.passes} | {measured}{lacking} | {_proof(row)} |")
    failed = [one for one in stories if one.problems or not one.struck]
    lines += ["", f"Seed {seed}. Stories run: {len(stories)} of {sum(cases.values())}; failed: {len(failed)}."]
    lines += [f"- `{one.name}`: {'; '.join(one.problems[:2])[:200] or 'the fault never struck'}" for one in failed]
    return HEAD + "\n".join(lines) + "\n"


def _measured(
    row: Row, stories: list[StoryResult], measurements: Mapping[str, Measurement], cases: Mapping[int, int]
) -> Iterable[str]:
    ours = [one for one in stories if one.row == row.number]
    if row.stories:
        if ours:
            bad = sum(bool(one.problems) or not one.struck for one in ours)
            slowest = max((max(one.seconds.values(), default=0.0) for one in ours), default=0.0)
            yield f"{len(ours)} of {cases.get(row.number, len(ours))} stories, {bad} failed, slowest chapter {slowest:.1f} s"
        else:
            yield f"stories: not run ({cases.get(row.number, 0)} cases)"
    for name in (*(["tests-%d" % row.number] if row.tests else []), *row.programs):  # noqa: UP031
        one = measurements.get(name)
        if one is None:
            yield f"{'tests' if name.startswith('tests-') else name}: not run"
        else:
            yield f"{'' if one.passed else '**failed**: '}{one.figure} ({one.day})"


def _proof(row: Row) -> str:
    parts = ["`make campaign`"] if row.stories else []
    if row.tests is not None:
        parts += sorted({f"`{path.partition('::')[0]}`" for path in row.tests.paths if not path.startswith("-")})
        parts += [f"{name}={value}" for name, value in row.tests.more.items()]
    parts += [f"`{PROGRAMS[name]}`" for name in row.programs]
    return ", ".join(parts)


def write(path: Path, seed: int) -> None:
    path.write_text(page(stored_results.known(seed).values(), results(), seed, stored_results.totals(seed)))


def main(
    path: Annotated[Path, typer.Argument(help="the page")] = CHECKOUT / "docs/reliability.md",
    seed: Annotated[int, typer.Option(help="seed of the campaign")] = 0,
) -> None:
    """Write the page from the stored results, without running anything."""
    write(path, seed)


if __name__ == "__main__":
    typer.run(main)
