"""Judges a canary on requests against the concurrent stable: Regressed, Passed or Inconclusive, with the numbers.

Latency, per signal: the share of canary requests slower than (1 + maxIncrease) x the stable's quantile must not
exceed 1 - quantile. Strata of prompt length have a bound each, so that a shift in the mix of prompts alone convicts
nobody. What is uncertain about the stable's quantile counts for the canary: its upper confidence bound is used.

Against the machine's noise, beside the test itself:
- a period in which the stable breaks the bound itself says something about the machine and is left out;
- requests of one burst are not independent, so the breaches must lie in several slices before they convict;
- the canary's own quantile must lie above the bound: one outlier, however large, never decides.
No data is never a pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pagefleet_operator.domain import sequential, sketch
from pagefleet_operator.domain.observation import Slice
from pagefleet_operator.domain.sequential import Evidence
from pagefleet_operator.domain.spec_rollout import Guard, LatencyGuard
from pagefleet_operator.domain.status import VerdictRecord

PERIOD = 10.0  # seconds over which stable and canary are compared as concurrent
NOISY_SHARE, NOISY_TRIALS = (
    4.0,
    5,
)  # a period is noise when the stable exceeds the bound 4 x as often as allowed
SPREAD = 4  # slices that breaches must lie in before they convict
ERROR_CONFIDENCE = 0.99
ERROR_MIN_REQUESTS = 20


class Outcome(StrEnum):
    REGRESSED = "Regressed"
    PASSED = "Passed"
    INCONCLUSIVE = "Inconclusive"


@dataclass(frozen=True)
class Judged:
    """One signal's outcome; the guard's is the worst of them."""

    outcome: Outcome
    record: VerdictRecord


def assess(
    slices: Sequence[Slice] | None, guard: Guard, *, stable: str, canary: str, since: float, now: float
) -> Judged | None:
    """The verdict over the canary's traffic since `since`; None when there is no guard to ask."""
    if guard.empty:
        return None
    if slices is None:
        return _unknown("no gateway answers: there is no measurement to judge by")
    usable = [piece for piece in slices if piece.start >= since and _sane(piece)]
    measured = _without_warm_up([piece for piece in usable if piece.revision == canary], guard.warmup_requests)
    baseline = [piece for piece in usable if piece.revision == stable]
    signals = len(guard.latency) + (guard.max_error_rate is not None)
    judged = [_latency(entry, baseline, measured, signals, now - since) for entry in guard.latency]
    if guard.max_error_rate is not None:
        judged.append(_errors(guard.max_error_rate, measured, signals))
    order = (Outcome.REGRESSED, Outcome.INCONCLUSIVE, Outcome.PASSED)
    return min(judged, key=lambda one: order.index(one.outcome))


def _latency(guard: LatencyGuard, stable: list[Slice], canary: list[Slice], signals: int, elapsed: float) -> Judged:
    allowed, alpha = 1 - guard.quantile, (1 - guard.confidence) / signals
    evidence, breached, bound, widest = Evidence(), set[float](), None, Evidence()
    shown: tuple[float | None, float | None] = (None, None)
    for stratum in sorted({piece.stratum for piece in canary}):
        ours = [piece for piece in canary if piece.stratum == stratum]
        theirs = [piece for piece in stable if piece.stratum == stratum]
        limit = _bound(guard, theirs, alpha / 2)
        found, where = _breaches(guard, limit, theirs, ours)
        evidence = evidence.plus(found.hits, found.trials)
        breached |= where
        if found.trials >= widest.trials:
            widest, bound = found, limit
            shown = (_quantile(guard, theirs), _quantile(guard, ours))
    measured = sum(sketch.total(piece.latency.get(guard.signal, {})) for piece in canary)
    value = sequential.e_value(evidence, allowed)
    name = f"{guard.signal} p{round(100 * guard.quantile, 1):g}"
    record = VerdictRecord(
        outcome="",
        signal=name,
        statistic=evidence.hits / evidence.trials if evidence.trials else 0.0,
        limit=allowed,
        bound_seconds=bound,
        stable_seconds=shown[0],
        canary_seconds=shown[1],
        samples=measured,
        evidence=value,
        message="",
    )
    slower = shown[0] is not None and shown[1] is not None and shown[1] > (1 + guard.max_increase) * shown[0]
    convicts = value >= 2 / alpha and len(breached) >= SPREAD and slower
    if convicts:
        return _told(Outcome.REGRESSED, record, _sentence(guard, record))
    if measured < guard.min_requests:
        rate = measured / elapsed if elapsed > 0 else 0.0
        wait = (guard.min_requests - measured) / rate if rate else None
        return _told(Outcome.INCONCLUSIVE, record, f"{name}: {measured} of {guard.min_requests} requests", wait)
    if not evidence.trials:
        needed = sequential.first_epoch(guard.quantile, alpha / 2)
        return _told(Outcome.INCONCLUSIVE, record, f"{name}: the stable has fewer than {needed} concurrent requests")
    if slower and value >= 1:
        return _told(Outcome.INCONCLUSIVE, record, f"{name}: suspicious, not proven; {_sentence(guard, record)}")
    return _told(Outcome.PASSED, record, _sentence(guard, record))


