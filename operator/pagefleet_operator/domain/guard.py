"""Judges a canary on requests against the concurrent stable: Regressed, Passed or Inconclusive, with the numbers.

Each signal is judged for itself (`guard_latency`, `guard_errors`, `guard_limits`) and the worst outcome is the
guard's. ttft, e2e and tpot come from the gateways, itl and queue from the engines; for mirrored requests, whose
answers the gateways throw away, everything comes from the engines. No data is never a pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet_operator.domain import guard_errors, guard_latency, guard_limits
from pagefleet_operator.domain.fold import Scope, Test
from pagefleet_operator.domain.folds import START, folded
from pagefleet_operator.domain.observation import Observation, Slice
from pagefleet_operator.domain.spec_rollout import Guard, LatencyGuard
from pagefleet_operator.domain.status import BaselineRecord
from pagefleet_operator.domain.verdict import Judged, Outcome, unknown, worst

__all__ = ["Judged", "Outcome", "Question", "assess"]
ENGINE_SIGNALS = ("itl", "queue")
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
        judged.append(guard_limits.pages(seen, guard.free_pages, question.canary, question.low_since, question.now))
    judged += [guard_limits.gate(gate, seen.gates.get(gate.name)) for gate in guard.gates]
    if question.since is not None:
        judged += _measured(seen, guard, question, question.since)
    return worst(judged) if judged else None


def _measured(seen: Observation, guard: Guard, question: Question, since: float) -> list[Judged]:
    """The signals that are measured on requests."""
    count = len(guard.latency) + (guard.max_error_rate is not None)
    sources = {"gateway": seen.slices, "engine": seen.engine_slices}
    heard = {name: _Source(name, slices, since, question.now) for name, slices in sources.items() if slices is not None}
    errors = "engine" if question.copies else "gateway"
    asked: dict[str, list[_Asked]] = {name: [] for name in heard}
    judged: dict[int, Judged] = {}  # by place: of equal outcomes the first one is shown
    for place, entry in enumerate(guard.latency):
        engine = question.copies or entry.signal in ENGINE_SIGNALS
        if question.copies and entry.signal == "tpot":
            continue  # the engine has no such histogram; itl is its measure of it
        source = heard.get("engine" if engine else "gateway")
        if source is None:
            judged[place] = unknown(entry.signal, _silent(entry.signal, engine))
            continue
        level = source.part * (1 - entry.confidence) / count
        asked[source.name].append(_Asked(place, entry, guard_latency.tested(entry, level), level))
    for name, source in heard.items():
        tests = () if question.after else tuple(one.test for one in asked[name])
        scope = Scope(question.stable, question.canary, source.begin, guard.warmup_requests, tests)
        fold = folded(seen.memo, name, scope, source.slices)
        for one in asked[name]:
            if question.after:
                own = _own(source, question, guard)
                judged[one.place] = guard_latency.after(one.guard, question.baseline, own, one.level)
            else:
                strata, elapsed = fold.compared(one.test), question.now - since
                judged[one.place] = guard_latency.concurrent(one.guard, strata, one.level, elapsed)
        if name == errors and guard.max_error_rate is not None:
            level = source.part * (1 - guard_errors.CONFIDENCE) / count
            judged[len(guard.latency)] = guard_errors.rate(guard.max_error_rate, tuple(fold.periods.values()), level)
    if guard.max_error_rate is not None and errors not in heard:
        judged[len(guard.latency)] = unknown("errors", _silent("errors", question.copies))
    return [judged[place] for place in sorted(judged)]


def _silent(signal: str, engine: bool) -> str:
    return f"{signal}: no {'engine' if engine else 'gateway'} answers: there is no measurement to judge by"


@dataclass(frozen=True)
class _Asked:
    """A latency signal, at which place in the guard, and at which level."""

    place: int
    guard: LatencyGuard
    test: Test
    level: float


class _Source:
    """One source's slices in the order of time; those from `begin` on are judged together, at `part` of a signal's error
    level.

    That is all since `since` while they are all there; later those since the first whole hour that is complete. The
    parts 1 / ((k + 1)(k + 2)) of the beginnings k = 0, 1, 2, ... add up to 1, so that all hours of a long rollout
    together keep the level.
    """

    def __init__(self, name: str, slices: Sequence[Slice], since: float, now: float) -> None:
        self.name, self.slices = name, sorted(slices, key=START)
        oldest = next((piece.start for piece in self.slices if piece.possible), since)
        hours = 0 if oldest <= since + MISSED else math.ceil((oldest - since) / EPOCH)
        if hours and since + hours * EPOCH > now:
            hours -= 1  # less than an hour is kept: what there is of it
        self.begin = since + hours * EPOCH
        self.part = 1 / ((hours + 1) * (hours + 2))


def _own(source: _Source, question: Question, guard: Guard) -> list[Slice]:
    """The canary's slices after those in which its first requests ended."""
    seen, kept = 0, []
    for piece in source.slices:
        if piece.revision == question.canary and piece.start >= source.begin and piece.possible:
            if seen >= guard.warmup_requests:
                kept.append(piece)
            seen += piece.requests
    return kept
