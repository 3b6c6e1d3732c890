"""How fast a replica generates with so many sequences running, learned from its own readings.

One step of an engine takes `base + slope x sequences` seconds and gives each sequence a token, so a replica with r
sequences generates r / (base + slope x r) tokens per second: concurrency at a given throughput rises faster than the
throughput does, and has an end at 1 / slope. This is what a count of requests per replica does not see, and why
removing a replica is judged on throughput.

Where more requests begin than end, a replica's time goes into prompts as well, and it would look slower than it is just
when a burst asks how fast it is. So each half-minute is taken apart: `base x steps + slope x tokens + prompt x requests
that came in addition` make up its seconds. Least squares on the half-minutes' means.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pagefleet_operator.domain.status.sample import Sample

MEAN_SECONDS = 30.0
LEAST_MEANS, LEAST_SPREAD = 8, 1.25
LEAST_TOKENS = 0.1  # per second: three in a half-minute


@dataclass(frozen=True)
class Mean:
    """Means over half a minute, of the whole revision; `replicas` that were read."""

    start: float
    replicas: float
    running: float
    waiting: float
    kv_pages_used: float
    tokens: float
    change: float  # requests per second by which `running` grew
    whole: bool  # every serving pod was read in every sample

    @property
    def concurrency(self) -> float:
        return self.running + self.waiting


@dataclass(frozen=True)
class Curve:
    """Seconds of a step: `base + slope x sequences`. `spread` are the variances of the two and twice their covariance."""

    base: float
    slope: float
    spread: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def throughput(self, sequences: float, sure: float = 0.0) -> float:
        """Tokens per second of a replica with so many sequences, by a step `sure` standard errors longer than learned."""
        step = self.base + self.slope * sequences
        of_base, of_slope, of_both = self.spread
        step += sure * math.sqrt(max(0.0, of_base + sequences * (of_both + sequences * of_slope)))
        return sequences / step if step > 0 else 0.0


def means(samples: Iterable[Sample]) -> list[Mean]:
    """Half-minute means of samples in time's order, oldest first."""
    grouped: dict[int, list[Sample]] = {}
    for entry in samples:
        grouped.setdefault(int(entry.time // MEAN_SECONDS), []).append(entry)
    return [_mean(key * MEAN_SECONDS, group, grouped.get(key + 1, group)) for key, group in sorted(grouped.items())]


def fit(found: Iterable[Mean]) -> Curve | None:
    """None when the means do not tell: too few, or all of about the same concurrency."""
    points = [
        mean for mean in found if mean.tokens >= LEAST_TOKENS and mean.replicas and mean.running / mean.replicas >= 0.5
    ]
    each = [mean.running / mean.replicas for mean in points]
    if len(points) < LEAST_MEANS or max(each) < LEAST_SPREAD * min(each):
        return None
    steps = [mean.tokens / mean.running for mean in points]
    tokens = [mean.tokens / mean.replicas for mean in points]
    more = [mean.change / mean.replicas for mean in points]
    prompt = max(0.0, _prompt(steps, tokens, more))
    seconds = [1.0 - prompt * rise for rise in more]
    base, slope = _shares(steps, tokens, seconds)
    spread = _spread(steps, tokens, seconds)
    if slope <= 0:
        return Curve(len(steps) / sum(steps), 0.0, spread)
    return Curve(base, slope, spread) if base > 0 else Curve(0.0, len(tokens) / sum(tokens), spread)


def _spread(steps: list[float], tokens: list[float], seconds: list[float]) -> tuple[float, float, float]:
    """Of base and of slope, and twice that of both together, by what the line leaves unexplained."""
    aa, bb, ab = _dot(steps, steps), _dot(tokens, tokens), _dot(steps, tokens)
    rest = _rest(steps, tokens, seconds)
    whole, error = aa * bb - ab * ab, _dot(rest, rest) / (len(rest) - 3)
    if whole <= 1e-12 * aa * bb:
        return 0.0, 0.0, 0.0
    return error * bb / whole, error * aa / whole, -2.0 * error * ab / whole


def _prompt(steps: list[float], tokens: list[float], more: list[float]) -> float:
    """Seconds that a request's prompt takes: least squares of 1 by the three, of which the two others are taken out
    first (Frisch and Waugh, Econometrica 1:4, 1933)."""
    ones = [1.0] * len(more)
    left, rest = _rest(steps, tokens, more), _rest(steps, tokens, ones)
    spread = _dot(left, left)
    return _dot(left, rest) / spread if spread > 1e-9 * _dot(more, more) else 0.0


def _rest(steps: list[float], tokens: list[float], values: list[float]) -> list[float]:
    """What steps and tokens do not explain of `values`."""
    base, slope = _shares(steps, tokens, values)
    return [value - base * a - slope * b for value, a, b in zip(values, steps, tokens, strict=True)]


def _shares(steps: list[float], tokens: list[float], values: list[float]) -> tuple[float, float]:
    """Least squares of `values` by steps and tokens, without a constant."""
    aa, bb, ab = _dot(steps, steps), _dot(tokens, tokens), _dot(steps, tokens)
    av, bv = _dot(steps, values), _dot(tokens, values)
    whole = aa * bb - ab * ab
    return ((av * bb - bv * ab) / whole, (bv * aa - av * ab) / whole) if whole > 1e-12 * aa * bb else (0.0, bv / bb)


def _dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _mean(start: float, group: list[Sample], following: list[Sample]) -> Mean:
    count, first = len(group), group[0]
    end = following[0] if following is not group else group[-1]
    told = end.time > first.time and end.fresh >= first.fresh  # a replica that is gone took its requests out of the sum
    replicas, whole = 0, True
    running = waiting = used = tokens = 0.0
    for one in group:  # in one pass: this is what a decision does most
        replicas += one.fresh
        load = one.load
        running += load.running
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
        change=(end.load.running - first.load.running) / (end.time - first.time) if told else 0.0,
        whole=whole,
    )
