"""One latency signal of the guard: against the concurrent stable, or after promotion against what it was like.

Strata of prompt length are judged each against its own kind and their evidence multiplied, so that a shift in the mix
of prompts alone convicts nobody. The canary's own quantile must lie above the bound in the end: one outlier, however
large, never decides, and no block brings more than a quarter of what convicts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram
from pagefleet_operator.domain.analysis import sequential, sources
from pagefleet_operator.domain.analysis.fold import Compared, Test
from pagefleet_operator.domain.analysis.paired import Paired, evidence
from pagefleet_operator.domain.analysis.sequential import Evidence
from pagefleet_operator.domain.analysis.verdict import Judged, Outcome, blank, told
from pagefleet_operator.domain.spec.rollout import LatencyGuard
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.status import BaselineRecord, SignalRecord, VerdictRecord

REASON = "LatencyRegression"
BLIND = "the bound lies above the last edge of the histogram, beyond which nothing can be compared"
SPREAD = 4  # blocks that evidence must come from at least


def tested(guard: LatencyGuard, level: float) -> Test:
    """What is asked of the requests at error level `level`."""
    return Test(guard.signal, guard.quantile, guard.max_increase, math.log(1 / level) / SPREAD)


def concurrent(guard: LatencyGuard, strata: Mapping[str, Compared], level: float, elapsed: float) -> Judged:
    """The canary against the stable at the same time, at error level `level`; `elapsed` seconds of traffic."""
    needed = math.log(1 / level)
    tests = [compared.test for compared in strata.values()]
    signals = [_signal(guard, stratum, one.stable, one.canary, one.test) for stratum, one in strata.items()]
    record = _record(guard, tests, signals, evidence(tests))
    edge, accepted = _edge(strata)
    record = record if edge is None else replace(record, bound_seconds=edge)
    stated = tuple(replace(one, outcome=_outcome_of(one, guard, needed)) for one in signals)
    log = math.log(record.evidence) if record.evidence > 0 else -math.inf
    if log >= needed and _slower(guard, signals):
        return told(Outcome.REGRESSED, record, _sentence(guard, record, accepted), None, REASON, stated)
    if record.samples < guard.min_requests:
        wait = (guard.min_requests - record.samples) * elapsed / record.samples if record.samples else None
        message = f"{record.signal}: {record.samples} of {guard.min_requests} requests"
        return told(Outcome.INCONCLUSIVE, record, message, wait, signals=stated)
    if not any(test.splits or test.blind for test in tests):
        least = math.ceil(2 / (1 - guard.quantile))
        message = f"{record.signal}: the stable has fewer than {least} concurrent requests"
        return told(Outcome.INCONCLUSIVE, record, message, signals=stated)
    if any(test.blind for test in tests):
        return told(Outcome.INCONCLUSIVE, record, f"{record.signal}: {BLIND}", signals=stated)
    if log >= 0 and _slower(guard, signals):
        wait = elapsed * (needed - log) / log if log > 0 else None
        message = f"{record.signal}: suspicious, not proven; {_sentence(guard, record, accepted)}"
        return told(Outcome.INCONCLUSIVE, record, message, wait, signals=stated)
    return told(Outcome.PASSED, record, _sentence(guard, record, accepted), signals=stated)


def after(guard: LatencyGuard, baseline: Sequence[BaselineRecord], canary: Sequence[Slice], level: float) -> Judged:
    """The promoted revision against the record of the one before it; without a record nothing is said.

    Each stratum's bound is the upper confidence bound of the recorded quantile, so this needs more requests than a
    concurrent comparison, and a change of the load itself counts too: hits must lie in several minutes.
    """
    source = sources.name(guard.source, guard.histogram)
    known = {
        entry.stratum: entry.histogram
        for entry in baseline
        if entry.signal == guard.signal and entry.source in ("", source)
    }
    total, signals, bounds, minutes, blind = Evidence(), [], [], set[int](), False
    for stratum in sorted({piece.stratum for piece in canary} & set(known)):
        recorded = {int(b): n for b, n in known[stratum].items() if b.isdecimal() and isinstance(n, int) and n > 0}
        count = sketch.total(recorded)
        ours = [piece for piece in canary if piece.stratum == stratum]
        signals.append(_signal(guard, stratum, recorded, _merged(guard, ours), None))
        if count < sequential.least_samples(guard.quantile, level / 2):
            continue
        value = sketch.rank(recorded, sequential.upper_rank(count, guard.quantile, level / 2))
        if value is None:
            continue
        bounds.append((1 + guard.max_increase) * value)
        for piece in ours:
            hits = _above(guard.signal, piece, bounds[-1])
            total = total.plus(hits, sketch.total(piece.latency.get(guard.signal, {})))
            blind |= _blind(guard.signal, piece, bounds[-1])
            if hits:
                minutes.add(math.floor(piece.start / 60))
    value = sequential.e_value(total, 1 - guard.quantile)
    record = _record(guard, [], signals, value)
    record = replace(
        record,
        statistic=total.hits / total.trials if total.trials else 0.0,
        bound_seconds=bounds[-1] if bounds else None,
        limit=1 - guard.quantile,
    )
    if value >= 2 / level and len(minutes) >= SPREAD and _slower(guard, signals):
        return told(Outcome.REGRESSED, record, _sentence(guard, record), None, REASON, tuple(signals))
    if not total.trials:
        message = f"{record.signal}: nothing to compare with the previous revision's record yet"
        return told(Outcome.INCONCLUSIVE, record, message, signals=tuple(signals))
    if blind:
        return told(Outcome.INCONCLUSIVE, record, f"{record.signal}: {BLIND}", signals=tuple(signals))
    return told(Outcome.PASSED, record, _sentence(guard, record), signals=tuple(signals))


def _above(signal: str, piece: Slice, bound: float) -> int:
    """How many lie certainly above."""
    edged = piece.edged.get(signal)
    return sketch.above(piece.latency.get(signal, {}), bound) if edged is None else edged.above(bound)


def _blind(signal: str, piece: Slice, bound: float) -> bool:
    edged = piece.edged.get(signal)
    return edged is not None and (len(edged.bounds) < 2 or edged.bounds[-2] < bound)


def _merged(guard: LatencyGuard, slices: Sequence[Slice]) -> Histogram:
    return sketch.merged([piece.latency.get(guard.signal, {}) for piece in slices])


def _signal(
    guard: LatencyGuard, stratum: str, stable: Histogram, canary: Histogram, test: Paired | None
) -> SignalRecord:
    theirs, ours = sketch.interval(stable, guard.quantile), sketch.interval(canary, guard.quantile)
    odds = f"a hit is {test.odds:.2f} times as likely on the canary" if test and test.splits else ""
    return SignalRecord(
        signal=guard.signal,
        stratum=stratum,
        outcome="",
        stable_samples=sketch.total(stable),
        canary_samples=sketch.total(canary),
        stable_p50=sketch.quantile(stable, 0.5),
        canary_p50=sketch.quantile(canary, 0.5),
        stable_p95=sketch.quantile(stable, guard.quantile),
        canary_p95=sketch.quantile(canary, guard.quantile),
        stable_low=theirs[0] if theirs else None,
        stable_high=theirs[1] if theirs else None,
        canary_low=ours[0] if ours else None,
        canary_high=ours[1] if ours else None,
        evidence=evidence([test]) if test else 0.0,
        message=odds,
    )


def _outcome_of(signal: SignalRecord, guard: LatencyGuard, needed: float) -> str:
    """What a stratum says for itself; the guard decides on all of them together."""
    if signal.evidence > 0 and math.log(signal.evidence) >= needed:
        return Outcome.REGRESSED.value
    enough = signal.canary_samples >= guard.min_requests and signal.stable_samples > 0
    return Outcome.PASSED.value if enough and signal.evidence < 1 else Outcome.INCONCLUSIVE.value


def _widest(signals: Sequence[SignalRecord]) -> SignalRecord | None:
    return max(signals, key=lambda one: one.canary_samples, default=None)


def _slower(guard: LatencyGuard, signals: Sequence[SignalRecord]) -> bool:
    """Whether the canary's own quantile lies above the bound in some stratum."""
    return any(
        one.stable_p95 is not None
        and one.canary_p95 is not None
        and one.canary_p95 > (1 + guard.max_increase) * one.stable_p95
        for one in signals
    )


