"""Judges one latency signal of the guard against the concurrent stable.

Each stratum of prompt length is compared with the same stratum of the stable, and their evidence is multiplied, so
that a shift in the mix of prompts alone convicts no revision. In the end the canary's own quantile must lie above the
bound: one outlier, however large, never decides, and no block adds more than a quarter of the evidence that convicts.

A request that has waited for longer than the bound counts as slow before it ends (`waits`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram
from pagefleet_operator.domain.analysis.accumulate import SignalTest, StratumSums
from pagefleet_operator.domain.analysis.paired import MIN_FIRST, PairedTest, evidence
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict, make_verdict, record_without_latency
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.spec.rollout import LatencyGuard
from pagefleet_operator.domain.status.status import SignalRecord, VerdictRecord

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
    signals = [signal_record(guard, stratum, *_known(guard, signal), signal.test) for stratum, signal in strata.items()]
    record = verdict_record(guard, tests, signals, evidence(tests))
    edge, accepted = _edge(strata)
    record = record if edge is None else replace(record, bound_seconds=edge)
    shown = tuple(replace(signal, outcome=_outcome_of(signal, guard, needed)) for signal in signals)
    log = math.log(record.evidence)
    if log >= needed and is_slower(guard, signals):
        lasting = record.samples - sum(sketch.total(signal.canary) for signal in strata.values())
        sentence = sentence_of(guard, record, accepted) + _unanswered(guard, lasting)
        return make_verdict(Outcome.REGRESSED, record, sentence, None, REGRESSION, shown)
    if record.samples < guard.min_requests:
        wait = (guard.min_requests - record.samples) * elapsed / record.samples if record.samples else None
        message = f"{record.signal}: {record.samples} of the {guard.min_requests} requests needed"
        return make_verdict(Outcome.INCONCLUSIVE, record, message, wait, signals=shown)
    if not any(test.blocks or test.blind for test in tests):
        needed_requests = math.ceil(MIN_FIRST / (1 - guard.quantile))
        message = f"{record.signal}: the stable has fewer than the {needed_requests} concurrent requests needed"
        return make_verdict(Outcome.INCONCLUSIVE, record, message, signals=shown)
    if any(test.blind for test in tests):
        return make_verdict(Outcome.INCONCLUSIVE, record, f"{record.signal}: {ABOVE_LAST_EDGE}", signals=shown)
    if log >= 0 and is_slower(guard, signals):
        wait = elapsed * (needed - log) / log if log > 0 else None
        message = f"suspicious, not proven: {sentence_of(guard, record, accepted)}"
        return make_verdict(Outcome.INCONCLUSIVE, record, message, wait, signals=shown)
    return make_verdict(Outcome.PASSED, record, sentence_of(guard, record, accepted), signals=shown)


def _known(guard: LatencyGuard, sums: StratumSums) -> tuple[Histogram, Histogram]:
    """The latencies of the stable and of the canary, with those of requests that are slow already but not measured."""
    value = sketch.quantile(sums.stable, guard.quantile)
    if value is None:
        return sums.stable, sums.canary
    stable = sketch.with_lasting(sums.stable, sums.ages(of_canary=False), value)
    limit = (1 + guard.max_increase) * (sketch.quantile(stable, guard.quantile) or value)
    return stable, sketch.with_lasting(sums.canary, sums.ages(of_canary=True), limit)


def waited(count: int, of: str = "") -> str:
    """The words for so many requests that have waited."""
    return f"{count}{of} {'has' if count == 1 else 'have'} waited"


def _unanswered(guard: LatencyGuard, count: int) -> str:
    return f"; {waited(count, ' of them')} for longer without a {awaited(guard)}" if count > 0 else ""


def awaited(guard: LatencyGuard) -> str:
    """The words for what a request waits for that has not been measured."""
    return "first token" if guard.signal == "ttft" else "whole answer"


def signal_record(
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
    if math.log(signal.evidence) >= needed:
        return Outcome.REGRESSED.value
    enough = signal.canary_samples >= guard.min_requests and signal.stable_samples > 0
    return Outcome.PASSED.value if enough and signal.evidence < 1 else Outcome.INCONCLUSIVE.value


def _largest(signals: Sequence[SignalRecord]) -> SignalRecord | None:
    return max(signals, key=lambda signal: signal.canary_samples, default=None)


def is_slower(guard: LatencyGuard, signals: Sequence[SignalRecord]) -> bool:
    """Whether the canary's own quantile lies above the bound in some stratum."""
    return any(
        signal.stable_p95 is not None
        and signal.canary_p95 is not None
        and signal.canary_p95 > (1 + guard.max_increase) * signal.stable_p95
        for signal in signals
    )


def verdict_record(
    guard: LatencyGuard, tests: Sequence[PairedTest], signals: Sequence[SignalRecord], value: float
) -> VerdictRecord:
    largest = _largest(signals)
    totals = [test.total for test in tests]
    canary, stable = sum(total.canary for total in totals), sum(total.stable for total in totals)
    shown = largest.stable_p95 if largest else None
    record = record_without_latency(
        guard.title,
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


def sentence_of(guard: LatencyGuard, record: VerdictRecord, accepted: float | None = None) -> str:
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
