"""Makes the traffic of a stable and a canary from a seed, as gateways measure it, and asks the guard for its verdict."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis import guard
from pagefleet_operator.domain.analysis.guard import Comparison
from pagefleet_operator.domain.analysis.verdict import Outcome
from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard
from pagefleet_operator.domain.status.observation import Observation, Slice
from pagefleet_operator.domain.status.status import Status

TTFT = LatencyGuard("ttft", 0.95, 0.15, 0.99, 100)
GUARD = Guard((TTFT,), 0.01, 5, "hold", 600.0)
SLICE = 2.0
Draw = Callable[[random.Random], float]


def lognormal(source: random.Random) -> float:
    return 0.1 * math.exp(source.gauss(0, 0.5))


def pareto(source: random.Random) -> float:
    return 0.05 * source.paretovariate(2.5)


def traffic(
    seed: int,
    draw: Draw,
    *,
    canary: float = 1.0,
    per_slice: float = 10.0,
    share: float = 0.5,
    slices: int = 90,
    bursts: bool = True,
    failing: float = 0.0,
) -> list[Slice]:
    """Make slices of both revisions; in a burst of both all requests are four times slower."""
    source, measured, slow = random.Random(seed), [], 0
    for index in range(slices):
        if bursts and source.random() < 0.03:
            slow = 3
        factor, slow = (4.0 if slow else 1.0), max(0, slow - 1)
        for revision, weight, worse in (("s", 1 - share, 1.0), ("c", share, canary)):
            histogram: dict[int, int] = {}
            requests = max(0, round(source.gauss(per_slice * weight, 1)))
            for _ in range(requests):
                bucket = sketch.bucket_of(draw(source) * factor * worse)
                histogram[bucket] = histogram.get(bucket, 0) + 1
            errors = sum(source.random() < failing for _ in range(requests)) if revision == "c" else 0
            measured.append(Slice("g", index * SLICE, SLICE, revision, "s", requests, errors, {"ttft": histogram}))
    return measured


def outcome(slices: list[Slice] | None, chosen: Guard = GUARD) -> Outcome:
    observation = Observation("ns", "chat", "uid", 1, {}, Status(), slices=None if slices is None else tuple(slices))
    verdict = guard.assess(observation, chosen, Comparison("s", "c", since=0.0, now=1000.0))
    assert verdict is not None
    return verdict.outcome
