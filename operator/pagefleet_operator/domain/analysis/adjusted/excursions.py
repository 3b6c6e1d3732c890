"""Calibrates the evidence: how far the same test runs away on single pods of the stable revision, whose code is the same.

A pod has phases: a neighbour slows it down for half a minute, or a queue forms. Its requests are then slow together, and a
test that takes them for independent ones would convict the innocent. So each pod is watched with the cumulative sums of
the test's own likelihood ratios (Page, "Continuous inspection schemes", Biometrika 1954). For independent requests the
heights of their excursions are exponential with mean 1 at most (Wald). Their actual mean, above a low level, is the factor
by which the evidence on the canary is divided (peaks over a threshold: Pickands, Annals of Statistics 1975). Before
there are excursions, a prior counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pagefleet_operator.domain.analysis.adjusted.alternatives import COUNT, ODDS
from pagefleet_operator.domain.analysis.adjusted.reference import FAR, MULTIPLES, QUANTILES

PRIOR_EXCURSIONS = 3.0
LEVEL = 4.0  # lower ones are mostly chance, and would hide how high the others rise
OPEN = 1.5  # an excursion that is not over counts from this height above the level on
SAFETY = 1.5  # times the mean height: it is an estimate from few excursions
# The smallest scale of the quantiles, of the near multiples, of the far ones, which no phase of a sound pod reaches, and of the
# bet that most requests are far slower, which loses by every request that is not.
MIN_SCALES = (
    *(
        scale
        for scale in (*(2.5 for _ in QUANTILES), *(1.0 if multiple >= FAR else 1.5 for multiple in MULTIPLES))
        for _ in ODDS
    ),
    1.0,
)


class Excursions:
    """The cumulative sums of each pod, and the number and heights of the excursions that are over."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}
        self._peaks: dict[str, list[float]] = {}
        self._newest: dict[str, float] = {}  # the start of each pod's newest slice
        self._count = [0] * COUNT
        self._height = [0.0] * COUNT

    @property
    def pods(self) -> frozenset[str]:
        """The pods that are watched."""
        return frozenset(self._newest)

    def add(self, start: float, pod: str, ratios: Sequence[float]) -> None:
        """Add the logarithms of a slice's likelihood ratios, one for each alternative. `start` is the slice's start."""
        sums = self._sums.setdefault(pod, [0.0] * COUNT)
        peaks = self._peaks.setdefault(pod, [0.0] * COUNT)
        self._newest[pod] = start
        if max(ratios) <= 0 and not any(sums):
            return
        for place, ratio in enumerate(ratios):
            before = sums[place]
            if ratio <= 0 and not before:
                continue  # no excursion is under way, and none begins
            total = before + ratio
            if total > peaks[place]:
                peaks[place] = total
            elif total <= 0:
                if peaks[place] > LEVEL:
                    self._count[place] += 1
                    self._height[place] += peaks[place] - LEVEL
                total = peaks[place] = 0.0
            sums[place] = total

    def scales(self) -> tuple[float, ...]:
        """Return the factor by which the evidence of each alternative is divided."""
        heights, counts = list(self._height), list(self._count)
        for peaks in self._peaks.values():  # an excursion under way is at least as high as it is now
            _count_open(peaks, counts, heights)
        return tuple(
            max(least, SAFETY * (PRIOR_EXCURSIONS * least / SAFETY + height) / (PRIOR_EXCURSIONS + count))
            for least, count, height in zip(MIN_SCALES, counts, heights, strict=True)
        )

    def forget(self, before: float) -> None:
        """Forget the sums of pods without a slice since `before`: they are gone. Their excursions count as over."""
        for gone in [pod for pod, newest in self._newest.items() if newest < before]:
            _count_open(self._peaks[gone], self._count, self._height)
            del self._sums[gone], self._peaks[gone], self._newest[gone]

    def copied(self) -> Excursions:
        result = Excursions()
        result._sums = {pod: list(sums) for pod, sums in self._sums.items()}
        result._peaks = {pod: list(peaks) for pod, peaks in self._peaks.items()}
        result._newest = dict(self._newest)
        result._count, result._height = list(self._count), list(self._height)
        return result

    def spread(self) -> float:
        """Return the variance of the hits beyond the 95 % quantile, as a multiple of independent requests' variance."""
        place = QUANTILES.index(0.95) * len(ODDS) + ODDS.index(2.0)
        count, height = self._count[place], self._height[place]
        mean = (PRIOR_EXCURSIONS + height) / (PRIOR_EXCURSIONS + count)
        return max(1.0, mean) if math.isfinite(mean) else 1.0


def _count_open(peaks: Sequence[float], counts: list[int], heights: list[float]) -> None:
    """Count a pod's excursions that are under way and high, in place."""
    for place, peak in enumerate(peaks):
        if peak - LEVEL > OPEN:
            heights[place] += peak - LEVEL
            counts[place] += 1