def _record(
    guard: LatencyGuard, tests: Sequence[Paired], signals: Sequence[SignalRecord], value: float
) -> VerdictRecord:
    widest = _widest(signals)
    totals = [test.total for test in tests]
    canary, stable = sum(total.canary for total in totals), sum(total.stable for total in totals)
    shown = widest.stable_p95 if widest else None
    record = blank(
        f"{guard.signal} p{round(100 * guard.quantile, 1):g}",
        sum(total.canary_hits for total in totals) / canary if canary else 0.0,
        sum(total.stable_hits for total in totals) / stable if stable else 0.0,
        sum(signal.canary_samples for signal in signals),
        value,
    )
    return replace(
        record,
        bound_seconds=None if shown is None else (1 + guard.max_increase) * shown,
        stable_seconds=shown,
        canary_seconds=widest.canary_p95 if widest else None,
    )


def _edge(strata: Mapping[str, Compared]) -> tuple[float | None, float | None]:
    """The edge that the canary is held to in the widest stratum, and what increase that accepts; None where requests are
    measured one by one."""
    widest = max(strata.values(), key=lambda one: sketch.total(one.canary), default=None)
    if widest is None or not widest.edged or widest.test.bound is None or not widest.test.threshold:
        return None, None
    return widest.test.bound, widest.test.bound / widest.test.threshold - 1


def _sentence(guard: LatencyGuard, record: VerdictRecord, accepted: float | None = None) -> str:
    """`accepted`: the increase that the histogram's edges make of maxIncrease."""

    def ms(seconds: float | None) -> str:
        return "unknown" if seconds is None else f"{1000 * seconds:.0f} ms"

    edges = "" if accepted is None else f", by the histogram's edges {accepted:.0%}"
    return (
        f"{record.signal}: {record.statistic:.1%} of {record.samples} canary requests are slower than "
        f"{ms(record.bound_seconds)}, allowed are {record.limit:.1%}; stable {ms(record.stable_seconds)}, "
        f"canary {ms(record.canary_seconds)} (maxIncrease {guard.max_increase:.0%}{edges}, "
        f"evidence {record.evidence:.3g})"
    )
