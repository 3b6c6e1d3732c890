"""Latency histograms in logarithmic buckets: the gateway and the load test fill them, the operator reads them
(docs/reference/contract/gateway.md).

Bucket i holds (1e-4 * 1.02^(i-1), 1e-4 * 1.02^i] seconds, and bucket 0 everything up to 0.1 ms. A quantile read from
it is within 2 % (the relative-error guarantee of DDSketch, Masson, Rim, Lee, VLDB 2019). Bucket numbers travel as JSON.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

SMALLEST, GROWTH = 1e-4, 1.02  # seconds; the ratio of a bucket's ends
LAST = 1163  # ends above a million seconds: no latency is longer
Histogram = Mapping[int, int]

_SCALE = 1.0 / math.log(GROWTH)


def upper(bucket: int) -> float:
    """The bucket's upper end in seconds."""
    return SMALLEST * GROWTH**bucket


_LONGEST = upper(LAST)


def bucket_of(seconds: float) -> int:
    """The bucket of a latency in seconds. Raises ValueError for a negative value or NaN."""
    if not seconds >= 0:
        raise ValueError(f"a latency must be 0 or more seconds, got {seconds!r}")
    if seconds <= SMALLEST:
        return 0
    if seconds >= _LONGEST:
        return LAST
    bucket = math.ceil(math.log(seconds / SMALLEST) * _SCALE)
    # The logarithm is off by a rounding error at a bucket's end; the end itself decides.
    if upper(bucket - 1) >= seconds:
        return bucket - 1
    return bucket + 1 if upper(bucket) < seconds else bucket


def total(histogram: Histogram) -> int:
    return sum(histogram.values())


def merged(histograms: list[Histogram]) -> dict[int, int]:
    result: dict[int, int] = {}
    for histogram in histograms:
        add_onto(result, histogram)
    return result


def add_onto(sums: dict[int, int], histogram: Histogram) -> None:
    """Add the counts of a histogram to `sums` in place."""
    for bucket, count in histogram.items():
        sums[bucket] = sums.get(bucket, 0) + count


def take_off(sums: dict[int, int], histogram: Histogram) -> None:
    """Take the counts of a histogram, which were added before, off `sums` in place. A bucket without counts leaves."""
    for bucket, count in histogram.items():
        left = sums.get(bucket, 0) - count
        if left:
            sums[bucket] = left
        else:
            sums.pop(bucket, None)


class Ranks:
    """A histogram in the order of its buckets, for many quantiles of it."""

    def __init__(self, histogram: Histogram) -> None:
        self._buckets = sorted(histogram)
        self._counts = list(accumulate(map(histogram.__getitem__, self._buckets)))

    @property
    def total(self) -> int:
        return self._counts[-1] if self._counts else 0

    def bucket_at(self, position: int) -> int | None:
        """The bucket of the `position`-th smallest (1-based); None beyond the last."""
        place = bisect_left(self._counts, max(1, position))
        return self._buckets[place] if place < len(self._buckets) else None

    def rank(self, position: int) -> float | None:
        """The value of the `position`-th smallest (1-based); None beyond the last."""
        bucket = self.bucket_at(position)
        return None if bucket is None else upper(bucket)

    def quantile(self, q: float) -> float | None:
        """The q-quantile in seconds (nearest rank, upper end of its bucket); None when empty."""
        return self.rank(math.ceil(q * self.total))

    def interval(self, q: float) -> tuple[float, float] | None:
        """An interval of 95 % for the q-quantile in seconds, from the ranks n q +- 1.96 sqrt(n q (1 - q)); None when
        empty."""
        count = self.total
        if not count:
            return None
        margin = 1.96 * math.sqrt(count * q * (1 - q))
        low = self.rank(math.floor(count * q - margin))
        high = self.rank(min(count, math.ceil(count * q + margin) + 1))
        return None if low is None or high is None else (low, high)


def quantile(histogram: Histogram, q: float) -> float | None:
    """The q-quantile in seconds (`Ranks.quantile`). `Ranks` itself sorts once for several."""
    return Ranks(histogram).quantile(q)


def rank(histogram: Histogram, position: int) -> float | None:
    """The value of the `position`-th smallest, 1-based (`Ranks.rank`)."""
    return Ranks(histogram).rank(position)


def bucket_at(histogram: Histogram, position: int) -> int | None:
    """The bucket of the `position`-th smallest, 1-based (`Ranks.bucket_at`)."""
    return Ranks(histogram).bucket_at(position)


def above(histogram: Histogram, bound: float) -> int:
    """How many lie certainly above `bound` seconds: the bucket that holds the bound counts as below."""
    return beyond(histogram, bucket_of(bound))


def beyond(histogram: Histogram, limit: float) -> int:
    """How many lie in buckets with a number above `limit`."""
    return sum(count for bucket, count in histogram.items() if bucket > limit)


def share_above(histogram: Histogram, bound: float) -> float:
    """How many lie above `bound` seconds, the bucket that holds it split in proportion (its ends are 2 % apart)."""
    limit = bucket_of(bound)
    inside = histogram.get(limit, 0)
    if not inside or limit == 0:
        return float(above(histogram, bound))
    part = math.log(upper(limit) / bound) / math.log(GROWTH)
    return above(histogram, bound) + inside * min(1.0, max(0.0, part))


def with_lasting(measured: Histogram, ages: Histogram, bound: float) -> dict[int, int]:
    """Return the latencies together with the ages above `bound` of requests that have no latency yet, or never will.

    Such an age is a lower bound on the latency. Nothing is known of the others, so they are left out.
    """
    limit = bucket_of(bound)
    return merged([measured, {bucket: count for bucket, count in ages.items() if bucket > limit}])


def interval(histogram: Histogram, q: float) -> tuple[float, float] | None:
    """An interval of 95 % for the q-quantile in seconds (`Ranks.interval`)."""
    return Ranks(histogram).interval(q)


def coarse(histogram: Histogram, most: int) -> dict[int, int]:
    """Merge into `most` buckets at most. A count moves up only, so a bound read from them is never too low."""
    result, width = dict(histogram), 1
    while len(result) > most:
        width *= 2
        result = {}
        for bucket, count in histogram.items():
            place = -(-bucket // width) * width
            result[place] = result.get(place, 0) + count
    return dict(sorted(result.items()))


def stored(histogram: Histogram, most: int) -> dict[str, int]:
    """Return the histogram in `most` buckets at most (`coarse`), with their numbers as the text that JSON needs."""
    return {str(bucket): count for bucket, count in coarse(histogram, most).items()}
