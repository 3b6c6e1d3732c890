"""The error signal of the guard: are more of the canary's requests failing than are accepted?

Failures come in bursts, so they must lie in several slices; seconds in which most of the stable's requests fail too say
something about the machine and are left out.
"""

from __future__ import annotations

from collections.abc import Collection

from pagefleet_operator.domain.analysis import sequential
from pagefleet_operator.domain.analysis.fold import Failures
from pagefleet_operator.domain.analysis.sequential import Evidence
from pagefleet_operator.domain.analysis.verdict import Judged, Outcome, blank, told
from pagefleet_operator.domain.status.status import SignalRecord

CONFIDENCE = 0.99
MIN_REQUESTS = 20
SHARED_SHARE, SHARED_TRIALS = 0.5, 5  # a period is shared trouble when this share of the stable's requests fails


def rate(most: float, periods: Collection[Failures], level: float) -> Judged:
    """`most` is the accepted share, `level` the error level of a conviction."""
    counted = [period for period in periods if not _shared(period)]
    evidence = Evidence(sum(period.canary_failed for period in counted), sum(period.canary for period in counted))
    found = evidence.hits / evidence.trials if evidence.trials else 0.0
    value = sequential.e_value(evidence, min(max(most, 1e-4), 0.99))
    theirs = sum(period.stable for period in periods)
    failed = sum(period.stable_failed for period in periods)
    text = f"errors: {evidence.hits} of {evidence.trials} requests failed ({found:.2%}), allowed {most:.2%}"
    record = blank("errors", found, most, evidence.trials, value)

    def stated(outcome: Outcome) -> tuple[SignalRecord, ...]:
        aside = f"stable: {failed} of {theirs}" if theirs else ""
        return (
            SignalRecord("errors", "", outcome.value, stable_samples=theirs, canary_samples=evidence.trials,
                         evidence=value, message=f"{text}; {aside}".rstrip("; ")),
        )  # fmt: skip

    if value >= 1 / level and len({start for period in counted for start in period.starts}) >= 2:
        return told(Outcome.REGRESSED, record, text, None, "ErrorRate", stated(Outcome.REGRESSED))
    if evidence.trials < MIN_REQUESTS:
        message = f"errors: {evidence.trials} of {MIN_REQUESTS} requests"
        return told(Outcome.INCONCLUSIVE, record, message, signals=stated(Outcome.INCONCLUSIVE))
    outcome = Outcome.PASSED if value < 10 else Outcome.INCONCLUSIVE
    return told(outcome, record, text, signals=stated(outcome))


def _shared(period: Failures) -> bool:
    """Whether it says something about the machine: most of the stable's requests fail too."""
    return period.stable >= SHARED_TRIALS and period.stable_failed > SHARED_SHARE * period.stable
