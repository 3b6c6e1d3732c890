"""The verdict on the time to first token at equal load.

Regressed when the evidence exceeds what the confidence asks for. Passed only when the canary is shown to be no worse than
accepted: the upper end of its ratio's interval lies below 1 + maxIncrease. Everything else is Inconclusive, with the
number of requests that a verdict still needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Ranks
from pagefleet_operator.domain.analysis.adjusted.accumulated import Accumulated
from pagefleet_operator.domain.analysis.adjusted.forecast import duration
from pagefleet_operator.domain.analysis.adjusted.ratio import Ratio, ratio, requests_needed
from pagefleet_operator.domain.analysis.adjusted.reference import MIN_REQUESTS, MULTIPLES, QUANTILES
from pagefleet_operator.domain.analysis.latency import REGRESSION, awaited, waited
from pagefleet_operator.domain.analysis.verdict import (
    SUSPICIOUS,
    Outcome,
    Verdict,
    make_verdict,
    record_without_latency,
)
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.base.logarithms import value_of
from pagefleet_operator.domain.spec.rollout import LatencyGuard
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.status import SignalRecord, VerdictRecord


@dataclass(frozen=True)
class Judged:
    """The sums, the guard's entry, the error level of a conviction, and the seconds of traffic so far."""

    sums: Accumulated
    guard: LatencyGuard
    level: float
    elapsed: float

    @cached_property
    def seconds(self) -> tuple[Ranks, Ranks]:
        """The times of the stable and of the canary: to the first token, or of whole answers."""
        stable, canary = self.sums.seconds
        return Ranks(stable), Ranks(canary)


def can_judge(slices: Sequence[Slice], stable: str, *, whole: bool = False) -> bool:
    """Whether the gateways adjust times by load, of streams or of `whole` answers: some slice of the stable has such times."""
    return any(piece.adjusted and piece.revision == stable and piece.whole == whole for piece in reversed(slices))


def decisive(streams: Verdict, whole: Verdict) -> Verdict:
    """The verdict on both kinds: one that convicts, else that on the kind of which the canary has answered more."""
    shown = streams if streams.record.samples > whole.record.samples else whole
    chosen = next((one for one in (whole, streams) if one.outcome is Outcome.REGRESSED), shown)
    evidence = (*streams.evidence, *whole.evidence)
    return replace(chosen, evidence=evidence, signals=(*streams.signals, *whole.signals))


def judge(judged: Judged) -> Verdict:
    """Judge the canary by the sums."""
    sums, guard = judged.sums, judged.guard
    found = ratio(sums.canary, sums.waiting(), sums.reference.strata, guard.quantile, sums.excursions.spread())
    count = sum(sketch.total(own) for own in sums.canary.values())
    record = _record(judged, count)
    if not sums.thresholds:  # even with the evidence of an operator before this one, which knew the stable
        known = sum(sketch.total(own) for own in sums.reference.strata.values())
        message = f"{record.signal}: the stable has {known} of the {MIN_REQUESTS} measured requests needed"
        return _verdict(Outcome.INCONCLUSIVE, judged, record, message, None)
    recent = _since_it_grew(judged)
    slower = recent is None or recent.value > 1 + guard.max_increase
    if sums.evidence.log >= math.log(1 / judged.level) and slower:
        message = f"{_state(judged, found, count)}; {_proof(sums, found, recent)} (evidence {record.evidence:.3g})"
        return _verdict(Outcome.REGRESSED, judged, record, message, None)
    if count < guard.min_requests:
        wait = (guard.min_requests - count) * judged.elapsed / count if count else None
        message = f"{record.signal}: {count} of the {guard.min_requests} requests needed"
        return _verdict(Outcome.INCONCLUSIVE, judged, record, message, wait)
    state = _state(judged, found, count)
    if found is not None and found.high is not None and found.high < 1 + guard.max_increase:
        if sums.evidence.log < math.log(SUSPICIOUS):
            return _verdict(Outcome.PASSED, judged, record, state, None)
        message = f"suspicious, not proven: {state}; {_excess(sums, sums.hits[sums.likeliest()])} (evidence {record.evidence:.3g})"
        return _verdict(Outcome.INCONCLUSIVE, judged, record, message, None)
    more = None if found is None else _more(judged, found)
    if more is None:
        message = f"{state}; it passes when more requests show less"
        return _verdict(Outcome.INCONCLUSIVE, judged, record, message, None)
    wait = more * judged.elapsed / count
    message = f"{state}; about {more:,} more request{'' if more == 1 else 's'} needed, about {duration(wait)}"
    return _verdict(Outcome.INCONCLUSIVE, judged, record, message, wait)


