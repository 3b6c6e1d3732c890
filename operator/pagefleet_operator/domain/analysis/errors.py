"""The error signal of the guard: a test whether more of the canary's requests fail than the spec accepts.

Failures come in bursts, so they must lie in several slices. Seconds in which most of the stable's requests fail too
say something about the machine, not about the canary, and are left out.
"""

from __future__ import annotations

from collections.abc import Collection

from pagefleet_operator.domain.analysis import sequential
from pagefleet_operator.domain.analysis.accumulate import FailureCounts
from pagefleet_operator.domain.analysis.sequential import Evidence
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict, make_verdict, record_without_latency
from pagefleet_operator.domain.status.status import SignalRecord

CONFIDENCE = 0.99
MIN_REQUESTS = 20
SHARED_SHARE, MIN_SHARED_REQUESTS = 0.5, 5  # a period is shared trouble when this share of the stable's requests fails
MIN_FAILING_SLICES = 2
SUSPICIOUS = 10.0  # an e-value from which a canary that is not convicted does not pass either


def judge(max_rate: float, periods: Collection[FailureCounts], level: float) -> Verdict:
    """`max_rate` is the accepted share of failures, `level` the error level of a conviction."""
    counted = [period for period in periods if not _is_shared(period)]
    evidence = Evidence(sum(period.canary_failed for period in counted), sum(period.canary for period in counted))
    rate = evidence.hits / evidence.trials if evidence.trials else 0.0
    value = sequential.e_value(evidence, min(max(max_rate, 1e-4), 0.99))
    text = f"errors: {evidence.hits} of {evidence.trials} canary requests failed ({rate:.2%}, limit {max_rate:.2%})"
    record = record_without_latency("errors", rate, max_rate, evidence.trials, value)
    failing_slices = {start for period in counted for start in period.starts}
    if value >= 1 / level and len(failing_slices) >= MIN_FAILING_SLICES:
        outcome, message = Outcome.REGRESSED, text
    elif evidence.trials < MIN_REQUESTS:
        outcome, message = Outcome.INCONCLUSIVE, f"errors: {evidence.trials} of the {MIN_REQUESTS} requests needed"
    else:
        outcome, message = Outcome.PASSED if value < SUSPICIOUS else Outcome.INCONCLUSIVE, text
    stable, failed = sum(period.stable for period in periods), sum(period.stable_failed for period in periods)
    shown = SignalRecord(
        "errors", "", outcome.value, stable_samples=stable, canary_samples=evidence.trials, evidence=value,
        message=f"{text}; stable: {failed} of {stable}" if stable else text,
    )  # fmt: skip
    reason = "ErrorRate" if outcome is Outcome.REGRESSED else ""
    return make_verdict(outcome, record, message, None, reason, (shown,))


def _is_shared(period: FailureCounts) -> bool:
    """Whether most of the stable's requests fail too, so that the period says something about the machine."""
    return period.stable >= MIN_SHARED_REQUESTS and period.stable_failed > SHARED_SHARE * period.stable
