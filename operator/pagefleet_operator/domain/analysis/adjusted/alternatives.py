"""The alternatives that the evidence bets on: at each threshold, odds of a hit that are some times what is accepted; and that most
requests are far slower (`severe`)."""

from __future__ import annotations

import math
from functools import lru_cache

from pagefleet_operator.domain.analysis.adjusted.reference import MULTIPLES, QUANTILES

ODDS = (1.5, 2.0, 4.0, 16.0)
THRESHOLDS = len(QUANTILES) + len(MULTIPLES)
SEVERE = THRESHOLDS * len(ODDS)  # the place of the bet on all multiples together (`severe`)
COUNT = SEVERE + 1  # alternatives: those of the first threshold, then those of the second, ..., then SEVERE
SEVERE_SHARE = 0.25
SHARES = (*((1 - SEVERE_SHARE) / SEVERE,) * SEVERE, SEVERE_SHARE)  # their prior weights
MAX_SHARE = 0.98


@lru_cache(maxsize=4096)
def ratios(share: float, hits: float, misses: float) -> tuple[float, ...]:
    """Return the logarithm of the likelihood ratio against "at most `share` of the requests are hits", for each of ODDS."""
    return tuple([hits * up + misses * down for up, down in stakes(share)])


@lru_cache(maxsize=1024)
def stakes(share: float) -> tuple[tuple[float, float], ...]:
    """Return the logarithms of the likelihood ratios of one hit and of one miss, for each of ODDS."""
    share = min(share, MAX_SHARE)
    chances = [odds * share / (1 - share + odds * share) for odds in ODDS]
    return tuple([(math.log(chance / share), math.log((1 - chance) / (1 - share))) for chance in chances])
