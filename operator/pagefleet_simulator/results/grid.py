"""Delays of a flow of requests: how many had which time to first token and which pace, on a logarithmic grid. Keeps sums."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pagefleet_simulator.results.outcome import Floats, Latencies

LEAST, RATIO, BUCKETS = 1e-3, 1.1, 128  # 1 ms to 180 s by 10 %


class LatencyGrid:
    """Weights of requests by (time to first token, seconds per token)."""

    def __init__(self) -> None:
        self._weights = np.zeros(BUCKETS * BUCKETS)

    def count(self, ttft: Floats, tpot: Floats, weight: Floats) -> None:
        """Three arrays of one length, in seconds and requests."""
        cells = _bucket(ttft) * BUCKETS + _bucket(tpot)
        self._weights += np.bincount(cells, weights=weight, minlength=self._weights.size)

    def latencies(self, most: float) -> Latencies:
        """The middles of the cells; scaled down to `most` requests where more were counted."""
        cells = np.flatnonzero(self._weights)
        edges: Floats = LEAST * np.power(RATIO, np.arange(BUCKETS, dtype=np.float64) + 0.5)
        weight = self._weights[cells]
        if weight.sum() > 0:
            weight = weight * min(1.0, most / float(weight.sum()))
        return Latencies(edges[cells // BUCKETS], edges[cells % BUCKETS], weight)


def _bucket(values: Floats) -> NDArray[np.intp]:
    index = np.log(np.maximum(values, LEAST) / LEAST) / math.log(RATIO)
    return np.minimum(BUCKETS - 1, index).astype(np.intp)
