"""Judges one latency signal of the guard: against the concurrent stable or, after promotion, against its record.

Each stratum of prompt length is compared with the same stratum of the stable, and their evidence is multiplied, so
that a shift in the mix of prompts alone convicts no revision. In the end the canary's own quantile must lie above the
bound: one outlier, however large, never decides, and no block adds more than a quarter of the evidence that convicts.

A request that has waited for longer than the bound counts as slow before it ends (`waits`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram
from pagefleet_operator.domain.analysis import sequential, sources
from pagefleet_operator.domain.analysis.accumulate import SignalTest, StratumSums
from pagefleet_operator.domain.analysis.paired import PairedTest, evidence
from pagefleet_operator.domain.analysis.sequential import Evidence
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict, make_verdict, record_without_latency
from pagefleet_operator.domain.analysis.waits import InFlight, Waits, decided
from pagefleet_operator.domain.spec.rollout import LatencyGuard
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.status import BaselineRecord, SignalRecord, VerdictRecord

REGRESSION = "LatencyRegression"
ABOVE_LAST_EDGE = "the bound lies above the last edge of the histogram, beyond which nothing can be compared"
MIN_BLOCKS = 4  # blocks that evidence must come from at least


def signal_test(guard: LatencyGuard, level: float) -> SignalTest:
    """The test of a signal at error level `level`."""
    return SignalTest(guard.signal, guard.quantile, guard.max_increase, math.log(1 / level) / MIN_BLOCKS)


def judge_concurrent(guard: LatencyGuard, strata: Mapping[str, StratumSums], level: float, elapsed: float) -> Verdict:
    """Compare the canary with the concurrent stable, at error level `level`, after `elapsed` seconds of traffic."""
    needed = math.log(1 / level)
    tests = [sums.test for sums in strata.values()]
    signals = [_signal(guard, stratum, *_known(guard, signal), signal.test) for stratum, signal in strata.items()]
    record = _record(guard, tests, signals, evidence(tests))
    edge, accepted = _edge(strata)
    record = record if edge is None else replace(record, bound_seconds=edge)
    shown = tuple(replace(signal, outcome=_outcome_of(signal, guard, needed)) for signal in signals)
    log = math.log(record.evidence) if record.evidence > 0 else -math.inf
    if log >= needed and _is_slower(guard, signals):
        lasting = record.samples - sum(sketch.total(signal.canary) for signal in strata.values())
        sentence = _sentence(guard, record, accepted) + _unanswered(guard, lasting)
        return make_verdict(Outcome.REGRESSED, record, sentence, None, REGRESSION, shown)
    if record.samples < guard.min_requests:
        wait = (guard.min_requests - record.samples) * elapsed / record.samples if record.samples else None
        message = f"{record.signal}: {record.samples} of the {guard.min_requests} requests needed"
        return make_verdict(Outcome.INCONCLUSIVE, record, message, wait, signals=shown)
    if not any(test.blocks or test.blind for test in tests):
        needed_requests = math.ceil(2 / (1 - guard.quantile))
        message = f"{record.signal}: the stable has fewer than the {needed_requests} concurrent requests needed"
        return make_verdict(Outcome.INCONCLUSIVE, record, message, signals=shown)
    if any(test.blind for test in tests):
        return make_verdict(Outcome.INCONCLUSIVE, record, f"{record.signal}: {ABOVE_LAST_EDGE}", signals=shown)
    if log >= 0 and _is_slower(guard, signals):
        wait = elapsed * (needed - log) / log if log > 0 else None
        message = f"suspicious, not proven: {_sentence(guard, record, accepted)}"
        return make_verdict(Outcome.INCONCLUSIVE, record, message, wait, signals=shown)
    return make_verdict(Outcome.PASSED, record, _sentence(guard, record, accepted), signals=shown)


def judge_after_promotion(
    guard: LatencyGuard, baseline: Sequence[BaselineRecord], canary: Sequence[Slice], level: float
) -> Verdict:
    """Compare the promoted revision with the record of the one before it; Inconclusive without a record.

    Each stratum's bound is the upper confidence bound of the recorded quantile, so this needs more requests than a
    concurrent comparison. A change of the load itself counts too, so the hits must lie in several minutes.
    """
    source = sources.name_of(guard.source, guard.histogram)
    known = {
        entry.stratum: entry.histogram
        for entry in baseline
        if entry.signal == guard.signal and entry.source in ("", source)
    }
    total, signals, bounds, minutes, blind = Evidence(), [], [], set[int](), False
    for stratum in sorted({piece.stratum for piece in canary} & set(known)):
        recorded = {int(b): n for b, n in known[stratum].items() if b.isdecimal() and isinstance(n, int) and n > 0}
        count = sketch.total(recorded)
        canary_interval = [piece for piece in canary if piece.stratum == stratum]
        signals.append(_signal(guard, stratum, recorded, _merged(guard, canary_interval, recorded), None))
        if count < sequential.min_samples(guard.quantile, level / 2):
            continue
        value = sketch.rank(recorded, sequential.upper_rank(count, guard.quantile, level / 2))
        if value is None:
            continue
        bounds.append((1 + guard.max_increase) * value)
        in_flight = InFlight()
        for piece in canary_interval:
            hits, count = _count_above(guard.signal, piece, bounds[-1], in_flight)
            total = total.plus(hits, count)
            blind |= _is_above_last_edge(guard.signal, piece, bounds[-1])
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
    if value >= 2 / level and len(minutes) >= MIN_BLOCKS and _is_slower(guard, signals):
        return make_verdict(Outcome.REGRESSED, record, _sentence(guard, record), None, REGRESSION, tuple(signals))
    if not total.trials:
        message = f"{record.signal}: no requests yet that can be compared with the previous revision's record"
        return make_verdict(Outcome.INCONCLUSIVE, record, message, signals=tuple(signals))
    if blind:
        return make_verdict(Outcome.INCONCLUSIVE, record, f"{record.signal}: {ABOVE_LAST_EDGE}", signals=tuple(signals))
    return make_verdict(Outcome.PASSED, record, _sentence(guard, record), signals=tuple(signals))


def _count_above(signal: str, piece: Slice, bound: float, in_flight: InFlight) -> tuple[int, int]:
    """Count the requests of a slice that certainly lie above the bound, and all that it decides about.

    `in_flight` are the requests at the slice's beginning; afterwards, those at its end.
    """
    measured, edged = piece.latency.get(signal, {}), piece.edged.get(signal)
    if edged is not None:
        return edged.above(bound), sketch.total(measured)
    begin = in_flight.total()
    in_flight.update(piece, signal)
    count, hits = decided(measured, Waits(begin, in_flight.total(), piece.unmeasured.get(signal, {})), bound)
    return round(hits), round(count)


def _known(guard: LatencyGuard, sums: StratumSums) -> tuple[Histogram, Histogram]:
    """The latencies of the stable and of the canary, with those of requests that are slow already but not measured."""
    value = sketch.quantile(sums.stable, guard.quantile)
    if value is None:
        return sums.stable, sums.canary
    stable = sketch.with_lasting(sums.stable, sums.ages(of_canary=False), value)
    limit = (1 + guard.max_increase) * (sketch.quantile(stable, guard.quantile) or value)
    return stable, sketch.with_lasting(sums.canary, sums.ages(of_canary=True), limit)


def _unanswered(guard: LatencyGuard, count: int) -> str:
    answer = "first token" if guard.signal == "ttft" else "whole answer"
    return f"; {count} of them have waited for longer without a {answer}" if count > 0 else ""


def _is_above_last_edge(signal: str, piece: Slice, bound: float) -> bool:
    edged = piece.edged.get(signal)
    return edged is not None and (len(edged.bounds) < 2 or edged.bounds[-2] < bound)


def _merged(guard: LatencyGuard, slices: Sequence[Slice], recorded: Histogram) -> Histogram:
    """The latencies of slices, with those of requests that are slow already but not measured."""
    measured = sketch.merged([piece.latency.get(guard.signal, {}) for piece in slices])
    value, in_flight = sketch.quantile(recorded, guard.quantile), InFlight()
    if value is None:
        return measured
    for piece in slices:
        in_flight.update(piece, guard.signal)
    ages = sketch.merged([*(piece.unmeasured.get(guard.signal, {}) for piece in slices), in_flight.total()])
    return sketch.with_lasting(measured, ages, (1 + guard.max_increase) * value)


def _signal(
    guard: LatencyGuard, stratum: str, stable: Histogram, canary: Histogram, test: PairedTest | None
) -> SignalRecord:
    stable_interval, canary_interval = sketch.interval(stable, guard.quantile), sketch.interval(canary, guard.quantile)
    odds = f"a hit is {test.odds:.2f} times as likely on the canary" if test and test.blocks else ""
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
        stable_low=stable_interval[0] if stable_interval else None,
        stable_high=stable_interval[1] if stable_interval else None,
        canary_low=canary_interval[0] if canary_interval else None,
        canary_high=canary_interval[1] if canary_interval else None,
        evidence=evidence([test]) if test else 0.0,
        message=odds,
    )


def _outcome_of(signal: SignalRecord, guard: LatencyGuard, needed: float) -> str:
    """The outcome of a stratum by itself; the guard decides on all of them together."""
    if signal.evidence > 0 and math.log(signal.evidence) >= needed:
        return Outcome.REGRESSED.value
    enough = signal.canary_samples >= guard.min_requests and signal.stable_samples > 0
    return Outcome.PASSED.value if enough and signal.evidence < 1 else Outcome.INCONCLUSIVE.value


def _largest(signals: Sequence[SignalRecord]) -> SignalRecord | None:
    return max(signals, key=lambda signal: signal.canary_samples, default=None)


def _is_slower(guard: LatencyGuard, signals: Sequence[SignalRecord]) -> bool:
    """Whether the canary's own quantile lies above the bound in some stratum."""
    return any(
        signal.stable_p95 is not None
        and signal.canary_p95 is not None
        and signal.canary_p95 > (1 + guard.max_increase) * signal.stable_p95
        for signal in signals
    )


