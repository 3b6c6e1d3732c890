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
from collections.abc import Collection, Mapping, Sequence

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
        # The excursions under way, by pod and alternative: the sum now, and the highest one. No sum is 0 or less.
        self._open: dict[str, dict[int, tuple[float, float]]] = {}
        self._newest: dict[str, float] = {}  # the start of each pod's newest slice
        self._count = [0] * COUNT
        self._height = [0.0] * COUNT

    @property
    def pods(self) -> frozenset[str]:
        """The pods that are watched."""
        return frozenset(self._newest)

    def rests(self, start: float, pod: str) -> bool:
        """Note a slice of a pod, and return whether no excursion of the pod is under way."""
        self._newest[pod] = start
        return not self._open.setdefault(pod, {})

    def add(self, start: float, pod: str, ratios: Sequence[float], gains: Collection[int] | None = None) -> None:
        """Add the logarithms of a slice's likelihood ratios, one for each alternative. `start` is the slice's start.

        `gains` are the places of those above 0, where the caller knows them.
        """
        if gains is None:
            gains = gains_of(ratios)
        known = self._open.setdefault(pod, {})
        self._newest[pod] = start
        # An alternative without an excursion and without a gain stays as it is.
        for place in {*known, *gains} if known else gains:
            before, peak = known.get(place, (0.0, 0.0))
            total = before + ratios[place]
            if total > peak:
                known[place] = total, total
            elif total > 0:
                known[place] = total, peak
            else:
                del known[place]
                if peak > LEVEL:
                    self._count[place] += 1
                    self._height[place] += peak - LEVEL

    def scales(self) -> tuple[float, ...]:
        """Return the factor by which the evidence of each alternative is divided."""
        heights, counts = list(self._height), list(self._count)
        for known in self._open.values():  # an excursion under way is at least as high as it is now
            _count_open(known, counts, heights)
        return tuple(
            max(least, SAFETY * (PRIOR_EXCURSIONS * least / SAFETY + height) / (PRIOR_EXCURSIONS + count))
            for least, count, height in zip(MIN_SCALES, counts, heights, strict=True)
        )

    def forget(self, before: float) -> None:
        """Forget the sums of pods without a slice since `before`: they are gone. Their excursions count as over."""
        for gone in [pod for pod, newest in self._newest.items() if newest < before]:
            _count_open(self._open[gone], self._count, self._height)
            del self._open[gone], self._newest[gone]

    def copied(self) -> Excursions:
        result = Excursions()
        result._open = {pod: dict(known) for pod, known in self._open.items()}
        result._newest = dict(self._newest)
        result._count, result._height = list(self._count), list(self._height)
        return result

    def spread(self) -> float:
        """Return the variance of the hits beyond the 95 % quantile, as a multiple of independent requests' variance."""
        place = QUANTILES.index(0.95) * len(ODDS) + ODDS.index(2.0)
        count, height = self._count[place], self._height[place]
        mean = (PRIOR_EXCURSIONS + height) / (PRIOR_EXCURSIONS + count)
        return max(1.0, mean) if math.isfinite(mean) else 1.0


def gains_of(ratios: Sequence[float]) -> tuple[int, ...]:
    """Return the places of the logarithms above 0: those that can begin an excursion."""
    return tuple([place for place, ratio in enumerate(ratios) if ratio > 0])


def _count_open(known: Mapping[int, tuple[float, float]], counts: list[int], heights: list[float]) -> None:
    """Count a pod's excursions that are under way and high, in place."""
    for place, (_, peak) in known.items():
        if peak - LEVEL > OPEN:
            heights[place] += peak - LEVEL
            counts[place] += 1
