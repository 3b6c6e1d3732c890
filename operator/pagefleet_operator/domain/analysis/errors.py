"""The error signal of the guard: whether more of the canary's requests fail than the spec accepts, and than the stable's.

`failures` has the evidence. Both must be shown: seconds in which the stable fails too say something about the machine or
about the requests, not about the canary.

An attempt that failed before another attempt is a failure of the revision whose pod failed, although the client may have
got its answer: retries would hide such a canary until it has all traffic.

A 4xx is the client's error, and no failure. But a revision that refuses what the stable accepts (a smaller context, a
broken chat template) is a regression too, so an excess of the canary's 4xx is a signal of its own, `clientErrors`. It
convicts only when it is unmistakable: one client with bad requests must roll nothing back. With sticky sessions all
requests of such a client come to one revision. Requests that a time limit ended are a signal `timeouts` in the same way: they are
among the failures, but a canary that hangs is worse than its share of failures says.

A request that `traffic.fallback` takes to another service reaches no pod of this one, so it is no failure here. The gateways count it at the
revision that it is drawn for, and a guard with `fallbacks` judges the share of those requests in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from pagefleet_operator.domain.analysis.failures import FailureCounts, FailureEvidence, Subject, gather
from pagefleet_operator.domain.analysis.verdict import (
    SUSPICIOUS,
    Outcome,
    Verdict,
    make_verdict,
    record_without_latency,
    worst_of,
)
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.base.logarithms import value_of
from pagefleet_operator.domain.status.failure_record import FailureRecord, FailureTotals
from pagefleet_operator.domain.status.status import SignalRecord

FALLBACKS = "fallbacks"
CONFIDENCE = 0.99
MIN_REQUESTS = 20
EXCESS_PART = 0.1  # of the error level of `errors` is for each of EXCESSES
CLEAR_RATIO = 5.0  # times the stable's share
MAX_PERIOD_LOG = 1.5  # so that an excess must last for six periods
MAX_FALLBACK_LOG = 0.75  # of a period: the evidence takes log(100) at least, so fallbacks must last for a minute


@dataclass(frozen=True)
class Excess:
    """A signal that convicts only when it is unmistakable: above `share`, and more than CLEAR_RATIO times as often as the stable.

    `counts` takes its requests and hits out of a period's.
    """

    signal: str
    reason: str
    text: str
    share: float
    counts: Callable[[FailureCounts], FailureCounts]

    def evidence(
        self, stored: Iterable[FailureRecord], errors: Subject, periods: Mapping[int, FailureCounts]
    ) -> FailureEvidence:
        """The evidence from the same requests as those of `errors`."""
        subject = replace(errors, signal=self.signal, limit=self.share, ratio=CLEAR_RATIO, ceiling=MAX_PERIOD_LOG)
        return gather(stored, subject, periods, self.counts)


def judge(
    stored: Collection[FailureRecord], subject: Subject, periods: Mapping[int, FailureCounts], level: float
) -> Verdict:
    """Judge the new periods with what is stored, at the error level `level` for errors and EXCESSES together."""
    evidence = gather(stored, subject, periods)
    own_level = (1 - EXCESS_PART * len(EXCESSES)) * level
    verdict = _judge_share(_Wording("errors", "ErrorRate", "failed", "fails as often"), evidence, own_level)
    gathered = [(excess, excess.evidence(stored, subject, periods)) for excess in EXCESSES]
    others = [_judge_excess(excess, own, EXCESS_PART * level) for excess, own in gathered]
    worst = worst_of([verdict, *(other for other in others if other is not None)])
    return replace(worst, failures=(evidence.settled, *(own.settled for _, own in gathered)))


def judge_fallbacks(
    stored: Collection[FailureRecord], subject: Subject, periods: Mapping[int, FailureCounts], level: float
) -> Verdict:
    """Judge the requests that another service answered, as `judge` judges the failed ones.

    What a period adds is bounded: pods that are not ready for less than a minute roll nothing back.
    """
    evidence = gather(stored, replace(subject, ceiling=MAX_FALLBACK_LOG), periods, _of_fallbacks)
    wording = _Wording(FALLBACKS, "Fallbacks", "were answered by the fallback service", "falls back as often")
    return replace(_judge_share(wording, evidence, level), failures=(evidence.settled,))


@dataclass(frozen=True)
class _Wording:
    """The names of a signal and of its rollback, what became of the requests, and the excuse that the stable does the same."""

    signal: str
    reason: str
    text: str
    excuse: str


def _judge_share(wording: _Wording, evidence: FailureEvidence, level: float) -> Verdict:
    """Judge a share of the canary's requests by its limit and by the stable's share at the same time."""
    total, recent, max_rate = evidence.now.total, evidence.now.recent, evidence.now.limit
    log, name = evidence.log(level), wording.signal
    value = value_of(log)
    regressed = log >= math.log(1 / level)
    shown = recent if regressed else total
    rate = shown.canary_failed / shown.canary if shown.canary else 0.0
    text = f"{name}: {_sentence(wording.text, shown, rate, max_rate)}"
    if regressed:
        outcome, message = Outcome.REGRESSED, f"{text}; within {evidence.seconds:.0f} s"
    elif total.canary < MIN_REQUESTS:
        outcome, message = Outcome.INCONCLUSIVE, f"{name}: {total.canary} of the {MIN_REQUESTS} requests needed"
    else:
        outcome, message = Outcome.PASSED if value < SUSPICIOUS else Outcome.INCONCLUSIVE, text
    if (
        not regressed
        and rate > max_rate
        and 0 < shown.canary_failed * shown.stable <= shown.stable_failed * shown.canary
    ):
        message += f"; the stable revision {wording.excuse}, so this is no regression"
    record = record_without_latency(name, rate, max_rate, shown.canary, value)
    signal = SignalRecord(
        name, "", outcome.value, stable_samples=shown.stable, canary_samples=shown.canary, evidence=value,
        message=text,
    )  # fmt: skip
    return make_verdict(outcome, record, message, None, wording.reason if regressed else "", (signal,))


def _sentence(text: str, counts: FailureTotals, rate: float, max_rate: float) -> str:
    retried = f", {counts.retried} of them attempts that were retried on another pod" if counts.retried else ""
    fell_back = f", {counts.fell_back} more were answered by the fallback service" if counts.fell_back else ""
    stable = ""
    if counts.stable:
        share = counts.stable_failed / counts.stable
        stable = f"; {counts.stable_failed} of {counts.stable} of the stable ({share:.2%})"
    return f"{counts.canary_failed} of {counts.canary} canary requests {text} ({rate:.2%}, limit {max_rate:.2%}){retried}{fell_back}{stable}"


def _judge_excess(excess: Excess, evidence: FailureEvidence, level: float) -> Verdict | None:
    """Judge the canary's share against the stable's at the same time; None while the canary has none."""
    log, needed = evidence.log(level), math.log(1 / level)
    clear = log >= needed
    counts = evidence.now.recent if clear else evidence.now.total
    if not counts.canary_failed:
        return None
    share = counts.canary_failed / counts.canary
    stable_share = counts.stable_failed / counts.stable if counts.stable else 0.0
    text = (
        f"{excess.signal}: {counts.canary_failed} of {counts.canary} canary requests {excess.text} ({share:.2%}), "
        f"{counts.stable_failed} of {counts.stable} of the stable ({stable_share:.2%})"
    )
    outcome = Outcome.REGRESSED if clear else Outcome.PASSED
    value = value_of(log)
    limit = max(excess.share, CLEAR_RATIO * stable_share)
    record = record_without_latency(excess.signal, share, limit, counts.canary, value)
    shown = SignalRecord(
        excess.signal, "", outcome.value, stable_samples=counts.stable, canary_samples=counts.canary, evidence=value,
        message=text,
    )  # fmt: skip
    return make_verdict(outcome, record, text, None, excess.reason, (shown,))


def _of_client_errors(period: FailureCounts) -> FailureCounts:
    """A refused request is not among the requests that ended."""
    stable, canary = period.stable + period.stable_client_errors, period.canary + period.canary_client_errors
    own = FailureCounts(stable, period.stable_client_errors, canary, period.canary_client_errors)
    return replace(own, stable_arrived=period.stable_arrived, canary_arrived=period.canary_arrived)


def _of_timeouts(period: FailureCounts) -> FailureCounts:
    own = FailureCounts(period.stable, period.stable_timeouts, period.canary, period.canary_timeouts)
    return replace(own, stable_arrived=period.stable_arrived, canary_arrived=period.canary_arrived)


def _of_fallbacks(period: FailureCounts) -> FailureCounts:
    """A request that fell back is among those that neither ended nor came."""
    stable, canary = period.stable_fell_back, period.canary_fell_back
    own = FailureCounts(period.stable + stable, stable, period.canary + canary, canary)
    arrived = period.stable_arrived + stable, period.canary_arrived + canary
    return replace(own, stable_arrived=arrived[0], canary_arrived=arrived[1])


EXCESSES = (
    Excess("clientErrors", "ClientErrors", "were refused with 4xx", 0.1, _of_client_errors),
    Excess("timeouts", "Timeouts", "were ended by a time limit", 0.02, _of_timeouts),
)
