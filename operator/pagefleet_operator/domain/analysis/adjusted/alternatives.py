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
# By alternative: the place of its threshold, and THRESHOLDS for the bet on all multiples together.
BET_OF = tuple(place // len(ODDS) for place in range(COUNT))
MAX_SHARE = 0.98
LOG_ODDS = tuple(map(math.log, ODDS))


@lru_cache(maxsize=4096)
def ratios(share: float, hits: float, misses: float) -> tuple[float, ...]:
    """Return the logarithm of the likelihood ratio against "at most `share` of the requests are hits", for each of ODDS."""
    return tuple([hits * up + misses * down for up, down in zip(*stakes(share), strict=True)])


@lru_cache(maxsize=1024)
def stakes(share: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the logarithms of the likelihood ratios of one hit, and of one miss, for each of ODDS.

    With the odds r times those of the share p, a hit has the ratio r / (1 + (r - 1) p) and a miss 1 / (1 + (r - 1) p).
    """
    share = min(share, MAX_SHARE)
    logs = [math.log1p((odds - 1) * share) for odds in ODDS]
    return tuple([up - log for up, log in zip(LOG_ODDS, logs, strict=True)]), tuple([-log for log in logs])
