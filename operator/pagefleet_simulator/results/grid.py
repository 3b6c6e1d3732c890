"""The delays of a flow of requests: weights by time to first token and seconds per token, on a logarithmic grid."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pagefleet_simulator.results.outcome import Floats, Latencies

MIN_SECONDS, RATIO, BUCKETS = 1e-3, 1.1, 128  # 1 ms to 180 s by 10 %


class LatencyGrid:
    """Weights of requests by (time to first token, seconds per token)."""

    def __init__(self) -> None:
        self._weights = np.zeros(BUCKETS * BUCKETS)

    def count(self, ttft: Floats, tpot: Floats, weight: Floats) -> None:
        """Three arrays of one length, in seconds and requests."""
        cells = _bucket(ttft) * BUCKETS + _bucket(tpot)
        self._weights += np.bincount(cells, weights=weight, minlength=self._weights.size)

    def latencies(self, limit: float) -> Latencies:
        """The middles of the cells; scaled down to `limit` requests where more were counted."""
        cells = np.flatnonzero(self._weights)
        edges: Floats = MIN_SECONDS * np.power(RATIO, np.arange(BUCKETS, dtype=np.float64) + 0.5)
        weight = self._weights[cells]
        if weight.sum() > 0:
            weight = weight * min(1.0, limit / float(weight.sum()))
        return Latencies(edges[cells // BUCKETS], edges[cells % BUCKETS], weight)


def _bucket(values: Floats) -> NDArray[np.intp]:
    index = np.log(np.maximum(values, MIN_SECONDS) / MIN_SECONDS) / math.log(RATIO)
    return np.minimum(BUCKETS - 1, index).astype(np.intp)
