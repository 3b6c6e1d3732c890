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
from pagefleet_operator.domain.observation import Observation, Slice
from pagefleet_operator.domain.spec_rollout import Guard
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
    gateways, engines = _sane(seen.slices), _sane(seen.engine_slices)
    judged = []
    for entry in guard.latency:
        engine = question.copies or entry.signal in ENGINE_SIGNALS
        if question.copies and entry.signal == "tpot":
            continue  # the engine has no such histogram; itl is its measure of it
        source = engines if engine else gateways
        if source is None:
            judged.append(unknown(entry.signal, _silent(entry.signal, engine)))
            continue
        level, kept = _kept(source, since, question.now, (1 - entry.confidence) / count)
        ours, theirs = _sides(kept, question, guard.warmup_requests)
        if question.after:
            judged.append(guard_latency.after(entry, question.baseline, ours, level))
        else:
            judged.append(guard_latency.concurrent(entry, theirs, ours, level, question.now - since))
    if guard.max_error_rate is not None:
        source = engines if question.copies else gateways
        if source is None:
            judged.append(unknown("errors", _silent("errors", question.copies)))
        else:
            level, kept = _kept(source, since, question.now, (1 - guard_errors.CONFIDENCE) / count)
            ours, theirs = _sides(kept, question, guard.warmup_requests)
            judged.append(guard_errors.rate(guard.max_error_rate, theirs, ours, level))
    return judged


def _silent(signal: str, engine: bool) -> str:
    return f"{signal}: no {'engine' if engine else 'gateway'} answers: there is no measurement to judge by"


def _kept(slices: Sequence[Slice], since: float, now: float, level: float) -> tuple[float, list[Slice]]:
    """The slices that are judged together, and their level.

    All since `since` while they are all there; later those since the first whole hour that is complete. The levels
    level / ((k + 1)(k + 2)) of the beginnings k = 0, 1, 2, ... add up to `level`, so that all hours of a long rollout
    together keep it.
    """
    usable = [piece for piece in slices if piece.start >= since]
    oldest = min((piece.start for piece in slices), default=since)
    hours = 0 if oldest <= since + MISSED else math.ceil((oldest - since) / EPOCH)
    if hours and since + hours * EPOCH > now:
        hours -= 1  # less than an hour is kept: what there is of it
    begin = since + hours * EPOCH
    return level / ((hours + 1) * (hours + 2)), [p for p in usable if p.start >= begin]


def _sides(slices: list[Slice], question: Question, warm_up: int) -> tuple[list[Slice], list[Slice]]:
    """The canary's slices without its warm-up, and the stable's."""
    ours = _without_warm_up([piece for piece in slices if piece.revision == question.canary], warm_up)
    return ours, [piece for piece in slices if piece.revision == question.stable]


def _without_warm_up(slices: list[Slice], warm_up: int) -> list[Slice]:
    """The slices after those in which the first `warm_up` requests ended."""
    seen, kept = 0, []
    for piece in sorted(slices, key=lambda one: one.start):
        if seen >= warm_up:
            kept.append(piece)
        seen += piece.requests
    return kept


def _sane(slices: Sequence[Slice] | None) -> list[Slice] | None:
    """The slices whose numbers can be true."""
    return None if slices is None else [piece for piece in slices if _possible(piece)]


def _possible(piece: Slice) -> bool:
    if not 0 <= piece.errors <= piece.requests:
        return False
    tables = (*piece.latency.values(), *piece.least.values())
    return all(min(histogram.values(), default=0) >= 0 for histogram in tables)
