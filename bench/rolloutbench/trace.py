"""Seeded traces of two revisions under the same traffic: heavy-tailed latencies, autocorrelated and drifting.

A latency is base x noise x shared(t) x own_revision(t): `noise` is lognormal (sigma 0.5) or Pareto (shape 2.5) and
independent per request; `shared` is a first-order autoregression of its logarithm plus a daily sine, which both
revisions meet; `own` is another autoregression for each revision, as its pods' queues would make. Nothing here judges.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagefleet_contract.sketch import GROWTH, SMALLEST
from pagefleet_operator.domain.analysis.paired import Block
from pagefleet_operator.domain.base.edged import Pair

Floats = npt.NDArray[np.float64]
DAY = 86400.0


@dataclass(frozen=True)
class Traffic:
    """`rate` requests per second of both revisions together, `share` of them on the canary, `worse` its factor."""

    noise: str = "lognormal"
    rate: float = 10.0
    share: float = 0.5
    worse: float = 1.0
    seconds: float = 3600.0
    block: float = 4.0
    shared: float = 0.2  # standard deviation of the logarithm
    own: float = 0.05
    memory: float = 0.9  # autocorrelation from block to block
    daily: float = 0.3
    long_share: tuple[float, float] = (0.0, 0.0)  # share of long prompts (six times slower) on stable and canary


@dataclass(frozen=True)
class Piece:
    """A block of a trace: latencies in seconds of each revision, by stratum."""

    stable: dict[str, Floats]
    canary: dict[str, Floats]

    def blocks(self, edges: tuple[float, ...] | None = None) -> dict[str, Block]:
        """Cut the trace into blocks. `edges` (finite, ascending): values as a histogram with these edges reports them."""
        blocks = {}
        for name, stable in self.stable.items():
            canary = self.canary[name]
            pair = None if edges is None else Pair(edged(stable, edges), edged(canary, edges), edges)
            blocks[name] = Block(histogram(stable), histogram(canary), pair)
        return blocks


def pieces(traffic: Traffic, seed: int) -> Iterator[Piece]:
    source = np.random.default_rng(seed)
    count = int(traffic.seconds / traffic.block)
    phase = source.uniform(0, 2 * math.pi)
    times = np.arange(count) * traffic.block
    common = _regression(source, count, traffic.memory, traffic.shared) + traffic.daily * np.sin(
        2 * math.pi * times / DAY + phase
    )
    own = [_regression(source, count, traffic.memory, traffic.own) for _ in range(2)]
    requests = traffic.rate * traffic.block
    sizes = [source.poisson(requests * part, count) for part in (1 - traffic.share, traffic.share)]
    for index in range(count):
        sides: list[dict[str, Floats]] = []
        for side, worse in ((0, 1.0), (1, traffic.worse)):
            factor = worse * math.exp(common[index] + own[side][index])
            heavy = int(source.binomial(sizes[side][index], traffic.long_share[side]))
            short = int(sizes[side][index]) - heavy
            sides.append({"s": factor * _noise(source, traffic.noise, short)})
            if any(traffic.long_share):
                sides[-1]["l"] = 6.0 * factor * _noise(source, traffic.noise, heavy)
        yield Piece(*sides)


def histogram(latencies: Floats) -> dict[int, int]:
    """The operator's log buckets."""
    if not latencies.size:
        return {}
    buckets = np.maximum(0, np.ceil(np.log(latencies / SMALLEST) / math.log(GROWTH) - 1e-9)).astype(int)
    values, counts = np.unique(buckets, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def edged(latencies: Floats, edges: tuple[float, ...]) -> dict[tuple[float, float], int]:
    """Counts by the ends of their bucket."""
    ends = (0.0, *edges, math.inf)
    places, counts = np.unique(np.searchsorted(np.array(edges), latencies, side="left"), return_counts=True)
    return {
        (ends[place], ends[place + 1]): count for place, count in zip(places.tolist(), counts.tolist(), strict=True)
    }


def _noise(source: np.random.Generator, kind: str, count: int) -> Floats:
    if kind == "lognormal":
        return 0.1 * np.exp(source.normal(0, 0.5, count))
    return 0.05 * (1 + source.pareto(2.5, count))


def _regression(source: np.random.Generator, count: int, memory: float, deviation: float) -> Floats:
    steps = source.normal(0, deviation * math.sqrt(1 - memory**2), count)
    values = np.empty(count)
    value = source.normal(0, deviation)
    for index in range(count):
        value = memory * value + steps[index]
        values[index] = value
    return values
