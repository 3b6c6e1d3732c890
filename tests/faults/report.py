"""Keeps what each program has measured, and writes docs/reliability.md from all of it: the reliability table with a
measured column beside each target. What was never run says so; what failed says how to play it again."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from faults import told
from faults.rows import PROGRAMS, ROWS, Row
from faults.runs import Told

from pagefleet_local.fleet.install import CHECKOUT

KEPT = CHECKOUT / "build/reliability"
HEAD = """\
# Reliability, as measured

Made by `make reliability` from the last runs on one machine; edit `tests/faults/rows.py`, not this page. A *story* is one
service's life (created, a canary promoted, a canary rolled back by a page, scaled, deleted) on a real API server with the
shipped operator behind a fault proxy. A story passes when its end states after each chapter, and the operator's creations and
deletions by the API server's audit log, are those of runs without faults, every chapter ends in time, and every version of
the object that a watch saw keeps the rollout's and the conditions' invariants (rows 13, 15, 16). One failing case plays again
with `PYTHONPATH=tests python -m faults.campaign --private again --seed SEED --case NAME`. Limits are stretched by how much longer
the operator's own start took than in the runs without faults: the machine does other work too.

Not run means that no result is kept, not that the test is missing: the last column says what runs it. A downgrade needs the old
CRD as well as the old operator: an old operator holds still before a spec whose defaults it does not know.

"""


@dataclass(frozen=True)
class Kept:
    name: str
    passed: bool
    figure: str
    day: str


def kept(name: str, passed: bool, figure: str) -> None:
    """Keep a result until the next one of its name."""
    KEPT.mkdir(parents=True, exist_ok=True)
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    (KEPT / f"{name}.json").write_text(json.dumps({"name": name, "passed": passed, "figure": figure, "day": day}))


def results() -> dict[str, Kept]:
    return {path.stem: Kept(**json.loads(path.read_text())) for path in sorted(KEPT.glob("*.json"))}


def page(stories_told: Iterable[Told], found: Mapping[str, Kept], seed: int, cases: Mapping[int, int]) -> str:
    """Markdown. `cases` is how many cases each row has in all."""
    stories = list(stories_told)
    lines = ["| # | tried | passes when | measured | proof |", "|---|---|---|---|---|"]
    for row in ROWS:
        measured = "; ".join(_measured(row, stories, found, cases)) or "not run"
        lacking = f". Not tried: {row.lacks}" if row.lacks else ""
        lines.append(f"| {row.number} | {row.what} | {row.passes} | {measured}{lacking} | {_proof(row)} |")
    failed = [one for one in stories if one.problems or not one.struck]
    lines += ["", f"Seed {seed}. Stories told: {len(stories)} of {sum(cases.values())}; failed: {len(failed)}."]
    lines += [f"- `{one.name}`: {'; '.join(one.problems[:2])[:200] or 'the fault never struck'}" for one in failed]
    return HEAD + "\n".join(lines) + "\n"


def _measured(row: Row, stories: list[Told], found: Mapping[str, Kept], cases: Mapping[int, int]) -> Iterable[str]:
    ours = [one for one in stories if one.row == row.number]
    if row.stories:
        if ours:
            bad = sum(bool(one.problems) or not one.struck for one in ours)
            slowest = max((max(one.seconds.values(), default=0.0) for one in ours), default=0.0)
            yield f"{len(ours)} of {cases.get(row.number, len(ours))} stories, {bad} failed, slowest chapter {slowest:.1f} s"
        else:
            yield f"stories: not run ({cases.get(row.number, 0)} cases)"
    for name in (*(["tests-%d" % row.number] if row.tests else []), *row.programs):  # noqa: UP031
        one = found.get(name)
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
    path.write_text(page(told.known(seed).values(), results(), seed, told.totals(seed)))


def main(
    path: Annotated[Path, typer.Argument(help="the page")] = CHECKOUT / "docs/reliability.md",
    seed: Annotated[int, typer.Option(help="the campaign's")] = 0,
) -> None:
    """Write the page from what is kept, without running anything."""
    write(path, seed)


if __name__ == "__main__":
    typer.run(main)
