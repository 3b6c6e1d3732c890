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
from collections.abc import Collection, Iterable, KeysView, Mapping, Sequence

from pagefleet_operator.domain.analysis.adjusted.alternatives import BET_OF, COUNT, ODDS, SEVERE
from pagefleet_operator.domain.analysis.adjusted.reference import FAR, MULTIPLES, QUANTILES

PRIOR_EXCURSIONS = 3.0
LEVEL = 4.0  # lower ones are mostly chance, and would hide how high the others rise
OPEN = 1.5  # an excursion that is not over counts from this height above the level on
SAFETY = 1.5  # times the mean height: it is an estimate from few excursions
# The smallest scales. A neighbour's phase of half a minute may be the first one that anybody sees, so the near alternatives start
# with what such a phase costs a canary of one pod. No phase of a sound pod reaches the far multiples.
QUANTILE_SCALE, MULTIPLE_SCALE, FAR_SCALE, SEVERE_SCALE = 3.2, 2.4, 1.0, 1.6
MIN_SCALES = (
    *(
        scale
        for scale in (
            *(QUANTILE_SCALE for _ in QUANTILES),
            *(FAR_SCALE if multiple >= FAR else MULTIPLE_SCALE for multiple in MULTIPLES),
        )
        for _ in ODDS
    ),
    SEVERE_SCALE,
)
# The alternatives that a phase of a sound pod can reach.
NEAR = frozenset({*range((len(QUANTILES) + sum(multiple < FAR for multiple in MULTIPLES)) * len(ODDS)), SEVERE})

Run = tuple[int, Sequence[float]]  # the place of an alternative, and numbers of it and of those after it


class Excursions:
    """The cumulative sums of each pod, and the number and heights of the excursions that are over."""

    def __init__(self) -> None:
        # The excursions under way, by pod and alternative: the sums, none of which is 0 or less, and the highest ones.
        self._open: dict[str, dict[int, float]] = {}
        self._peaks: dict[str, dict[int, float]] = {}
        self._newest: dict[str, float] = {}  # the start of each pod's newest slice
        self._count = [0] * COUNT
        self._height = [0.0] * COUNT

    @property
    def pods(self) -> frozenset[str]:
        """The pods that are watched."""
        return frozenset(self._newest)

    def under_way(self, start: float, pod: str) -> KeysView[int]:
        """Note a slice of a pod, and return the alternatives that have an excursion under way on it."""
        self._newest[pod] = start
        if pod not in self._open:
            self._open[pod], self._peaks[pod] = {}, {}
        return self._open[pod].keys()

    def add(self, start: float, pod: str, runs: Iterable[Run], weight: float = 1.0) -> None:
        """Add the logarithms of a slice's likelihood ratios, times `weight`. `start` is the slice's start.

        An alternative without an excursion and without a gain stays as it is, and may be left out.
        """
        self.under_way(start, pod)
        known, peaks = self._open[pod], self._peaks[pod]
        for first, ratios in runs:
            for place, ratio in enumerate(ratios, first):
                total = known.get(place, 0.0) + weight * ratio
                if total > 0:
                    known[place] = total
                    if total > peaks.get(place, 0.0):
                        peaks[place] = total
                elif place in known:
                    self._end(pod, place)

    def fall(self, pod: str, misses: Sequence[float], requests: int, weight: float, hit: Collection[int]) -> None:
        """Add `requests` that are no hits to the excursions under way, but not to those of the bets that are `hit`.

        `misses` has the logarithm of the likelihood ratio of such a request, which is below 0, by alternative. The slice has been noted
        before (`under_way`).
        """
        known, ended = self._open[pod], list[int]()
        for place, before in known.items():
            if BET_OF[place] in hit:
                continue
            total = before + weight * (requests * misses[place])
            if total > 0:
                known[place] = total
            else:
                ended.append(place)
        for place in ended:
            self._end(pod, place)

    def _end(self, pod: str, place: int) -> None:
        del self._open[pod][place]
        peak = self._peaks[pod].pop(place)
        if peak > LEVEL:
            self._count[place] += 1
            self._height[place] += peak - LEVEL

    def scales(self) -> tuple[float, ...]:
        """Return the factor by which the evidence of each alternative is divided.

        An alternative with few excursions borrows from the others: the prior's height is as many times its smallest scale as
        the near alternatives' scales are in the quadratic mean (empirical Bayes: Efron & Morris, JASA 1973). What makes single pods slow
        is seen at some thresholds long before it is seen at all.
        """
        heights, counts = list(self._height), list(self._count)
        for peaks in self._peaks.values():  # an excursion under way is at least as high as it is now
            _count_open(peaks, counts, heights)
        single = [
            _scale(least, least, count, height) / least
            for least, count, height in zip(MIN_SCALES, counts, heights, strict=True)
        ]
        shared = math.sqrt(sum(single[place] ** 2 for place in NEAR) / len(NEAR))
        return tuple(
            _scale(least, least * (shared if place in NEAR else 1.0), count, height)
            for place, (least, count, height) in enumerate(zip(MIN_SCALES, counts, heights, strict=True))
        )

    def forget(self, before: float) -> None:
        """Forget the sums of pods without a slice since `before`: they are gone. Their excursions count as over."""
        for gone in [pod for pod, newest in self._newest.items() if newest < before]:
            _count_open(self._peaks[gone], self._count, self._height)
            del self._open[gone], self._peaks[gone], self._newest[gone]

    def copied(self) -> Excursions:
        result = Excursions()
        result._open = {pod: dict(known) for pod, known in self._open.items()}
        result._peaks = {pod: dict(peaks) for pod, peaks in self._peaks.items()}
        result._newest = dict(self._newest)
        result._count, result._height = list(self._count), list(self._height)
        return result

    def spread(self) -> float:
        """Return the variance of the hits beyond the 95 % quantile, as a multiple of independent requests' variance."""
        place = QUANTILES.index(0.95) * len(ODDS) + ODDS.index(2.0)
        count, height = self._count[place], self._height[place]
        mean = (PRIOR_EXCURSIONS + height) / (PRIOR_EXCURSIONS + count)
        return max(1.0, mean) if math.isfinite(mean) else 1.0


def _scale(least: float, prior: float, count: int, height: float) -> float:
    """Return an alternative's scale by the number and the heights of its excursions, and the `prior`'s scale."""
    return max(least, (PRIOR_EXCURSIONS * prior + SAFETY * height) / (PRIOR_EXCURSIONS + count))


def _count_open(peaks: Mapping[int, float], counts: list[int], heights: list[float]) -> None:
    """Count a pod's excursions that are under way and high, in place."""
    for place, peak in peaks.items():
        if peak - LEVEL > OPEN:
            heights[place] += peak - LEVEL
            counts[place] += 1
