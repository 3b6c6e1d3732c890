"""The share of hits that the stable revision's requests of the same seconds excuse. Pure."""

from __future__ import annotations

import math

from pagefleet_operator.domain.base.logarithms import value_of

SURGE = 0.1  # prior probability of a time at which more requests are hits than usual
GROWTH = 3.0  # mean by which the share is then multiplied: its prior is exponential


def surged(expected: float, requests: float, hits: float) -> float:
    """Return the mean share, by the stable's recent requests, of which so many are hits; at least `expected`.

    The larger one of the expected and the observed share would be too large most of the time by chance alone: of 90 requests of
    which 2 are expected to be hits, 4 are none too rare, and the canary would be excused for twice as many hits. So the
    share is as expected or has surged, and both are weighed by how likely they make the hits: Poisson's probability against
    its mean over the prior of a surge (the negative binomial; Robbins, "An empirical Bayes approach to statistics", 1956).
    """
    mean = expected * requests
    if mean <= 0 or hits + 1 <= mean + 1 / GROWTH:  # the mean share of a surge is no larger
        return expected
    usual = hits * math.log(mean) - mean - math.lgamma(hits + 1)
    more = hits * math.log(GROWTH * mean / (1 + GROWTH * mean)) - math.log1p(GROWTH * mean)
    weight = SURGE / (SURGE + (1 - SURGE) * value_of(usual - more))
    share = expected * (hits + 1) / (mean + 1 / GROWTH)
    return min(1.0, expected + weight * (share - expected))
