"""Log buckets for latencies: any quantile read from them is within 2 %. Never keeps a single value.

Bucket i holds (1e-4 * 1.02^(i-1), 1e-4 * 1.02^i] seconds; bucket 0 takes everything up to 0.1 ms. Source: the
logarithmic mapping of DDSketch (Masson, Rim, Lee, VLDB 2019). The operator has the same buckets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

BASE_SECONDS = 1e-4
GROWTH = 1.02
LAST = 1163  # about a million seconds: nothing is longer
_SCALE = 1.0 / math.log(GROWTH)


def upper(bucket: int) -> float:
    """The largest value of a bucket, in seconds."""
    return BASE_SECONDS * GROWTH**bucket


def bucket_of(seconds: float) -> int:
    """The bucket of a latency in seconds. Raises ValueError for a negative value or NaN."""
    if not seconds >= 0:
        raise ValueError(f"a latency must be 0 or more seconds, got {seconds!r}")
    if seconds <= BASE_SECONDS:
        return 0
    if seconds >= upper(LAST):
        return LAST
    bucket = math.ceil(math.log(seconds / BASE_SECONDS) * _SCALE)
    # The logarithm is off by a rounding error at a bucket's edge; the edge itself decides.
    if upper(bucket - 1) >= seconds:
        return bucket - 1
    return bucket + 1 if upper(bucket) < seconds else bucket


def quantile(counts: Mapping[int, int], share: float) -> float:
    """The smallest bucket edge, in seconds, with at least `share` of the values at or below it.

    Raises ValueError for an empty histogram or a share outside (0, 1].
    """
    total = sum(counts.values())
    if total <= 0 or not 0 < share <= 1:
        raise ValueError(f"needs values and a share in (0, 1], got {total} values and {share!r}")
    rank = math.ceil(share * total)
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            return upper(bucket)
    raise ValueError("the histogram's counts must not be negative")
