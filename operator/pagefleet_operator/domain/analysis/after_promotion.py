"""Judges one latency signal of a promoted revision by the record of the one before it (`watching.baseline`).

No second revision has traffic at the same time, so a change of the load itself counts too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram
from pagefleet_operator.domain.analysis import latency, sequential, sources
from pagefleet_operator.domain.analysis.sequential import Evidence
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict, make_verdict
from pagefleet_operator.domain.analysis.waits import InFlight, Waits, decided
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.spec.rollout import LatencyGuard
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.status import BaselineRecord


def judge(guard: LatencyGuard, baseline: Sequence[BaselineRecord], canary: Sequence[Slice], level: float) -> Verdict:
    """Compare the promoted revision with the record of the one before it; Inconclusive without a record.

    Each stratum's bound is the upper confidence bound of the recorded quantile, so this needs more requests than a
    concurrent comparison. A change of the load itself counts too, so the hits must lie in several minutes.
    """
    source = sources.name_of(guard.source, guard.histogram)
    known = {
        entry.stratum: entry.counts
        for entry in baseline
        if entry.signal == guard.signal and entry.source in ("", source)
    }
    total, signals, bounds, minutes, blind = Evidence(), [], [], set[int](), False
    for stratum in sorted({piece.stratum for piece in canary} & set(known)):
        recorded = known[stratum]
        count = sketch.total(recorded)
        canary_interval = [piece for piece in canary if piece.stratum == stratum]
        signals.append(latency.signal_record(guard, stratum, recorded, _merged(guard, canary_interval, recorded), None))
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
    record = latency.verdict_record(guard, [], signals, value)
    record = replace(
        record,
        statistic=total.hits / total.trials if total.trials else 0.0,
        bound_seconds=bounds[-1] if bounds else None,
        limit=1 - guard.quantile,
    )
    if value >= 2 / level and len(minutes) >= latency.MIN_BLOCKS and latency.is_slower(guard, signals):
        return make_verdict(
            Outcome.REGRESSED, record, latency.sentence_of(guard, record), None, latency.REGRESSION, tuple(signals)
        )
    if value >= 2 / level and latency.is_slower(guard, signals):
        message = (
            f"suspicious, not proven: {latency.sentence_of(guard, record)}; slow requests lie in {len(minutes)} of the "
            f"{latency.MIN_BLOCKS} minutes needed"
        )
        return make_verdict(Outcome.INCONCLUSIVE, record, message, signals=tuple(signals))
    if not total.trials:
        message = f"{record.signal}: no requests yet that can be compared with the previous revision's record"
        return make_verdict(Outcome.INCONCLUSIVE, record, message, signals=tuple(signals))
    if blind:
        return make_verdict(
            Outcome.INCONCLUSIVE, record, f"{record.signal}: {latency.ABOVE_LAST_EDGE}", signals=tuple(signals)
        )
    return make_verdict(Outcome.PASSED, record, latency.sentence_of(guard, record), signals=tuple(signals))


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


def _is_above_last_edge(signal: str, piece: Slice, bound: float) -> bool:
    edged = piece.edged.get(signal)
    return edged is not None and edged.ends_below(bound)


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
