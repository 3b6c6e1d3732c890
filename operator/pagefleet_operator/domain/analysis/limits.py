"""Limits of the guard that are no comparison: absolute bounds of latencies, the floor under free KV pages, and PromQL gates."""

from __future__ import annotations

import math

from pagefleet_operator.domain.analysis.failures import FailureEvidence
from pagefleet_operator.domain.analysis.latency import ABOVE_LAST_EDGE
from pagefleet_operator.domain.analysis.verdict import (
    SUSPICIOUS,
    Outcome,
    Verdict,
    make_verdict,
    no_measurement,
    record_without_latency,
)
from pagefleet_operator.domain.base.absence import tolerated_silent
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.base.logarithms import value_of
from pagefleet_operator.domain.spec.rollout import FreePages, Gate, LatencyGuard
from pagefleet_operator.domain.status.observation import GateReading, Observation
from pagefleet_operator.domain.status.stage import reading_of
from pagefleet_operator.domain.status.status import SignalRecord
from pagefleet_operator.domain.status.turn import Turn

STALE_SECONDS = 15.0
BOUND = "LatencyBound"
BOUND_ODDS = (1.5, 3.0, 10.0)  # alternatives, as multiples of the share that may be slower
FREE_PAGES = "free pages"


def judge_bound(guard: LatencyGuard, evidence: FailureEvidence, blind: bool, level: float) -> Verdict:
    """Whether more requests of the canary than 1 - quantile are slower than maxSeconds, and more than of the stable's."""
    log, needed, limit = evidence.log(level), math.log(1 / level), evidence.now.limit
    regressed, total = log >= needed, evidence.now.total
    shown = evidence.now.recent if regressed else total
    name = f"{guard.title} bound"
    rate = shown.canary_failed / shown.canary if shown.canary else 0.0
    text = (
        f"{name}: {shown.canary_failed} of {shown.canary} canary requests took longer than {guard.max_seconds:g} s ({rate:.1%}, "
        f"allowed {limit:.1%}); {shown.stable_failed} of {shown.stable} of the stable"
    )
    if not regressed and rate > limit and shown.canary_failed * shown.stable <= shown.stable_failed * shown.canary:
        text += ", which breaks the bound just as badly: no reason to roll back"
    if regressed:
        outcome, message = Outcome.REGRESSED, f"{text}; within {evidence.seconds:.0f} s"
    elif blind:
        outcome, message = Outcome.INCONCLUSIVE, f"{name}: {ABOVE_LAST_EDGE}"
    elif total.canary < guard.min_requests:
        outcome, message = Outcome.INCONCLUSIVE, f"{name}: {total.canary} of the {guard.min_requests} requests needed"
    else:
        outcome, message = Outcome.PASSED if log < math.log(SUSPICIOUS) else Outcome.INCONCLUSIVE, text
    value = value_of(log)
    signal = SignalRecord(name, "", outcome.value, shown.stable, shown.canary, evidence=value, message=text)
    record = record_without_latency(name, rate, limit, shown.canary, value)
    record = replace(record, bound_seconds=guard.max_seconds)
    verdict = make_verdict(outcome, record, message, None, BOUND if regressed else "", (signal,))
    return replace(verdict, failures=(evidence.settled,))


def free_page_share(observation: Observation, revision: str) -> float | None:
    """The free share of the KV pages on the ready pods; None when the pages of too many are not known."""
    free = total = unknown = 0
    ready = [pod for pod in reading_of(observation.revisions, revision).pods if pod.ready and not pod.terminating]
    for pod in ready:
        load, stale = pod.load, (pod.load_age or 0.0) > STALE_SECONDS
        if stale or load is None or load.kv_pages_free is None or not load.kv_pages_total:
            unknown += 1
        else:
            free, total = free + load.kv_pages_free, total + load.kv_pages_total
    return free / total if total and unknown <= tolerated_silent(len(ready)) else None


def low_since(turn: Turn, floor: FreePages | None, revision: str, before: float | None) -> float | None:
    """The time since which the revision has been short of pages; a missing reading changes nothing."""
    share = free_page_share(turn.observation, revision) if floor else None
    if floor is None or share is None:
        return before if floor else None
    if share >= floor.least:
        return None
    return turn.now if before is None or before > turn.now else before


def judge_free_pages(observation: Observation, floor: FreePages, revision: str, short: float | None) -> Verdict:
    """`short` is for how many seconds the revision has been short of pages, None when it is not."""
    share = free_page_share(observation, revision)
    if share is None:
        pods = len(reading_of(observation.revisions, revision).pods)
        text = f"{FREE_PAGES}: not every one of the {pods} pods of revision {revision} reports its KV pages"
        return no_measurement(FREE_PAGES, text)
    seconds = short or 0.0
    text = (
        f"{FREE_PAGES}: {share:.0%} of the KV pages of revision {revision} are free, limit at least {floor.least:.0%}"
    )
    low = share < floor.least
    if low:
        text += f", below it for {seconds:.0f} s (accepted for {floor.grace:g} s)"
    outcome = Outcome.PASSED if not low else Outcome.REGRESSED if seconds >= floor.grace else Outcome.INCONCLUSIVE
    shown = SignalRecord(FREE_PAGES, "", outcome.value, message=text)
    wait = floor.grace - seconds if outcome is Outcome.INCONCLUSIVE else None
    record = record_without_latency(FREE_PAGES, share, floor.least)
    return make_verdict(outcome, record, text, wait, "FreePages", (shown,))


def judge_gate(gate: Gate, reading: GateReading | None) -> Verdict:
    """Regressed beyond the gate's bounds, Inconclusive for anything but one finite number."""
    if reading is None or reading.value is None or not math.isfinite(reading.value):
        cause = (
            (reading.message or "Prometheus gave no finite number") if reading else "Prometheus has not answered yet"
        )
        return no_measurement(gate.name, f"{gate.name}: {cause}")
    low = gate.low is not None and reading.value < gate.low
    high = gate.high is not None and reading.value > gate.high
    bounds = [f"at least {gate.low:g}"] if gate.low is not None else []
    bounds += [f"at most {gate.high:g}"] if gate.high is not None else []
    text = f"{gate.name}: the value is {reading.value:g}, limit {' and '.join(bounds)}"
    outcome = Outcome.REGRESSED if low or high else Outcome.PASSED
    limit = gate.low if low else gate.high if gate.high is not None else gate.low
    shown = SignalRecord(gate.name, "", outcome.value, message=text)
    record = record_without_latency(gate.name, reading.value, limit or 0.0)
    return make_verdict(outcome, record, text, None, "Gate", (shown,))
