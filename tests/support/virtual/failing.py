"""Asks the error signal of the guard for its verdict on periods of failures, and draws such periods from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from pagefleet_operator.domain.analysis import errors, failures
from pagefleet_operator.domain.analysis.failures import PERIOD_SECONDS, FailureCounts, FailureEvidence, Subject
from pagefleet_operator.domain.analysis.verdict import Verdict
from pagefleet_operator.domain.status.failure_record import FailureRecord

LEVEL = 0.005  # of the errors, with one other signal in the guard


def judge(periods: list[FailureCounts], max_rate: float = 0.01, level: float = LEVEL) -> Verdict:
    """The verdict on all periods at once."""
    return errors.judge((), Subject("errors", "gateway", "s", 0.0, max_rate), dict(enumerate(periods)), level)


def evidences(periods: Iterator[FailureCounts], max_rate: float = 0.01) -> Iterator[FailureEvidence]:
    """The evidence at the end of each period; only the stored record is left of those before."""
    stored: tuple[FailureRecord, ...] = ()
    subject, recent = Subject("errors", "gateway", "s", 0.0, max_rate), dict[int, FailureCounts]()
    for number, period in enumerate(periods):
        recent = {n: one for n, one in recent.items() if n >= number - 3} | {number: period}
        evidence = failures.gather(stored, subject, recent)
        stored = (evidence.settled,)
        yield evidence


def convicts(evidence: FailureEvidence, level: float = LEVEL) -> bool:
    return evidence.log(0.8 * level) >= -math.log(0.8 * level)


def draw(source: random.Random, rates: tuple[float, float], counts: tuple[float, float] = (90, 10)) -> FailureCounts:
    """A period with about `counts` requests of stable and canary, which fail at `rates`."""
    stable, canary = (_poisson(source, mean) for mean in counts)
    stable_failed, canary_failed = _binomial(source, stable, rates[0]), _binomial(source, canary, rates[1])
    starts = tuple(source.randrange(int(PERIOD_SECONDS / 2)) * 2.0 for _ in range(canary_failed))
    return FailureCounts(stable, stable_failed, canary, canary_failed, starts)


def _poisson(source: random.Random, mean: float) -> int:
    return max(0, round(source.gauss(mean, mean**0.5)))


def _binomial(source: random.Random, count: int, share: float) -> int:
    """Draw the gaps between hits, which is quick where they are rare."""
    hits, place = 0, 0
    while share > 0:
        place += 1 + int(math.log(1 - source.random()) / math.log1p(-share)) if share < 1 else 1
        if place > count:
            break
        hits += 1
    return hits
