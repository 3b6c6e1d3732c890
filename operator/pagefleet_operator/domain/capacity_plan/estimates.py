"""What a revision's readings say about the numbers of a plan: each an interval that holds the number almost certainly.

A replica that is half idle generates few tokens per second, and that says nothing of its capacity. So the throughput at the planned
concurrency c is bounded by what was seen at another concurrency r, with two facts about batching. A larger batch generates no fewer
tokens per second in all, and no more per sequence. With the throughput T(r) that was seen:

    r below c:  T(r) <= T(c) <= T(r) x c / r
    r above c:  T(r) x c / r <= T(c) <= T(r)

The bounds are close where the load was close to the planned one, and far apart otherwise. Even far apart they can refute a plan: a
replica that is slow with few sequences is not quick with many. Where readings show how the throughput rises, the curve that the
autoscaler learns (`scaling.throughput`) narrows the interval. It is not extended further than EXTENDED times what was seen.

KV tokens of a request and its output tokens do not depend on the load. They are ratios of sums over batches of a few minutes (batch
means: Law, Simulation Modeling and Analysis, 5th edition, 2015, section 9.5.3), because neighbouring half-minutes hold the same requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean, variance

from pagefleet_operator.domain.scaling import throughput
from pagefleet_operator.domain.scaling.throughput import MEAN_SECONDS, Mean
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad

SURE = 3.0  # standard errors
MIN_POINTS, NEAREST = 8, 12  # half-minutes that a bound of the throughput is taken from
NEAR = 1.15  # times the lower one, up to which two bounds are one number: the load was close to the planned one
STEADY = 0.25  # of the running requests, by which they may change in a half-minute
MIN_CHANGE = 2.0  # requests that are no change
EXTENDED = 1.5
BATCH, MIN_BATCHES = 5, 4  # half-minutes of a batch; batches of a ratio
MIN_REQUESTS = 50
BUSIEST_SECONDS = 300.0


@dataclass(frozen=True)
class Estimate:
    """`value` lies between `low` and `high`. It is None where only these two are known."""

    low: float
    high: float
    value: float | None = None

    def nearest(self, planned: float) -> float:
        """The value; without one the number of the interval that is nearest to the planned one."""
        return self.value if self.value is not None else min(max(planned, self.low), self.high)


def throughput_at(samples: Sequence[Sample], concurrency: float) -> Estimate | None:
    """Output tokens per second of a replica that runs so many requests; None while too few readings say anything about it."""
    busy = [one for one in samples if one.fresh and not one.silent]
    points = [mean for mean in throughput.means(busy)[:-1] if _steady(mean)]
    bounds = [_bounds(points, concurrency, above) for above in (False, True)]
    known = [one for one in bounds if one is not None]
    if not known:
        return None
    low, high = max(one.low for one in known), min(one.high for one in known)
    low, high = min(low, high), max(low, high)
    each = [mean.running / mean.replicas for mean in points]
    curve = throughput.fit(points, concurrency)
    if curve is None or not curve.shown or not min(each) / EXTENDED <= concurrency <= max(each) * EXTENDED:
        close = [min(max(one.value, low), high) for one in known if one.value is not None]
        return Estimate(low, high, close[0] if close else None)
    value = min(max(curve.throughput(concurrency), low), high)
    surely, at_most = curve.throughput(concurrency, SURE), curve.throughput(concurrency, -SURE) or math.inf
    return Estimate(min(max(low, surely), value), max(min(high, at_most), value), value)


def kv_tokens(samples: Sequence[Sample], page_tokens: int, shared: float) -> Estimate | None:
    """Tokens in the KV cache that a running request holds; `shared` are those that a replica holds once for all.

    Its last page is half full on average.
    """
    usable = [one for one in samples if one.fresh and one.load.kv_pages_total]
    means = [mean for mean in throughput.means(usable)[:-1] if mean.running >= mean.replicas]
    blank = page_tokens / 2 if page_tokens > 1 else 0.0
    held = [mean.kv_pages_used * page_tokens - blank * mean.running - shared * mean.replicas for mean in means]
    return _ratio(held, [mean.running for mean in means], BATCH)


def kv_cache_tokens(latest: Sample, page_tokens: int) -> Estimate | None:
    """Tokens that the KV cache of a replica has room for, as the engines state it."""
    pages = latest.load.kv_pages_total
    if not pages or not latest.complete:
        return None
    tokens = float(pages) * page_tokens / latest.fresh
    return Estimate(tokens, tokens, tokens)


def output_tokens(samples: Sequence[Sample], started: Mapping[int, int]) -> Estimate | None:
    """Tokens that are generated for a request of a revision.

    `started` are the requests that the gateways have sent to it, by half-minutes since 1970. Those that have ended are these, less the
    ones by which the requests in flight became more.
    """
    means = throughput.means(one for one in samples if one.fresh)[:-1]
    tokens, ended = [], []
    for first in range(0, len(means) - BATCH, BATCH):
        batch, following = means[first : first + BATCH], means[first + BATCH]
        if not all(mean.whole for mean in batch) or following.start - batch[0].start != BATCH * MEAN_SECONDS:
            continue
        sent = sum(started.get(round(mean.start / MEAN_SECONDS), 0) for mean in batch)
        more = following.running + following.waiting - batch[0].running - batch[0].waiting
        tokens.append(sum(mean.tokens for mean in batch) * MEAN_SECONDS)
        ended.append(sent - more)
    return _ratio(tokens, ended, 1) if sum(ended) >= MIN_REQUESTS else None


def busiest_rate(load: ServiceLoad | None) -> Estimate | None:
    """Requests per second in the busiest five minutes of the last hour; the interval is that of a Poisson count."""
    steps = round(BUSIEST_SECONDS / load.step) if load is not None else 0
    if load is None or math.isinf(load.age) or len(load.arrivals) < steps:
        return None
    most = max(sum(load.arrivals[end - steps : end]) for end in range(steps, len(load.arrivals) + 1))
    count = most * load.step
    spread = SURE * math.sqrt(count)
    return Estimate(
        max(0.0, count - spread) / BUSIEST_SECONDS, (count + spread) / BUSIEST_SECONDS, count / BUSIEST_SECONDS
    )


def _steady(mean: Mean) -> bool:
    """Whether a half-minute is like the ones around it: in a burst, prompts take the time of answers."""
    if mean.tokens < throughput.MIN_TOKENS or not mean.replicas or mean.running < 0.5 * mean.replicas:
        return False
    return abs(mean.change) * MEAN_SECONDS <= max(MIN_CHANGE * mean.replicas, STEADY * mean.running)


def _bounds(points: Sequence[Mean], concurrency: float, above: bool) -> Estimate | None:
    """What the half-minutes on one side of the planned concurrency say about the throughput there: those that are nearest to it."""
    seen = [(mean.running / mean.replicas, mean.tokens / mean.replicas) for mean in points]
    # Only the concurrency decides which are taken: of equal ones those with the most tokens would be too quick.
    own = (one for one in seen if (one[0] > concurrency) is above)
    side = sorted(own, key=itemgetter(0), reverse=not above)[:NEAREST]
    if len(side) < MIN_POINTS:
        return None
    total = [tokens for _, tokens in side]
    scaled = [tokens * concurrency / running for running, tokens in side]
    low, high = (scaled, total) if above else (total, scaled)
    least, most = fmean(low), fmean(high)
    value = math.sqrt(least * most) if most <= NEAR * least else None
    return Estimate(max(0.0, least - _error(low)), most + _error(high), value)


def _error(values: Sequence[float]) -> float:
    """SURE standard errors of a mean."""
    return SURE * math.sqrt(variance(values) / len(values))


def _ratio(numerators: Sequence[float], denominators: Sequence[float], size: int) -> Estimate | None:
    """The ratio of two sums, with the interval by the batches of `size`; None for too few batches."""
    starts = range(0, len(numerators) - size + 1, size)
    over = [sum(numerators[start : start + size]) for start in starts]
    under = [sum(denominators[start : start + size]) for start in starts]
    if len(over) < MIN_BATCHES or sum(under) <= 0:
        return None
    value, count = sum(over) / sum(under), len(over)
    spread = sum((a - value * b) ** 2 for a, b in zip(over, under, strict=True)) * count / (count - 1)
    error = SURE * math.sqrt(spread) / sum(under)
    return Estimate(max(0.0, value - error), value + error, max(0.0, value))
