"""How alike the requests of different pods of one revision are in the same seconds. Pure.

The calibration watches single pods (`excursions`). A canary of several pods is judged on the requests of all of them, and in a
nearly full fleet a burst of requests makes a queue before all of them at once. N requests of such a canary say as much as
N / (1 + (pods - 1) * r) of a single pod's, where r is the intraclass correlation of the hits of two pods (the design effect of
cluster samples: Kish, "Survey Sampling", 1965, section 5.4). It is estimated from the stable revision's pods: from the
variance of all their hits together and the sum of the variances of each one's.
"""

from __future__ import annotations

import copy
import math

WINDOW_SECONDS = 10.0
RETAINED_WINDOWS = 120.0  # a window counts for 1/e after so many
SURE_WINDOWS = 10.0  # windows by which few are drawn towards no correlation


class Alikeness:
    """The hits of each stable pod in windows of WINDOW_SECONDS. Times must not go back."""

    def __init__(self) -> None:
        self._begin = -math.inf
        self._pods: dict[str, tuple[int, int]] = {}  # of the window: requests and hits
        self._requests = self._hits = 0.0  # of all windows
        self._windows = self._watched = 0.0  # windows, and the pods in them
        self._together = self._single = 0.0  # sums of squares: of the pods' sum, and of each pod

    def add(self, start: float, pod: str, requests: int, hits: int) -> None:
        """Add a pod's requests in the slice that starts at `start`."""
        if start >= self._begin + WINDOW_SECONDS:
            self._close()
            self._begin = start
        known = self._pods.get(pod, (0, 0))
        self._pods[pod] = known[0] + requests, known[1] + hits

    @property
    def correlation(self) -> float:
        """The intraclass correlation of the hits of two pods, from 0 to 1."""
        if self._single <= 0 or self._watched <= self._windows:
            return 0.0
        pods = self._watched / self._windows
        found = (self._together / self._single - 1) / (pods - 1)
        return min(1.0, max(0.0, found)) * self._windows / (self._windows + SURE_WINDOWS)

    def design_effect(self, pods: int) -> float:
        """Return how many requests of a revision with so many pods say as much as one of a single pod."""
        return 1 + max(0, pods - 1) * self.correlation

    def copied(self) -> Alikeness:
        result = copy.copy(self)
        result._pods = dict(self._pods)
        return result

    def _close(self) -> None:
        """Add the window's squares, by the share of hits in all windows."""
        if not self._pods:
            return
        kept = 1 - 1 / RETAINED_WINDOWS
        self._requests = kept * self._requests + sum(requests for requests, _ in self._pods.values())
        self._hits = kept * self._hits + sum(hits for _, hits in self._pods.values())
        share = self._hits / self._requests if self._requests else 0.0
        excess = [hits - share * requests for requests, hits in self._pods.values()]
        self._together = kept * self._together + sum(excess) ** 2
        self._single = kept * self._single + sum(own**2 for own in excess)
        self._windows, self._watched = kept * self._windows + 1, kept * self._watched + len(excess)
        self._pods = {}
