"""The bet that most requests are far slower: each request counts by the highest multiple of the stable's p95 that it exceeds.

A bet at one threshold pays the same for a request just above it and for one ten times as slow. This bet turns the share p of
hits that a threshold expects into the factor K * p ** (K - 1), a calibrator of p-values (Shafer, Shen, Vereshchagin &
Vovk, "Test martingales, Bayes factors and p-values", Statistical Science 2011; Vovk & Wang, "E-values: calibration,
combination and applications", Annals of Statistics 2021): its mean is at most 1 for a request that is no slower than
expected, and K, far below 1, is what a request below all thresholds pays.

A request that still waits has exceeded some thresholds for certain. It counts as the mean of the factors that it can
still reach, which is a martingale (Doob), and a measurement settles it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

K = 0.25  # the smaller, the more a slow request earns and the more a quick one costs
QUICK = math.log(K)  # of a request below all thresholds
MAX_HIT = 3.0  # of the logarithm of a request's factor: one request must not decide


@dataclass(frozen=True)
class Severe:
    """Logarithms by threshold: of exceeding it, having exceeded the one before; and of a measurement that exceeds it and not
    the next one. `quick` is of a measurement below all thresholds."""

    exceeds: tuple[float, ...]
    stays: tuple[float, ...]
    quick: float

    def ratio(self, decided: Sequence[tuple[float, float]]) -> float:
        """Return the logarithm for the requests that became certain, and how many of them exceed, by threshold."""
        below = [requests - hits for requests, hits in decided]
        paid = sum(hits * up for (_, hits), up in zip(decided, self.exceeds, strict=True))
        settled = sum(
            (more - less) * down for (less, more), down in zip(itertools.pairwise(below), self.stays, strict=False)
        )
        return paid + settled + below[0] * self.quick


def severe(shares: Sequence[float]) -> Severe:
    """Return the bet against "at most `shares` of the requests exceed the thresholds", which are in ascending order."""
    return _severe(tuple(shares))


@lru_cache(maxsize=64)  # the pods of a slice and the canary have the same
def _severe(shares: tuple[float, ...]) -> Severe:
    shares = tuple(itertools.accumulate(shares, min))
    factors = [min(math.exp(MAX_HIT), K * share ** (K - 1)) for share in shares]
    means = [factors[-1]]  # of the factors of a request that exceeds a threshold
    for place in range(len(shares) - 2, -1, -1):
        onward = shares[place + 1] / shares[place]
        means.insert(0, onward * means[0] + (1 - onward) * factors[place])
    logs = [math.log(mean) for mean in means]
    return Severe(
        tuple(own - before for before, own in itertools.pairwise((0.0, *logs))),
        tuple(math.log(factor) - own for factor, own in zip(factors, logs, strict=True)),
        QUICK,
    )
