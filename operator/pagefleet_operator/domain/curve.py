"""How fast a replica generates with so many sequences running, learned from its own readings.

One step of an engine takes `base + slope x sequences` seconds and gives each sequence a token, so a replica with r
sequences generates r / (base + slope x r) tokens per second: concurrency at a given throughput rises faster than the
throughput does, and has an end at 1 / slope. This is what a count of requests per replica does not see, and why
removing a replica is judged on throughput. Ordinary least squares on the seconds per token of half-minute means.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pagefleet_operator.domain.sample import Sample

MEAN_SECONDS = 30.0
LEAST_MEANS, LEAST_SPREAD = 4, 1.25


@dataclass(frozen=True)
class Mean:
    """Means over half a minute, of the whole revision; `replicas` that were read."""

    start: float
    replicas: float
    running: float
    waiting: float
    pages: float
    tokens: float
    whole: bool  # every serving pod was read in every sample

    @property
    def concurrency(self) -> float:
        return self.running + self.waiting


@dataclass(frozen=True)
class Curve:
    """Seconds of a step: `base + slope x sequences`."""

    base: float
    slope: float

    def throughput(self, sequences: float) -> float:
        """Tokens per second of a replica with so many sequences."""
        step = self.base + self.slope * sequences
        return sequences / step if step > 0 else 0.0


def means(samples: Iterable[Sample]) -> list[Mean]:
    """Half-minute means of samples in time's order, oldest first."""
    grouped: dict[int, list[Sample]] = {}
    for entry in samples:
        grouped.setdefault(int(entry.time // MEAN_SECONDS), []).append(entry)
    return [_mean(key * MEAN_SECONDS, group) for key, group in sorted(grouped.items())]


def fit(found: Iterable[Mean]) -> Curve | None:
    """None when the means do not tell: too few, or all of about the same concurrency."""
    points = [
        (mean.running / mean.replicas, mean.running / mean.tokens)
        for mean in found
        if mean.replicas and mean.tokens > 0 and mean.running / mean.replicas >= 0.5
    ]
    if len(points) < LEAST_MEANS or max(r for r, _ in points) < LEAST_SPREAD * min(r for r, _ in points):
        return None
    across = sum(r for r, _ in points) / len(points)
    up = sum(seconds for _, seconds in points) / len(points)
    spread = sum((r - across) ** 2 for r, _ in points)
    slope = sum((r - across) * (seconds - up) for r, seconds in points) / spread
    base = up - slope * across
    if slope <= 0:
        return Curve(up, 0.0)
    if base <= 0:
        return Curve(0.0, up / across)
    return Curve(base, slope)


def _mean(start: float, group: list[Sample]) -> Mean:
    count = len(group)
    return Mean(
        start=start,
        replicas=sum(s.fresh for s in group) / count,
        running=sum(s.running for s in group) / count,
        waiting=sum(s.waiting for s in group) / count,
        pages=sum(s.pages for s in group) / count,
        tokens=sum(s.tokens for s in group) / count,
        whole=all(s.serving == s.fresh for s in group),
    )
