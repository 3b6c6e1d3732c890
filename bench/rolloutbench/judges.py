"""Judges that decide on a trace, each by its own rule: the operator's guard (its own code, not a copy), rules that compare one
number with a constant, and a test with a fixed sample. A judge is fed block by block and says when it would roll back.

The constant of the others is the most favourable one: (1 + maxIncrease) x the stable's true long-run quantile, which
nobody knows beforehand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pagefleet_engine.api.observability.buckets import LATENCY
from pagefleet_operator.domain.analysis.latency import MIN_BLOCKS
from pagefleet_operator.domain.analysis.paired import PairedTest, evidence
from rolloutbench.trace import Floats, Piece, Traffic

# Of a vLLM 0.32's /metrics (tests/data/metrics-vllm.txt).
VLLM_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
             160.0, 640.0, 2560.0)  # fmt: skip
QUANTILE, INCREASE, CONFIDENCE, SIGNALS = 0.95, 0.15, 0.99, 2
CHECK_SECONDS = 60.0


class Judge(Protocol):
    """`take` gets a block and the time of its end in seconds. True: roll back now."""

    def take(self, piece: Piece, now: float) -> bool: ...


@dataclass
class Pagefleet:
    """The guard with two signals, as by default (ttft and errors), in its first hour: the level is halved. `edges`: it
    gets a histogram with these."""

    tests: dict[str, PairedTest] = field(default_factory=dict)
    edges: tuple[float, ...] | None = None

    def take(self, piece: Piece, now: float) -> bool:
        needed = math.log(2 * SIGNALS / (1 - CONFIDENCE))
        for stratum, block in piece.blocks(self.edges).items():
            test = self.tests.setdefault(stratum, PairedTest(QUANTILE, INCREASE, needed / MIN_BLOCKS))
            test.add(block)
        if sum(max(0.0, max(test.logs)) for test in self.tests.values()) < needed:
            return False
        return evidence(list(self.tests.values())) >= math.exp(needed)


@dataclass
class Constant:
    """Every minute the canary's p95 of that minute against a constant; `failures` in all, never forgotten, roll back.
    Flagger's canary analysis with threshold 5; OME's and Argo Rollouts' (failureLimit 0) with 1."""

    limit: float
    failures: int
    failed: int = 0
    next: float = CHECK_SECONDS
    recent: list[Floats] = field(default_factory=list)

    def take(self, piece: Piece, now: float) -> bool:
        self.recent += piece.canary.values()
        if now < self.next:
            return False
        self.next += CHECK_SECONDS
        values = np.concatenate(self.recent)
        self.recent = []
        self.failed += bool(values.size) and float(np.quantile(values, QUANTILE)) > self.limit
        return self.failed >= self.failures


@dataclass
class FixedSample:
    """After `size` canary requests, once: a two-proportion z-test at 1 % of the shares above (1 + maxIncrease) x the
    stable's p95 of the same time."""

    size: int
    stable: list[Floats] = field(default_factory=list)
    canary: list[Floats] = field(default_factory=list)
    count: int = 0
    over: bool = False

    def take(self, piece: Piece, now: float) -> bool:
        if self.over:
            return False
        self.stable += piece.stable.values()
        self.canary += piece.canary.values()
        self.count += sum(values.size for values in piece.canary.values())
        if self.count < self.size:
            return False
        self.over = True
        ours, theirs = np.concatenate(self.canary), np.concatenate(self.stable)
        threshold = float(np.quantile(theirs, QUANTILE))
        share, base = float((ours > (1 + INCREASE) * threshold).mean()), 1 - QUANTILE
        deviation = math.sqrt(base * (1 - base) * (1 / ours.size + 1 / theirs.size))
        return (share - base) / deviation > 2.326


def true_quantile(traffic: Traffic) -> float:
    """The stable's long-run p95 in seconds: noise times the lognormal spread of the load, by simulation."""
    source = np.random.default_rng(0)
    count = 400_000
    spread = math.sqrt(traffic.shared**2 + traffic.own**2 + traffic.daily**2 / 2)
    load = np.exp(source.normal(0, spread, count))
    noise = (
        0.1 * np.exp(source.normal(0, 0.5, count))
        if traffic.noise == "lognormal"
        else 0.05 * (1 + source.pareto(2.5, count))
    )
    long = source.random(count) < traffic.long_share[0]
    return float(np.quantile(load * noise * np.where(long, 6.0, 1.0), QUANTILE))


def edged_judges() -> dict[str, Judge]:
    """The guard by its input: each request, or an engine's histogram."""
    return {
        "Pagefleet": Pagefleet(),
        "by our engine's edges": Pagefleet(edges=LATENCY),
        "by vLLM's TTFT edges": Pagefleet(edges=VLLM_TTFT),
    }


def judges(traffic: Traffic) -> dict[str, Judge]:
    limit = (1 + INCREASE) * true_quantile(traffic)
    return {
        "Pagefleet": Pagefleet(),
        "constant, 5 failures (Flagger)": Constant(limit, 5),
        "constant, 1 failure (OME, Argo)": Constant(limit, 1),
        "fixed sample of 2,000": FixedSample(2000),
    }