def _record(
    guard: LatencyGuard, tests: Sequence[PairedTest], signals: Sequence[SignalRecord], value: float
) -> VerdictRecord:
    largest = _largest(signals)
    totals = [test.total for test in tests]
    canary, stable = sum(total.canary for total in totals), sum(total.stable for total in totals)
    shown = largest.stable_p95 if largest else None
    record = record_without_latency(
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
        canary_seconds=largest.canary_p95 if largest else None,
    )


def _edge(strata: Mapping[str, StratumSums]) -> tuple[float | None, float | None]:
    """The edge that the canary is held to in the largest stratum, and the increase that this edge accepts.

    Both are None where requests are measured one by one.
    """
    largest = max(strata.values(), key=lambda signal: sketch.total(signal.canary), default=None)
    if largest is None or not largest.edged or largest.test.bound is None or not largest.test.threshold:
        return None, None
    return largest.test.bound, largest.test.bound / largest.test.threshold - 1


def _sentence(guard: LatencyGuard, record: VerdictRecord, accepted: float | None = None) -> str:
    """The numbers of the verdict. `accepted` is the increase that the histogram's edges make of maxIncrease."""

    def ms(seconds: float | None) -> str:
        return "unknown" if seconds is None else f"{1000 * seconds:.0f} ms"

    stable, canary = record.stable_seconds, record.canary_seconds
    increase = f", {canary / stable - 1:+.0%}" if stable and canary is not None else ""
    edges = "" if accepted is None else f", {accepted:+.0%} by the histogram's edges"
    return (
        f"canary {record.signal} {ms(canary)}, stable {ms(stable)}{increase}, limit {guard.max_increase:+.0%}{edges}, "
        f"{record.samples} requests; {record.statistic:.1%} of them are slower than {ms(record.bound_seconds)}, "
        f"expected {record.limit:.1%} (evidence {record.evidence:.3g})"
    )
