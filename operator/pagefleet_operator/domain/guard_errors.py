"""The error signal of the guard: are more of the canary's requests failing than are accepted?

Failures come in bursts, so they must lie in several slices; seconds in which most of the stable's requests fail too say
something about the machine and are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pagefleet_operator.domain import sequential
from pagefleet_operator.domain.observation import Slice
from pagefleet_operator.domain.sequential import Evidence
from pagefleet_operator.domain.status import SignalRecord
from pagefleet_operator.domain.verdict import Judged, Outcome, blank, told

CONFIDENCE = 0.99
MIN_REQUESTS = 20
PERIOD = 10.0  # seconds in which the stable's failures excuse the canary's
SHARED_SHARE, SHARED_TRIALS = 0.5, 5  # a period is shared trouble when this share of the stable's requests fails


def rate(most: float, stable: Sequence[Slice], canary: Sequence[Slice], level: float) -> Judged:
    """`most` is the accepted share, `level` the error level of a conviction."""
    shared = _shared(stable)
    counted = [piece for piece in canary if math.floor(piece.start / PERIOD) not in shared]
    evidence = Evidence(sum(piece.errors for piece in counted), sum(piece.requests for piece in counted))
    found = evidence.hits / evidence.trials if evidence.trials else 0.0
    value = sequential.e_value(evidence, min(max(most, 1e-4), 0.99))
    theirs = sum(piece.requests for piece in stable)
    failed = sum(piece.errors for piece in stable)
    text = f"errors: {evidence.hits} of {evidence.trials} requests failed ({found:.2%}), allowed {most:.2%}"
    record = blank("errors", found, most, evidence.trials, value)

    def stated(outcome: Outcome) -> tuple[SignalRecord, ...]:
        aside = f"stable: {failed} of {theirs}" if theirs else ""
        return (
            SignalRecord("errors", "", outcome.value, stable_samples=theirs, canary_samples=evidence.trials,
                         evidence=value, message=f"{text}; {aside}".rstrip("; ")),
        )  # fmt: skip

    if value >= 1 / level and len({piece.start for piece in counted if piece.errors}) >= 2:
        return told(Outcome.REGRESSED, record, text, None, "ErrorRate", stated(Outcome.REGRESSED))
    if evidence.trials < MIN_REQUESTS:
        message = f"errors: {evidence.trials} of {MIN_REQUESTS} requests"
        return told(Outcome.INCONCLUSIVE, record, message, signals=stated(Outcome.INCONCLUSIVE))
    outcome = Outcome.PASSED if value < 10 else Outcome.INCONCLUSIVE
    return told(outcome, record, text, signals=stated(outcome))


def _shared(stable: Sequence[Slice]) -> set[int]:
    periods: dict[int, Evidence] = {}
    for piece in stable:
        period = math.floor(piece.start / PERIOD)
        periods[period] = periods.get(period, Evidence()).plus(piece.errors, piece.requests)
    return {p for p, e in periods.items() if e.trials >= SHARED_TRIALS and e.hits > SHARED_SHARE * e.trials}
