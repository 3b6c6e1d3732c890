"""How many requests a stable pod would have got if nobody had kept them away from it. Pure.

The picker sends few requests to a pod that has just become slow, because it has others. A canary of one pod has no others: its
weight is exact, and it gets its whole share while it is slow. A stable pod's phase of slowness therefore meets fewer requests
than the same phase on the canary does, and counts for too little in the calibration (`excursions`). So the requests of a pod that
gets less than the average of the stable revision count as if it got the average.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from pagefleet_operator.domain.status.observation import Slice

FORGOTTEN_SECONDS = 20.0  # a request counts for 1/e after so long
GONE_SECONDS = 60.0  # a pod without a request for so long does not count in the average
SURE = 5.0  # requests by which few are drawn towards the average
MAX_WEIGHT = 4.0


class PodTraffic:
    """The recent requests of each of a revision's pods. Times must not go back."""

    def __init__(self) -> None:
        self._now = -math.inf
        self._known: dict[
            str, tuple[float, float]
        ] = {}  # by pod: the newest slice with requests, and the requests then
        self._total = 0.0

    def add(self, start: float, pieces: Iterable[Slice]) -> None:
        """Add the requests of the slices of one start."""
        self._total *= math.exp((self._now - start) / FORGOTTEN_SECONDS)
        self._now = start
        for piece in pieces:
            for pod, own in piece.pods.items():
                requests = sum(own.values())
                self._known[pod] = start, self._recent(pod) + requests
                self._total += requests

    def weight(self, pod: str) -> float:
        """Return as how many requests one of the pod's counts, from 1 to MAX_WEIGHT."""
        if pod not in self._known:
            return 1.0
        average = self._total / len(self._known)
        return min(MAX_WEIGHT, max(1.0, (average + SURE) / (self._recent(pod) + SURE)))

    def forget(self) -> None:
        """Forget the pods without a request of late."""
        for gone in [pod for pod, (newest, _) in self._known.items() if newest < self._now - GONE_SECONDS]:
            self._total = max(0.0, self._total - self._recent(gone))
            del self._known[gone]

    def copied(self) -> PodTraffic:
        result = PodTraffic()
        result._now, result._known, result._total = self._now, dict(self._known), self._total
        return result

    def _recent(self, pod: str) -> float:
        newest, requests = self._known.get(pod, (self._now, 0.0))
        return requests if newest == self._now else requests * math.exp((newest - self._now) / FORGOTTEN_SECONDS)
