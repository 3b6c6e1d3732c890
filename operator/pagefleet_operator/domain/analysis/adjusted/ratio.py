"""The ratio of the canary's load-adjusted quantile to the stable's, with an interval: what the canary has been shown to be.

A quantile's interval runs between two ranks of the canary's own requests (order statistics; David & Nagaraja, "Order
Statistics", 2003, section 7.1), whose distance is widened by how much more hits scatter than those of independent requests.
The stable's requests are weighted so that its mix of load strata is the canary's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram

DEVIATIONS = 1.645  # of an interval's ends: each holds with a confidence of 95 %
MIN_STABLE = 20  # requests of the stable that a stratum needs


@dataclass(frozen=True)
class Ratio:
    """The canary's quantile as a multiple of the stable's. `high` is None while there are too few requests for it.

    `requests` are the canary's in strata that the stable has as well; `others` are the rest.
    """

    value: float
    low: float
    high: float | None
    requests: int
    others: int


def ratio(
    canary: Mapping[str, Histogram], lasting: Histogram, stable: Mapping[str, Histogram], quantile: float, spread: float
) -> Ratio | None:
    """Compare a quantile; None while there is no stratum with requests of both.

    `lasting` are requests without a measurement, by their age: those that are older than the quantile count as slow.
    `spread` is the variance of hits as a multiple of independent requests' variance.
    """
    common = {name for name, own in stable.items() if sketch.total(own) >= MIN_STABLE and canary.get(name)}
    measured = sketch.merged([canary[name] for name in sorted(common)])
    if not measured:
        return None
    weights = {name: sketch.total(canary[name]) / sketch.total(stable[name]) for name in common}
    base = _weighted_quantile({name: stable[name] for name in common}, weights, quantile)
    own = sketch.with_lasting(measured, lasting, base)
    count = sketch.total(own)
    margin = DEVIATIONS * math.sqrt(spread * count * quantile * (1 - quantile))
    ranks = sketch.Ranks(own)
    value, low = ranks.quantile(quantile), ranks.rank(math.floor(count * quantile - margin))
    high = ranks.rank(math.ceil(count * quantile + margin) + 1)
    if value is None or low is None:
        return None
    others = sum(sketch.total(entry) for name, entry in canary.items() if name not in common)
    return Ratio(value / base, low / base, None if high is None else high / base, sketch.total(measured), others)


def requests_needed(pooled: Histogram, quantile: float, increase: float, spread: float) -> int | None:
    """Return how many requests a canary that is as good as the stable needs until its ratio's interval lies below 1 + `increase`.

    `pooled` are the stable's in all strata. None: it has too few requests to tell.
    """
    count = sketch.total(pooled)
    middle = sketch.quantile(pooled, quantile)
    if middle is None or count < MIN_STABLE / (1 - quantile):
        return None
    limit = sketch.bucket_of((1 + increase) * middle)
    below = sum([number for bucket, number in pooled.items() if bucket < limit]) / count
    room = below - quantile  # how far the rank may lie above the quantile's
    if room <= 0:
        return None
    return math.ceil(DEVIATIONS**2 * spread * quantile * (1 - quantile) / room**2)


def _weighted_quantile(stable: Mapping[str, Histogram], weights: Mapping[str, float], quantile: float) -> float:
    mixed: dict[int, float] = {}
    for name, own in stable.items():
        weight = weights[name]
        for bucket, count in own.items():
            mixed[bucket] = mixed.get(bucket, 0.0) + weight * count
    rank, counted, bucket = quantile * sum(mixed.values()), 0.0, 0
    for bucket in sorted(mixed):
        counted += mixed[bucket]
        if counted >= rank - 1e-9:
            break
    return sketch.upper(bucket)