def _since_it_grew(judged: Judged) -> Ratio | None:
    """The ratio of the guarded quantile since the evidence began to grow. It must lie beyond what is accepted.

    The evidence also grows where a few requests in a hundred are far slower than expected, or most of them a little, while the
    guarded quantile is no worse than accepted. Without measurements that can be compared the evidence alone decides.
    """
    sums, guard = judged.sums, judged.guard
    lasting = sketch.merged([sums.waiting(), *sums.suspects.unmeasured.values()])
    return ratio(sums.suspects.measured, lasting, sums.reference.strata, guard.quantile, sums.excursions.spread())


def _more(judged: Judged, found: Ratio) -> int | None:
    """How many more requests would show a canary of this ratio to be good enough; None when none would."""
    room = (1 + judged.guard.max_increase) / max(found.value, 0.5) - 1
    spread = judged.sums.excursions.spread()
    pooled = sketch.merged(list(judged.sums.reference.strata.values()))
    needed = requests_needed(pooled, judged.guard.quantile, room, spread)
    return None if needed is None else max(1, needed - found.requests)


def _state(judged: Judged, found: Ratio | None, count: int) -> str:
    """The sentence with the ratio and its interval."""
    guard, sums = judged.guard, judged.sums
    name = guard.title
    lasting = _lasting(sums)
    waiting = f"; {waited(lasting)} for longer without a {awaited(guard)}" if lasting else ""
    if found is None:
        return f"{name}: no canary request yet that can be compared at equal load ({count} measured){waiting}"
    high = "more" if found.high is None else f"{found.high:.2f}"
    stable, canary = (own.quantile(guard.quantile) for own in judged.seconds)
    values = ""
    if stable is not None and canary is not None:
        values = f" (canary {1000 * canary:.0f} ms, stable {1000 * stable:.0f} ms)"
    return (
        f"canary {name} is {found.value:.2f} times the stable's at equal load, {found.low:.2f} to {high}{values}; "
        f"{guard.max_increase:.0%} more accepted; {count:,} requests{waiting}"
    )


def _lasting(sums: Accumulated) -> int:
    """How many requests are slow already, by the 95 % quantile's threshold, and have no first token yet."""
    return sketch.beyond(sums.waiting(), sums.thresholds[QUANTILES.index(0.95)].pooled)


def _proof(sums: Accumulated, found: Ratio | None, recent: Ratio | None) -> str:
    """What convicts. Where the evidence began to grow late, the numbers of the whole rollout would hide it."""
    place = sums.likeliest()
    if found is None or recent is None or recent.requests >= found.requests:
        return _excess(sums, sums.hits[place])
    known, others = sums.thresholds[place].decided(sums.suspected())
    share = _excess(sums, (known[0] + others[0], known[1] + others[1]))
    return f"{recent.value:.2f} times in the {recent.requests:,} requests since the evidence began to grow; {share}"


def _excess(sums: Accumulated, counted: tuple[float, float]) -> str:
    """How many of the requests are hits of the threshold with the most evidence; `counted` are the requests and the hits."""
    place = sums.likeliest()
    requests, hits = counted
    threshold, increase = sums.thresholds[place], sums.scope.increase
    if place < len(QUANTILES):
        bound = f"{1 + increase:.2f} times the stable's p{100 * QUANTILES[place]:g}"
    else:
        bound = f"{list(MULTIPLES)[place - len(QUANTILES)]:g} times the stable's p95"
    # Evidence of far slower requests, or an earlier operator's, may be known where no request has been counted.
    share = f"{hits / requests:.0%}" if requests else "too many"
    return f"{share} of them are slower than {bound}, expected {threshold.share:.1%}"


def _record(judged: Judged, count: int) -> VerdictRecord:
    guard, sums = judged.guard, judged.sums
    stable, canary = (own.quantile(guard.quantile) for own in judged.seconds)
    place = QUANTILES.index(0.95)
    requests, hits = sums.hits[place]
    record = record_without_latency(
        guard.title, hits / requests if requests else 0.0, 1 - QUANTILES[place], count,
        value_of(sums.evidence.log),
    )  # fmt: skip
    bound = None if stable is None else (1 + guard.max_increase) * stable
    return replace(record, bound_seconds=bound, stable_seconds=stable, canary_seconds=canary)


def _verdict(outcome: Outcome, judged: Judged, record: VerdictRecord, message: str, wait: float | None) -> Verdict:
    guard, (stable, canary) = judged.guard, judged.seconds
    intervals = [own.interval(guard.quantile) or (None, None) for own in (stable, canary)]
    shown = SignalRecord(
        signal=guard.signal, stratum="", outcome=outcome.value,
        stable_samples=stable.total, canary_samples=canary.total,
        stable_p50=stable.quantile(0.5), canary_p50=canary.quantile(0.5),
        stable_p95=record.stable_seconds, canary_p95=record.canary_seconds,
        stable_low=intervals[0][0], stable_high=intervals[0][1],
        canary_low=intervals[1][0], canary_high=intervals[1][1],
        evidence=record.evidence, message=message,
    )  # fmt: skip
    reason = REGRESSION if outcome is Outcome.REGRESSED else ""
    return make_verdict(outcome, record, message, wait, reason, (shown,))
