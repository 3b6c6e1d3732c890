"""Sequential tests that stay valid however often one looks.

An e-process for a Bernoulli share p against the null p <= p0: the mixture of likelihood ratios over several
alternatives, a non-negative martingale at p0 (Waudby-Smith & Ramdas, "Estimating means of bounded random variables by
betting", JRSS-B 2023, section 4). By Ville's inequality it exceeds 1/alpha with probability at most alpha under the
null, at any time. All arithmetic is in logarithms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagefleet_operator.domain.base.logarithms import log_sum, value_of

# Alternatives as multiples of the odds of p0: from barely worse to nearly always.
ODDS = (1.5, 2.0, 3.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True)
class Evidence:
    """Counts so far. `hits` are the requests that broke the bound."""

    hits: int = 0
    trials: int = 0

    def plus(self, hits: int, trials: int) -> Evidence:
        """Add counts."""
        return Evidence(self.hits + hits, self.trials + trials)


def e_value(evidence: Evidence, share: float) -> float:
    """Evidence against "at most `share` of requests break the bound"; >= 1/alpha rejects it at level alpha."""
    if not 0 < share < 1:
        raise ValueError(f"a share lies between 0 and 1, not {share}")
    misses, logs = evidence.trials - evidence.hits, []
    for odds in ODDS:
        alternative = odds * share / (1 - share + odds * share)
        ratio = evidence.hits * math.log(alternative / share) + misses * math.log((1 - alternative) / (1 - share))
        logs.append(ratio - math.log(len(ODDS)))
    return value_of(log_sum(logs))


def min_samples(q: float, alpha: float) -> int:
    """The smallest sample whose largest value is above the q-quantile with confidence 1 - alpha/2."""
    return math.ceil(math.log(alpha / 2) / math.log(q))


def upper_rank(samples: int, q: float, alpha: float) -> int:
    """The rank (1-based) of the smallest order statistic above the q-quantile with confidence 1 - alpha.

    P(the k-th smallest of n < the q-quantile) = P(Binomial(n, q) >= k). `samples` when even the largest is not.
    """
    tail, k = 0.0, samples + 1
    while k > 0 and tail + _binomial(samples, k - 1, q) <= alpha:
        k -= 1
        tail += _binomial(samples, k, q)
    return min(k, samples)


def _binomial(n: int, k: int, p: float) -> float:
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(log + k * math.log(p) + (n - k) * math.log1p(-p))
