"""Plays the cells on several processes and judges their results by the targets."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from bench.rolloutbench import comparing, intervals, traces
from bench.rolloutbench.parts import MIN_FOUND, Cell
from bench.rolloutbench.scenario import Scenario
from bench.rolloutbench.stored import Stored
from bench.rolloutbench.world import Result, World

# Of fewer rollouts a share is missed only when chance cannot explain it: when its whole interval is on the wrong side.
ENOUGH = 300
# A cell whose canary is good is looked at twice: after so many rollouts, and after all of them. None rolled back at the first look shows
# that the share is below 1 %, and ends the cell. Each look has half of the error level, so that both together have an interval of 95 %
# (Bonferroni, as in group-sequential tests: Jennison & Turnbull, "Group Sequential Methods", 2000, section 1.3).
FIRST_LOOK, LOOKS = 450, 2
PROGRESS_SECONDS = 10.0

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """A target with what was measured; `low` and `high` are its interval of 95 %."""

    what: str
    value: float
    low: float
    high: float
    limit: float
    met: bool


@dataclass(frozen=True)
class Figures:
    """A cell's results."""

    name: str
    rollouts: int
    rolled_back: int
    promoted: int
    reasons: dict[str, int]
    requests: tuple[float, float, float, float] | None  # median, its interval, and the 95th percentile
    seconds: tuple[float, float, float, float] | None
    checks: tuple[Check, ...]
    wall_seconds: float

    def document(self) -> dict[str, Any]:
        return asdict(self)


def play(job: tuple[Scenario, int]) -> tuple[int, Result]:
    """Play one rollout and return its seed and result; the work of a process of the pool."""
    gc.collect()
    gc.disable()  # nothing of a world is garbage before its end
    try:
        return job[1], World(*job).play()
    finally:
        gc.enable()


def traced(job: tuple[Scenario, int]) -> traces.Trace:
    """Play one rollout by the schedule, with a baseline group; the work of a process of the pool."""
    return traces.play(replace(job[0], baseline=True), job[1])


class Campaign:
    """A pool of processes, and the progress on standard error. Rollouts that are `stored` are not played again."""

    def __init__(
        self, processes: int, rollouts: int | None, quick: bool, total: int, stored: Stored | None = None,
        every: bool = False,
    ) -> None:  # fmt: skip
        """`every`: all rollouts of each cell, whatever the first look shows."""
        self._stored, self._every = stored, every
        self._pool = multiprocessing.Pool(processes) if processes > 1 else None
        self._rollouts, self._quick = rollouts, quick
        self._total, self._done, self._began = total, 0, time.monotonic()
        self._shown = self._began

    def close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()

    def count(self, cell: Cell) -> int:
        return count(cell, self._rollouts, self._quick)

    def compare(self, scenario: Scenario, rollouts: int) -> list[dict[str, object]]:
        """Let everybody judge the traces of a scenario, and sum up by judge."""
        jobs = [(scenario, seed) for seed in range(rollouts)]
        return comparing.rows([one for own in self._play(scenario.name, jobs, comparing.judged) for one in own])

    def export(self, scenario: Scenario, rollouts: int, folder: Path) -> int:
        """Write the traces of a scenario, with a baseline group; return how many there are."""
        jobs = [(scenario, seed) for seed in range(rollouts)]
        return sum(1 for trace in self._play(scenario.name, jobs, traced) if traces.save(trace, folder))

    def figures(self, cell: Cell) -> Figures:
        """Play a cell."""
        began, played, results = time.monotonic(), 0, list[Result]()
        for until in self._looks(cell):
            results += self._results(cell, range(played, until))
            played = until
            if until == FIRST_LOOK and not any(one.outcome == "RolledBack" for one in results):
                break
        self._total -= self.count(cell) - played
        return summed(cell, results, time.monotonic() - began)

    def _looks(self, cell: Cell) -> tuple[int, ...]:
        """The numbers of rollouts after which the cell is looked at."""
        count = self.count(cell)
        asked = self._rollouts is not None or self._every
        return (count,) if asked or cell.target.false is None or count <= FIRST_LOOK else (FIRST_LOOK, count)

    def _results(self, cell: Cell, seeds: range) -> list[Result]:
        """The results of these seeds, stored ones first."""
        scenario, results, jobs = cell.scenario, list[Result](), list[tuple[Scenario, int]]()
        for seed in seeds:
            known = self._stored.get(scenario, seed) if self._stored else None
            if known is None:
                jobs.append((scenario, seed))
            else:
                results.append(known)
        self._total -= len(results)
        for seed, result in self._play(cell.name, jobs, play):
            results.append(result)
            if self._stored:
                self._stored.put(scenario, seed, result)
        return results

    def _play(
        self, name: str, jobs: list[tuple[Scenario, int]], work: Callable[[tuple[Scenario, int]], T]
    ) -> Iterator[T]:
        played = map(work, jobs) if self._pool is None else self._pool.imap_unordered(work, jobs)
        for result in played:
            self._done += 1
            now = time.monotonic()
            if now > self._shown + PROGRESS_SECONDS:
                self._shown = now
                rate = self._done / (now - self._began)
                left = (self._total - self._done) / rate
                text = (
                    f"  {self._done} of {self._total} rollouts, {rate:.2f}/s, about {left / 60:.0f} min left ({name})"
                )
                print(text, file=sys.stderr, flush=True)
            yield result


