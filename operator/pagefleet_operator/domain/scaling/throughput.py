"""The throughput of a replica by the number of running sequences, learned from the replica's own readings.

One step of an engine takes `base + slope x sequences` seconds and gives each sequence a token. So a replica with r
sequences generates r / (base + slope x r) tokens per second. Concurrency rises faster than throughput does, and
throughput ends at 1 / slope. A count of requests per replica does not show this end. Therefore the removal of a replica
is judged on throughput.

While more requests begin than end, prompts take a part of a replica's time. The replica would look slower than it is in
the very burst for which its speed is needed. Therefore the seconds of each half-minute are taken apart: they are
`base x steps + slope x tokens + prompt x additional requests`, fitted by least squares to the half-minutes' means.

Tokens are counted, but running sequences are only looked at every few seconds. With few sequences the mean of some looks is mostly chance,
and least squares would take the chance for saturation (attenuation by errors in the variables: Fuller, Measurement Error Models, 1987,
sections 1.1 and 2.2). So the variance of that chance is estimated from the differences of successive looks (von Neumann, Annals of
Mathematical Statistics 12:4, 1941) and taken out of the sums of squares, as in Fuller's corrected estimator. Saturation must be shown: where
half of the variation or more is chance, no slope is learned from it, and a replica is assumed to be far from its end while most
of its slots and pages are free (`_assumed`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from pagefleet_operator.domain.status.sample import Sample

MEAN_SECONDS = 30.0
MIN_MEANS, MIN_SPREAD = 8, 1.25
EARLY_MEANS = 2
MIN_SHOWN = 0.5  # of the variation of the half-minutes, that is not chance
FULL_STEP = 2.0  # times the step of an empty replica, that the step of a full one is assumed to take
MIN_TOKENS = 0.1  # per second: three in a half-minute


@dataclass(frozen=True)
class Mean:
    """Means of the whole revision over half a minute. `replicas` counts the replicas that were read."""

    start: float
    replicas: float
    running: float
    waiting: float
    kv_pages_used: float
    tokens: float
    change: float  # requests per second by which `running` grew
    whole: bool  # every serving pod was read in every sample
    chance: float = 0.0  # variance of `running` by chance, because it is the mean of a few looks


@dataclass(frozen=True)
class Curve:
    """The seconds of a step are `base + slope x sequences`.

    `spread` has the variances of the two and twice their covariance. `shown` says that the readings show the slope; else it is assumed.
    """

    base: float
    slope: float
    spread: tuple[float, float, float] = (0.0, 0.0, 0.0)
    shown: bool = True

    def throughput(self, sequences: float, sure: float = 0.0) -> float:
        """Tokens per second of a replica with so many sequences.

        The step is taken `sure` standard errors longer than learned.
        """
        step = self.base + self.slope * sequences
        of_base, of_slope, of_both = self.spread
        step += sure * math.sqrt(max(0.0, of_base + sequences * (of_both + sequences * of_slope)))
        return sequences / step if step > 0 else 0.0


def means(samples: Iterable[Sample]) -> list[Mean]:
    """The half-minute means of samples that are sorted by time, oldest first, without half-minutes in which nothing was read."""
    grouped: dict[int, list[Sample]] = {}
    silent = set[int]()
    for entry in samples:
        key = int(entry.time // MEAN_SECONDS)
        if entry.fresh:
            grouped.setdefault(key, []).append(entry)
        else:
            silent.add(key)
    return [
        _mean(key * MEAN_SECONDS, group, grouped.get(key + 1, group), key not in silent)
        for key, group in sorted(grouped.items())
    ]


def early(means: Iterable[Mean], full: float) -> Curve | None:
    """The curve that is assumed by as few as EARLY_MEANS means. A start that takes long does not wait until `fit` has one."""
    points = _busy(means)
    if len(points) < EARLY_MEANS:
        return None
    return _assumed([one.tokens / one.running for one in points], [one.running / one.replicas for one in points], full)


def fit(means: Iterable[Mean], full: float) -> Curve | None:
    """The curve of a replica that may run `full` sequences; None when there are too few means."""
    points = _busy(means)
    if len(points) < MIN_MEANS:
        return None
    each = [mean.running / mean.replicas for mean in points]
    steps = [mean.tokens / mean.running for mean in points]
    tokens = [mean.tokens / mean.replicas for mean in points]
    more = [mean.change / mean.replicas for mean in points]
    prompt = max(0.0, _prompt(steps, tokens, more))
    seconds = [1.0 - prompt * rise for rise in more]
    aa, bb, ab = _dot(steps, steps), _dot(tokens, tokens), _dot(steps, tokens)
    chance = sum(step**2 * mean.chance / mean.running**2 for step, mean in zip(steps, points, strict=True))
    varied, shown = aa * bb - ab * ab, (aa - chance) * bb - ab * ab
    if max(each) < MIN_SPREAD * min(each) or shown < MIN_SHOWN * varied or varied <= 1e-12 * aa * bb:
        return _assumed(steps, each, full)
    av, bv = _dot(steps, seconds), _dot(tokens, seconds)
    base, slope = (av * bb - bv * ab) / shown, (bv * (aa - chance) - av * ab) / shown
    residuals = [value - base * a - slope * b for value, a, b in zip(seconds, steps, tokens, strict=True)]
    error = _dot(residuals, residuals) / (len(residuals) - 3)
    spread = error * bb / shown, error * (aa - chance) / shown, -2.0 * error * ab / shown
    if slope <= 0:
        return Curve(len(steps) / sum(steps), 0.0, spread)
    return Curve(base, slope, spread) if base > 0 else Curve(0.0, len(tokens) / sum(tokens), spread)


def _busy(means: Iterable[Mean]) -> list[Mean]:
    return [
        mean for mean in means if mean.tokens >= MIN_TOKENS and mean.replicas and mean.running / mean.replicas >= 0.5
    ]


def _assumed(steps: list[float], each: list[float], full: float) -> Curve:
    """The curve through what was seen, of a replica whose step takes FULL_STEP times as long when it is full."""
    seen, used = len(steps) / sum(steps), sum(each) / len(each) / full
    base = seen / (1 + (FULL_STEP - 1) * used)
    return Curve(base, (FULL_STEP - 1) * base / full, shown=False)


def _prompt(steps: list[float], tokens: list[float], more: list[float]) -> float:
    """The seconds that the prompt of a request takes, by least squares of 1 on steps, tokens and additional requests.

    Steps and tokens are regressed out of both sides first (Frisch and Waugh, Econometrica 1:4, 1933).
    """
    ones = [1.0] * len(more)
    left, residuals = _residuals(steps, tokens, more), _residuals(steps, tokens, ones)
    spread = _dot(left, left)
    return _dot(left, residuals) / spread if spread > 1e-9 * _dot(more, more) else 0.0


def _residuals(steps: list[float], tokens: list[float], values: list[float]) -> list[float]:
    """The part of `values` that steps and tokens do not explain."""
    base, slope = _shares(steps, tokens, values)
    return [value - base * a - slope * b for value, a, b in zip(values, steps, tokens, strict=True)]


def _shares(steps: list[float], tokens: list[float], values: list[float]) -> tuple[float, float]:
    """The coefficients of `values` on steps and tokens by least squares, without a constant."""
    aa, bb, ab = _dot(steps, steps), _dot(tokens, tokens), _dot(steps, tokens)
    av, bv = _dot(steps, values), _dot(tokens, values)
    whole = aa * bb - ab * ab
    return ((av * bb - bv * ab) / whole, (bv * aa - av * ab) / whole) if whole > 1e-12 * aa * bb else (0.0, bv / bb)


def _dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _mean(start: float, group: list[Sample], following: list[Sample], whole: bool) -> Mean:
    count, first = len(group), group[0]
    end = following[0] if following is not group else group[-1]
    comparable = end.time > first.time and end.fresh >= first.fresh  # the requests of a lost replica left the sum
    replicas = 0
    running = waiting = used = tokens = 0.0
    for one in group:  # one pass, because a decision spends most of its time here
        replicas += one.fresh
        load = one.load
        running += load.running
        waiting += load.waiting
        used += load.kv_pages_used
        tokens += load.tokens or 0.0
        whole = whole and one.serving == one.fresh
    steps = [b.load.running - a.load.running for a, b in pairwise(group) if a.fresh == b.fresh]
    return Mean(
        start=start,
        replicas=replicas / count,
        running=running / count,
        waiting=waiting / count,
        kv_pages_used=used / count,
        tokens=tokens / count,
        change=(end.load.running - first.load.running) / (end.time - first.time) if comparable else 0.0,
        whole=whole,
        chance=sum(step * step for step in steps) / (2 * len(steps) * count) if steps else 0.0,
    )
