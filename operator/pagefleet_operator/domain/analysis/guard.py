"""Judges a canary on requests against the concurrent stable: Regressed, Passed or Inconclusive, with the numbers.

Each signal is judged for itself (`guard_latency`, `guard_errors`, `guard_limits`) and the worst outcome is the
guard's. By whom a signal is measured is said by the spec (`sources`), and by every verdict. No data is never a pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pagefleet_operator.domain.analysis import errors as guard_errors
from pagefleet_operator.domain.analysis import latency, limits, sources
from pagefleet_operator.domain.analysis.fold import Fold, Scope, Test
from pagefleet_operator.domain.analysis.fold_memo import START, folded
from pagefleet_operator.domain.analysis.verdict import Judged, Outcome, measured_by, unknown, worst
from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard
from pagefleet_operator.domain.spec.schema.guard_signals import Source
from pagefleet_operator.domain.status.observation import Observation, Slice
from pagefleet_operator.domain.status.status import BaselineRecord

__all__ = ["Judged", "Outcome", "Question", "assess"]
EPOCH = 3600.0  # evidence begins at whole hours, each with a level of its own
MISSED = 60.0  # seconds at the beginning that may lack data and still count as complete


@dataclass(frozen=True)
class Question:
    """What is judged: the canary's traffic since `since` (None: it has none of its own). `copies`: of mirrored requests.
    `baseline`: there is no concurrent stable, and this is what it was like. `low_since`: short of pages since then."""

    stable: str
    canary: str
    since: float | None
    now: float
    copies: bool = False
    baseline: tuple[BaselineRecord, ...] = ()
    after: bool = False
    low_since: float | None = None


def assess(seen: Observation, guard: Guard, question: Question) -> Judged | None:
    """The verdict; None when there is nothing to ask."""
    judged: list[Judged] = []
    if guard.free_pages is not None:
        judged.append(limits.pages(seen, guard.free_pages, question.canary, question.low_since, question.now))
    judged += [limits.gate(gate, seen.gates.get(gate.name)) for gate in guard.gates]
    if question.since is not None:
        judged += _measured(seen, guard, question, question.since)
    return worst(judged) if judged else None


def _measured(seen: Observation, guard: Guard, question: Question, since: float) -> list[Judged]:
    """The signals that are measured on requests."""
    count = len(guard.latency) + (guard.max_error_rate is not None)
    heard = {name: _Heard(slices, since, question.now) for name, slices in sources.heard(seen).items()}
    asked: list[_Asked] = []
    judged: dict[int, Judged] = {}  # by place: of equal outcomes the first one is shown
    for place, entry in enumerate(guard.latency):
        source = sources.source(entry, question.copies)
        if source is None:
            continue
        name = sources.name(source, entry.histogram)
        if name not in heard:
            judged[place] = _silent(seen, entry.signal, source, entry.histogram)
            continue
        level = heard[name].part * (1 - entry.confidence) / count
        asked.append(_Asked(place, entry, source, name, latency.tested(entry, level), level))
    errors = sources.error_source(guard, question.copies)
    counted = sources.name(errors) if guard.max_error_rate is not None else ""
    folds = _folds(seen, guard, question, heard, asked, counted)
    for one in asked:
        if question.after:
            own = _own(heard[one.name], question, guard)
            found = latency.after(one.guard, question.baseline, own, one.level)
        else:
            found = latency.concurrent(one.guard, folds[one.name].compared(one.test), one.level, question.now - since)
        judged[one.place] = measured_by(found, one.source)
    if guard.max_error_rate is not None:
        if counted in heard:
            level = heard[counted].part * (1 - guard_errors.CONFIDENCE) / count
            found = guard_errors.rate(guard.max_error_rate, tuple(folds[counted].periods.values()), level)
            judged[len(guard.latency)] = measured_by(found, errors)
        else:
            judged[len(guard.latency)] = _silent(seen, "errors", errors)
    return [judged[place] for place in sorted(judged)]


def _folds(
    seen: Observation, guard: Guard, question: Question, heard: Mapping[str, _Heard], asked: list[_Asked], counted: str
) -> dict[str, Fold]:
    """What each source that is asked for something adds up to."""
    found = {}
    for name in sorted(({one.name for one in asked} | {counted}) & set(heard)):
        tests = () if question.after else tuple(one.test for one in asked if one.name == name)
        scope = Scope(question.stable, question.canary, heard[name].begin, guard.warmup_requests, tests)
        found[name] = folded(seen.memo, name, scope, heard[name].slices)
    return found


def _silent(seen: Observation, signal: str, source: Source, histogram: str = "") -> Judged:
    why = sources.silent(seen, source, histogram)
    return measured_by(unknown(signal, f"{signal}: {why}: there is no measurement to judge by"), source)


@dataclass(frozen=True)
class _Asked:
    """A latency signal, at which place in the guard, of which source, and at which level."""

    place: int
    guard: LatencyGuard
    source: Source
    name: str
    test: Test
    level: float


class _Heard:
    """One source's slices in the order of time; those from `begin` on are judged together, at `part` of a signal's error
    level.

    That is all since `since` while they are all there; later those since the first whole hour that is complete. The
    parts 1 / ((k + 1)(k + 2)) of the beginnings k = 0, 1, 2, ... add up to 1, so that all hours of a long rollout
    together keep the level.
    """

    def __init__(self, slices: Sequence[Slice], since: float, now: float) -> None:
        self.slices = sorted(slices, key=START)
        oldest = next((piece.start for piece in self.slices if piece.possible), since)
        hours = 0 if oldest <= since + MISSED else math.ceil((oldest - since) / EPOCH)
        if hours and since + hours * EPOCH > now:
            hours -= 1  # less than an hour is kept: what there is of it
        self.begin = since + hours * EPOCH
        self.part = 1 / ((hours + 1) * (hours + 2))


def _own(source: _Heard, question: Question, guard: Guard) -> list[Slice]:
    """The canary's slices after those in which its first requests ended."""
    seen, kept = 0, []
    for piece in source.slices:
        if piece.revision == question.canary and piece.start >= source.begin and piece.possible:
            if seen >= guard.warmup_requests:
                kept.append(piece)
            seen += piece.requests
    return kept
