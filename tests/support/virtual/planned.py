"""Readings of a revision whose replicas are known exactly: a step takes base + slope x sequences seconds. No test here."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad

STEP = 5.0  # seconds between two samples
PAGES, PAGE = 60_000, 16  # a replica's pages are more than its requests ever hold
NOW = 1_700_000_010.0
HALF_HOUR = 1800.0


@dataclass
class Service:
    """Replicas with a known throughput, and requests of known lengths (tokens). `noise` is the relative deviation of a reading."""

    base: float = 0.010
    slope: float = 0.0005
    held: float = 800.0
    output: float = 200.0
    replicas: int = 2
    noise: float = 0.0
    seed: int = 0
    source: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.source = random.Random(self.seed)

    def throughput(self, sequences: float) -> float:
        """Tokens per second of a replica."""
        return sequences / (self.base + self.slope * sequences)

    def sample(self, time: float, running: int) -> Sample:
        """`running` requests on each replica."""
        tokens = self.replicas * self.throughput(running) * max(0.1, self.source.gauss(1, self.noise))
        used = round(self.replicas * running * (self.held / PAGE + 0.5) * max(0.1, self.source.gauss(1, self.noise)))
        total = PAGES * self.replicas
        load = EngineLoad(
            running * self.replicas, kv_pages_total=total, kv_pages_free=max(0, total - used), tokens=tokens
        )
        silent = frozenset() if running else frozenset(f"p{number}" for number in range(self.replicas))
        return Sample(time, self.replicas, self.replicas, load, self.replicas, silent)

    def samples(self, end: float, seconds: float, running: Callable[[float], float]) -> list[Sample]:
        """A sample each STEP until `end`; `running` has the requests of a replica at a time."""
        count = round(seconds / STEP)
        times = [end - STEP * (count - place) for place in range(count + 1)]
        return [self.sample(time, max(0, round(running(time)))) for time in times]

    def started(self, samples: list[Sample]) -> dict[int, int]:
        """Requests that were sent to the revision, by half-minutes: as many as keep the requests in flight as they are read."""
        counts: dict[int, float] = {}
        for before, after in pairwise(samples):
            ended = (before.load.tokens or 0.0) * (after.time - before.time) / self.output
            place = math.floor(before.time / 30)
            counts[place] = counts.get(place, 0.0) + ended + after.load.running - before.load.running
        return {place: max(0, round(count)) for place, count in counts.items()}


def load(started: dict[str, dict[int, int]], rate: float = 1.0) -> ServiceLoad:
    """The gateways' measurements at a steady rate of requests."""
    return ServiceLoad(2.0, arrivals=(rate,) * 360, started=started)


def seen(running: float, seconds: float = HALF_HOUR, **service: Any) -> list[Sample]:
    """Return readings of two replicas that run so many requests each, and a few more and fewer by turns, until NOW."""
    return Service(**service).samples(NOW, seconds, lambda time: running * (1 + 0.1 * math.sin(time / 60)))
