"""Protects the two-sample sequential test: it keeps its level under all noise that both revisions share, and detects a
regression of one. No block decides alone, and requests that are slow together count as less than independent ones."""

from __future__ import annotations

import math
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis.paired import Block, BlockCounts, PairedTest, common_odds, dispersion, evidence

NEEDED = math.log(200)
# Row 17 of docs/reliability.md. PAGEFLEET_GUARD_RUNS says how many plays its shares are of (1,000 in the nightly run).
MAX_FALSE, MIN_FOUND = 0.01, 0.99
RUNS = int(os.environ.get("PAGEFLEET_GUARD_RUNS", "40"))


def histogram(values: list[float]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for value in values:
        counts[sketch.bucket_of(value)] = counts.get(sketch.bucket_of(value), 0) + 1
    return counts


def play(seed: int, blocks: int, *, worse: float = 1.0, shared: float = 0.0, own: float = 0.0) -> PairedTest:
    """Blocks of 20 and 20 requests; `shared` and `own` are deviations of the logarithm from block to block."""
    source, test = random.Random(seed), PairedTest(0.95, 0.15, NEEDED / 4)
    for _ in range(blocks):
        common = math.exp(source.gauss(0, shared))
        sides = []
        for factor in (1.0, worse):
            level = 0.1 * common * factor * math.exp(source.gauss(0, own))
            sides.append(histogram([level * source.lognormvariate(0, 0.5) for _ in range(20)]))
        test.add(Block(*sides))
    return test


@pytest.mark.parametrize(("shared", "own"), [(0.0, 0.0), (0.7, 0.0), (0.0, 0.2), (0.5, 0.2)])
def test_identical_revisions_are_not_convicted(shared: float, own: float) -> None:
    fired = sum(evidence([play(seed, 150, shared=shared, own=own)]) >= math.exp(NEEDED) for seed in range(RUNS))
    assert fired <= MAX_FALSE * RUNS


def test_a_regression_is_detected_also_under_shared_bursts() -> None:
    for shared in (0.0, 0.4):
        runs = (play(seed, 200, worse=2.0, shared=shared) for seed in range(RUNS))
        assert sum(evidence([run]) >= math.exp(NEEDED) for run in runs) >= MIN_FOUND * RUNS


def test_an_accepted_increase_is_not_convicted() -> None:
    fired = sum(evidence([play(seed, 150, worse=1.1)]) >= math.exp(NEEDED) for seed in range(RUNS))
    assert fired <= MAX_FALSE * RUNS


@settings(max_examples=100)
@given(st.integers(0, 10_000), st.integers(1, 10_000))
def test_no_block_decides_alone(seed: int, slow: int) -> None:
    test = play(seed, 30)
    before = max(test.logs)
    test.add(Block(histogram([0.1] * 20), {2000: slow}))
    assert max(test.logs) <= before + NEEDED / 4 + 1e-9


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)), max_size=60))
def test_dispersion_is_total_and_only_lowers(raw: list[tuple[int, int, int, int]]) -> None:
    blocks = [BlockCounts(n, m, min(n, h), float(min(m, g))) for n, m, h, g in raw if n and m]
    assert dispersion(blocks) >= 1.0
    assert common_odds(blocks) > 0


def test_slow_together_is_less_evidence() -> None:
    steady = [BlockCounts(20, 20, 1, 2.0)] * 40
    bursts = [BlockCounts(20, 20, 1, 0.0)] * 36 + [BlockCounts(20, 20, 1, 20.0)] * 4
    assert dispersion(bursts) > 2 * dispersion(steady)


def test_one_side_alone_is_no_evidence() -> None:
    test = PairedTest(0.95, 0.15, NEEDED / 4)
    for _ in range(50):
        test.add(Block(histogram([0.1] * 20), {}))
        test.add(Block({}, histogram([9.0] * 20)))
    assert evidence([test]) == 1.0
    assert not test.blocks