def count(cell: Cell, rollouts: int | None, quick: bool) -> int:
    """Return how many rollouts of a cell are played."""
    if rollouts is not None:
        return rollouts
    return cell.quick if quick else cell.rollouts


def summed(cell: Cell, results: Sequence[Result], wall: float) -> Figures:
    """Sum a cell's results up and compare them with its target."""
    fired = [result for result in results if result.outcome == "RolledBack"]
    reasons: dict[str, int] = {}
    for result in fired:
        reasons[result.reason] = reasons.get(result.reason, 0) + 1
    promoted = sum(result.outcome == "Promoted" for result in results)
    requests, seconds = _spread([one.requests for one in fired]), _spread([one.seconds for one in fired])
    checks = tuple(_checks(cell, results, requests, seconds))
    return Figures(cell.name, len(results), len(fired), promoted, reasons, requests, seconds, checks, wall)


def _spread(values: Sequence[float]) -> tuple[float, float, float, float] | None:
    ordered = sorted(values)
    if not ordered:
        return None
    return (intervals.quantile(ordered, 0.5), *intervals.middle(ordered), intervals.quantile(ordered, 0.95))


def _checks(
    cell: Cell,
    results: Sequence[Result],
    requests: tuple[float, float, float, float] | None,
    seconds: tuple[float, float, float, float] | None,
) -> Iterator[Check]:
    target, count = cell.target, len(results)
    fired = sum(result.outcome == "RolledBack" for result in results)
    if target.false is not None:
        yield _at_most("rolled back", fired, count, target.false)
    if target.promoted is not None:
        promoted = sum(result.outcome == "Promoted" for result in results)
        yield _at_most("promoted", promoted, count, target.promoted)
    if target.found is not None:
        yield _at_least("rolled back", fired, count, target.found)
    if target.within is not None:
        early = sum(one.outcome == "RolledBack" and one.requests <= target.within for one in results)
        yield _at_least(f"rolled back within {target.within:,} canary requests", early, count, MIN_FOUND)
    for what, spread, limit in (
        ("median canary requests", requests, target.requests),
        ("median seconds", seconds, target.seconds),
    ):
        if limit is not None and spread is not None:
            yield Check(what, *spread[:3], limit, spread[0] <= limit)


def _at_most(what: str, hits: int, count: int, limit: float) -> Check:
    low, high = intervals.share(hits, count, intervals.LEVEL / LOOKS)
    value = hits / max(count, 1)
    return Check(what, value, low, high, limit, value <= limit or (limit > 0 and count < ENOUGH and low <= limit))


def _at_least(what: str, hits: int, count: int, limit: float) -> Check:
    low, high = intervals.share(hits, count)
    value = hits / max(count, 1)
    return Check(what, value, low, high, limit, value >= limit or (count < ENOUGH and high >= limit))
