"""The throughput of a replica by the number of running sequences, learned from the replica's own readings.

One step of an engine takes `base + slope x sequences` seconds and gives each sequence a token. So a replica with r
sequences generates r / (base + slope x r) tokens per second. Concurrency rises faster than throughput does, and
throughput ends at 1 / slope. A count of requests per replica does not show this end. Therefore the removal of a replica
is judged on throughput.

While more requests begin than end, prompts take a part of a replica's time. The replica would look slower than it is in
the very burst for which its speed is needed. Therefore the seconds of each half-minute are taken apart: they are
`base x steps + slope x tokens + prompt x additional requests`, fitted to the half-minutes' means.

The tokens of a half-minute are counted, but its running sequences are only looked at a few times. With few sequences such a mean is
mostly chance, and least squares would take the chance for saturation (attenuation by errors in the variables; Fuller, Measurement Error
Models, 1987, section 1.1): the replica would seem to be at its end at any low load. So the looks are divided into two halves whose errors
are independent, and each is the instrument of the other (split-sample instrumental variables: Angrist and Krueger, Journal of Business &
Economic Statistics 13:2, 1995). Where the halves hardly agree on which half-minutes were busy, nothing is learned.

Increases go by that curve. Decreases go by least squares (`cautious`), whose error makes a replica look slower than it is: at worst a
replica stays for longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pagefleet_operator.domain.status.sample import Sample

MEAN_SECONDS = 30.0
MIN_MEANS, MIN_SPREAD = 8, 1.25
MIN_TOKENS = 0.1  # per second: three in a half-minute
MIN_EACH = 0.5  # running sequences of a replica
MIN_RELIABILITY = 0.5  # of the variance of the half-minutes' concurrency, at least so much is no chance


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
    halves: tuple[float, float] | None = None  # `running` of every other sample, and of the rest; None with one sample

    @property
    def concurrency(self) -> float:
        return self.running + self.waiting


@dataclass(frozen=True)
class Curve:
    """The seconds of a step are `base + slope x sequences`.

    `spread` has the variances of the two and twice their covariance.
    """

    base: float
    slope: float
    spread: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def throughput(self, sequences: float, sure: float = 0.0) -> float:
        """Tokens per second of a replica with so many sequences.

        The step is taken `sure` standard errors longer than learned.
        """
        step = self.base + self.slope * sequences
        of_base, of_slope, of_both = self.spread
        step += sure * math.sqrt(max(0.0, of_base + sequences * (of_both + sequences * of_slope)))
        return sequences / step if step > 0 else 0.0


def means(samples: Iterable[Sample]) -> list[Mean]:
    """The half-minute means of samples that are sorted by time, oldest first."""
    grouped: dict[int, list[Sample]] = {}
    for entry in samples:
        grouped.setdefault(int(entry.time // MEAN_SECONDS), []).append(entry)
    return [_mean(key * MEAN_SECONDS, group, grouped.get(key + 1, group)) for key, group in sorted(grouped.items())]


def fit(means: Iterable[Mean]) -> Curve | None:
    """The curve; None when there are too few means, all have about the same concurrency, or they differ mostly by chance."""
    points = [mean for mean in means if mean.tokens >= MIN_TOKENS and mean.replicas and min(_halves(mean)) >= MIN_EACH]
    pairs = [_halves(mean) for mean in points]
    return _curve(points, pairs) if _varied(points) and _reliability(pairs) >= MIN_RELIABILITY else None


def cautious(means: Iterable[Mean]) -> Curve | None:
    """The curve by least squares, on which a replica is rather too slow; None when the means are too few or too alike."""
    points = [mean for mean in means if mean.tokens >= MIN_TOKENS and mean.replicas and _each(mean) >= MIN_EACH]
    return _curve(points, [(_each(mean), _each(mean)) for mean in points]) if _varied(points) else None


def _curve(points: list[Mean], pairs: list[tuple[float, float]]) -> Curve:
    """The curve through the points, whose running sequences of a replica are known by `pairs` of two looks."""
    steps = [mean.tokens / mean.running for mean in points]
    tokens = [mean.tokens / mean.replicas for mean in points]
    more = [mean.change / mean.replicas for mean in points]
    prompt = max(0.0, _prompt(steps, tokens, more))
    seconds = [1.0 - prompt * rise for rise in more]
    (base, slope), spread = _instrumented(pairs, tokens, seconds)
    if slope <= 0:
        return Curve(len(steps) / sum(steps), 0.0, spread)
    return Curve(base, slope, spread) if base > 0 else Curve(0.0, len(tokens) / sum(tokens), spread)


def _varied(points: list[Mean]) -> bool:
    each = [_each(mean) for mean in points]
    return len(points) >= MIN_MEANS and max(each) >= MIN_SPREAD * min(each)


def _each(mean: Mean) -> float:
    return mean.running / mean.replicas


def _halves(mean: Mean) -> tuple[float, float]:
    """Running sequences of a replica, by each half of the samples; a single sample is taken for both."""
    first, second = mean.halves or (mean.running, mean.running)
    return first / mean.replicas, second / mean.replicas


def _reliability(pairs: list[tuple[float, float]]) -> float:
    """The share of the variance of the means that is none of the sampling, from the agreement of the halves (Spearman and Brown,
    British Journal of Psychology 3, 1910)."""
    count = len(pairs)
    first, second = (sum(column) / count for column in zip(*pairs, strict=True))
    aa = sum((a - first) ** 2 for a, _ in pairs)
    bb = sum((b - second) ** 2 for _, b in pairs)
    agreement = sum((a - first) * (b - second) for a, b in pairs) / math.sqrt(aa * bb) if aa * bb > 0 else 0.0
    return 2 * agreement / (1 + agreement) if agreement > 0 else 0.0


def _instrumented(
    pairs: list[tuple[float, float]], tokens: list[float], seconds: list[float]
) -> tuple[tuple[float, float], tuple[float, float, float]]:
    """Base and slope of `running x seconds = base x tokens + slope x tokens x running`, each half the instrument of the other; and their
    variances with twice the covariance. With equal halves these are the least squares of `_shares`."""
    rows = [(a, b, *rest) for (a, b), *rest in zip(pairs, tokens, seconds, strict=True)]
    rows += [(b, a, *rest) for a, b, *rest in rows]
    weighed = [(t / b / b, t / b, a, t, second) for a, b, t, second in rows]
    ps, pt = sum(p * t for p, _, _, t, _ in weighed), sum(p * t * a for p, _, a, t, _ in weighed)
    qs, qt = sum(q * t for _, q, _, t, _ in weighed), sum(q * t * a for _, q, a, t, _ in weighed)
    pv, qv = sum(p * s * a for p, _, a, _, s in weighed), sum(q * s * a for _, q, a, _, s in weighed)
    whole = ps * qt - pt * qs
    steps = [2 * t / (a + b) for (a, b), t in zip(pairs, tokens, strict=True)]
    aa, bb, ab = _dot(steps, steps), _dot(tokens, tokens), _dot(steps, tokens)
    if whole <= 1e-12 * 4 * aa * bb:  # every row is there twice
        return (0.0, _dot(tokens, seconds) / bb), (0.0, 0.0, 0.0)
    base, slope = (pv * qt - qv * pt) / whole, (qv * ps - pv * qs) / whole
    residuals = [s - base * step - slope * t for s, step, t in zip(seconds, steps, tokens, strict=True)]
    error = _dot(residuals, residuals) / (len(residuals) - 3)
    # The inverse of the instrumented sums, times the sums of squares, times the inverse again.
    inverse = ((2 * qt / whole, -2 * pt / whole), (-2 * qs / whole, 2 * ps / whole))
    of = [[row[0] * x + row[1] * y for x, y in ((aa, ab), (ab, bb))] for row in inverse]
    base_, both, slope_ = (
        sum(x * y for x, y in zip(of[i], inverse[j], strict=True)) for i, j in ((0, 0), (0, 1), (1, 1))
    )
    return (base, slope), (error * base_, error * slope_, 2.0 * error * both)


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


def _mean(start: float, group: list[Sample], following: list[Sample]) -> Mean:
    count, first = len(group), group[0]
    end = following[0] if following is not group else group[-1]
    comparable = end.time > first.time and end.fresh >= first.fresh  # the requests of a lost replica left the sum
    replicas, whole = 0, True
    running = waiting = used = tokens = other = 0.0
    for index, one in enumerate(group):  # one pass, because a decision spends most of its time here
        replicas += one.fresh
        load = one.load
        running += load.running
        if index % 2:
            other += load.running
        waiting += load.waiting
        used += load.kv_pages_used
        tokens += load.tokens or 0.0
        whole = whole and one.serving == one.fresh
    return Mean(
        start=start,
        replicas=replicas / count,
        running=running / count,
        waiting=waiting / count,
        kv_pages_used=used / count,
        tokens=tokens / count,
        change=(end.load.running - first.load.running) / (end.time - first.time) if comparable else 0.0,
        whole=whole,
        halves=((running - other) / (count - count // 2), other / (count // 2)) if count > 1 else None,
    )