def _bound(guard: LatencyGuard, stable: Iterable[Slice], alpha: float) -> float | None:
    """(1 + maxIncrease) x the upper confidence bound of the stable's quantile, in seconds."""
    ordered = sorted(stable, key=lambda piece: piece.start)
    total = sum(sketch.total(piece.latency.get(guard.signal, {})) for piece in ordered)
    chosen = sequential.epoch(total, guard.quantile, alpha)
    if chosen is None:
        return None
    wanted, level = chosen
    taken: list[sketch.Histogram] = []
    count = 0
    for piece in ordered:
        if count >= wanted:
            break
        taken.append(piece.latency.get(guard.signal, {}))
        count += sketch.total(taken[-1])
    value = sketch.rank(sketch.merged(taken), sequential.upper_rank(count, guard.quantile, level))
    return None if value is None else (1 + guard.max_increase) * value


def _breaches(
    guard: LatencyGuard, bound: float | None, stable: list[Slice], canary: list[Slice]
) -> tuple[Evidence, set[float]]:
    """The canary's requests above `bound`, and the slices they lie in, less the periods of shared noise."""
    evidence, where = Evidence(), set[float]()
    if bound is None:
        return evidence, where
    noise = _noisy(guard, bound, stable)
    for piece in canary:
        histogram = piece.latency.get(guard.signal, {})
        if math.floor(piece.start / PERIOD) in noise:
            continue
        hits = sketch.above(histogram, bound)
        evidence = evidence.plus(hits, sketch.total(histogram))
        if hits:
            where.add(piece.start)
    return evidence, where


def _noisy(guard: LatencyGuard, bound: float, stable: list[Slice]) -> set[int]:
    """Periods in which the stable itself breaks the bound much more often than its quantile says."""
    periods: dict[int, Evidence] = {}
    for piece in stable:
        histogram, period = piece.latency.get(guard.signal, {}), math.floor(piece.start / PERIOD)
        seen = periods.get(period, Evidence())
        periods[period] = seen.plus(sketch.above(histogram, bound), sketch.total(histogram))
    allowed = NOISY_SHARE * (1 - guard.quantile)
    return {p for p, e in periods.items() if e.trials >= NOISY_TRIALS and e.hits > allowed * e.trials}


def _errors(most: float, canary: list[Slice], signals: int) -> Judged:
    evidence = Evidence(sum(piece.errors for piece in canary), sum(piece.requests for piece in canary))
    rate = evidence.hits / evidence.trials if evidence.trials else 0.0
    value = sequential.e_value(evidence, min(max(most, 1e-4), 0.99))
    record = VerdictRecord(
        outcome="", signal="errors", statistic=rate, limit=most, bound_seconds=None, stable_seconds=None,
        canary_seconds=None, samples=evidence.trials, evidence=value, message="",
    )  # fmt: skip
    text = f"errors: {evidence.hits} of {evidence.trials} requests failed ({rate:.2%}), allowed {most:.2%}"
    where = {piece.start for piece in canary if piece.errors}
    if value >= signals / (1 - ERROR_CONFIDENCE) and len(where) >= 2:
        return _told(Outcome.REGRESSED, record, text)
    if evidence.trials < ERROR_MIN_REQUESTS:
        return _told(Outcome.INCONCLUSIVE, record, f"errors: {evidence.trials} of {ERROR_MIN_REQUESTS} requests")
    return _told(Outcome.PASSED if value < 10 else Outcome.INCONCLUSIVE, record, text)


def _without_warm_up(slices: list[Slice], warm_up: int) -> list[Slice]:
    """The slices after those in which the first `warm_up` requests ended."""
    seen, kept = 0, []
    for piece in sorted(slices, key=lambda one: one.start):
        if seen >= warm_up:
            kept.append(piece)
        seen += piece.requests
    return kept


def _quantile(guard: LatencyGuard, slices: list[Slice]) -> float | None:
    return sketch.quantile(sketch.merged([piece.latency.get(guard.signal, {}) for piece in slices]), guard.quantile)


def _sane(piece: Slice) -> bool:
    counts = [count for histogram in piece.latency.values() for count in histogram.values()]
    return piece.requests >= 0 and 0 <= piece.errors <= piece.requests and all(count >= 0 for count in counts)


def _sentence(guard: LatencyGuard, record: VerdictRecord) -> str:
    def ms(seconds: float | None) -> str:
        return "unknown" if seconds is None else f"{1000 * seconds:.0f} ms"

    return (
        f"{record.signal}: {record.statistic:.1%} of {record.samples} canary requests are slower than "
        f"{ms(record.bound_seconds)}, allowed are {record.limit:.1%}; stable {ms(record.stable_seconds)}, "
        f"canary {ms(record.canary_seconds)} (maxIncrease {guard.max_increase:.0%}, evidence {record.evidence:.3g})"
    )


def _told(outcome: Outcome, record: VerdictRecord, message: str, wait: float | None = None) -> Judged:
    return Judged(outcome, replace(record, outcome=outcome.value, message=message, expected_seconds=wait))


def _unknown(message: str) -> Judged:
    record = VerdictRecord(
        outcome="", signal="", statistic=0.0, limit=0.0, bound_seconds=None, stable_seconds=None,
        canary_seconds=None, samples=0, evidence=0.0, message="",
    )  # fmt: skip
    return _told(Outcome.INCONCLUSIVE, record, message)
