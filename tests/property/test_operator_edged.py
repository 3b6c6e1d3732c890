"""Protects the guard on histograms with edges of their own (engines, Prometheus). Wherever the edges lie, no more of the
canary's requests count as slow than were slow, and no fewer of the stable's, so that equal revisions are not rolled
back. With our engine's edges a p95 that is 25 % worse is detected as it is with every latency known. With edges far
apart only larger regressions are detected."""

from __future__ import annotations

import math
import os
import random
from bisect import bisect_left
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_contract import sketch
from pagefleet_engine.api.observability.buckets import LATENCY
from pagefleet_operator.domain.analysis.paired import Block, PairedTest, evidence
from pagefleet_operator.domain.base.edged import Edged, Pair

NEEDED = math.log(400)
# Row 17 of docs/reliability.md. PAGEFLEET_GUARD_RUNS says how many plays its shares are of (1,000 in the nightly run).
MAX_FALSE = 0.01
RUNS = int(os.environ.get("PAGEFLEET_GUARD_RUNS", "40"))
VLLM = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
Values = list[float]
Trace = list[tuple[Values, Values]]


def trace(seed: int, noise: str, worse: float, blocks: int = 150, size: int = 20) -> Trace:
    """Blocks of both revisions: heavy tails, a load that both share and that remembers, a little of each one's own."""
    source, pairs = random.Random(seed), []
    shared, own = 0.0, [0.0, 0.0]
    for _ in range(blocks):
        shared = 0.9 * shared + source.gauss(0, 0.1)
        own = [0.9 * value + source.gauss(0, 0.01) for value in own]
        sides = []
        for level, factor in zip(own, (1.0, worse), strict=True):
            scale = factor * math.exp(shared + level)
            if noise == "lognormal":
                sides.append([0.1 * scale * source.lognormvariate(0, 0.5) for _ in range(size)])
            else:
                sides.append([0.05 * scale * source.paretovariate(2.5) for _ in range(size)])
        pairs.append((sides[0], sides[1]))
    return pairs


def edged(values: Sequence[float], edges: tuple[float, ...]) -> dict[tuple[float, float], int]:
    counts: dict[int, int] = {}
    for value in values:
        place = bisect_left(edges, value)
        counts[place] = counts.get(place, 0) + 1
    return Edged((*edges, math.inf), counts).buckets()


def histogram(values: Sequence[float]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for value in values:
        counts[sketch.bucket_of(value)] = counts.get(sketch.bucket_of(value), 0) + 1
    return counts


def convicted(blocks: Trace, edges: tuple[float, ...] | None) -> bool:
    """Whether it is, looked at after every block."""
    test = PairedTest(0.95, 0.15, NEEDED / 4)
    for stable, canary in blocks:
        pair = None if edges is None else Pair(edged(stable, edges), edged(canary, edges), edges)
        test.add(Block(histogram(stable), histogram(canary), pair))
        if max(test.logs) >= NEEDED and evidence([test]) >= math.exp(NEEDED):
            return True
    return False


@pytest.mark.parametrize("noise", ["lognormal", "pareto"])
@pytest.mark.parametrize("worse", [1.0, 1.15])
def test_equal_and_accepted_revisions_are_not_convicted(noise: str, worse: float) -> None:
    for edges in (None, LATENCY, VLLM, (0.1, 1.0, 10.0)):
        assert sum(convicted(trace(seed, noise, worse), edges) for seed in range(RUNS)) <= MAX_FALSE * RUNS, edges


def test_a_quarter_worse_is_detected_with_our_engines_edges_as_it_is_without() -> None:
    """15 % accepted; edges 5 % apart make 16 % of it."""
    traces = [trace(seed, "lognormal", 1.25, blocks=400, size=120) for seed in range(12)]
    assert all(convicted(one, None) for one in traces)
    assert all(convicted(one, LATENCY) for one in traces)


def test_edges_far_apart_show_only_regressions_larger_than_their_distance() -> None:
    """The stable's p95 is 0.23 s: the next edges are 0.25 and 0.5 s, so that nothing below twice as slow can convict."""
    subtle = [trace(seed, "lognormal", 1.25, blocks=400, size=60) for seed in range(6)]
    assert not any(convicted(one, VLLM) for one in subtle)
    plain = [trace(seed, "lognormal", 3.0) for seed in range(12)]
    assert all(convicted(one, VLLM) for one in plain)


EDGES = st.lists(st.floats(1e-3, 1e2), min_size=1, max_size=12, unique=True).map(lambda found: tuple(sorted(found)))
LATENCIES = st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=40)


@settings(max_examples=300)
@given(EDGES, EDGES, LATENCIES, LATENCIES, st.floats(0.0, 3.0), st.floats(1e-3, 1e2))
def test_the_stable_is_never_counted_faster_nor_the_canary_slower_than_it_was(
    theirs: tuple[float, ...],
    ours: tuple[float, ...],
    stable: Values,
    canary: Values,
    increase: float,
    threshold: float,
) -> None:
    """Also when the two revisions' engines have different edges."""
    pair = Pair(edged(stable, theirs), edged(canary, ours), ours)
    limit = (1 + increase) * threshold
    edge = pair.edge(limit)
    assert pair.stable_above(threshold) >= sum(value > threshold for value in stable)
    if edge is None:
        assert limit > ours[-1]
        return
    assert limit <= edge in ours
    assert pair.canary_above(edge) == sum(value > edge for value in canary) <= sum(value > limit for value in canary)


def test_above_the_last_edge_nothing_is_compared() -> None:
    """Neither evidence nor a pass: whoever asks is told that the test is blind."""
    test, edges = PairedTest(0.95, 0.15, NEEDED / 4), (0.1, 0.2)
    for _ in range(50):
        values = [0.15] * 10 + [5.0] * 10
        test.add(Block(histogram(values), histogram(values), Pair(edged(values, edges), edged(values, edges), edges)))
    assert test.blind
    assert not test.blocks
    assert evidence([test]) == 1.0
