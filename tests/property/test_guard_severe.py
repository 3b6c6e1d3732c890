"""Protects the bet that most requests are far slower: it is fair, however the thresholds' shares lie and however far a request has
waited when the bet begins. The share that a busy time excuses follows the stable revision, and does not follow chance."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_operator.domain.analysis.adjusted.severe import MAX_HIT, Severe, severe
from pagefleet_operator.domain.analysis.adjusted.surges import surged

SHARES = st.lists(st.floats(1e-4, 0.9), min_size=2, max_size=4).map(lambda own: sorted(own, reverse=True))


def settled(bet: Severe, count: int, passed: int, before: int = 0) -> float:
    """The factor of one request that has exceeded `before` thresholds and is measured above `passed` of them in the end."""
    return math.exp(bet.ratio([(float(place >= before), float(before <= place < passed)) for place in range(count)]))


@given(SHARES)
def test_a_request_that_is_no_slower_than_expected_earns_nothing_in_the_mean(shares: list[float]) -> None:
    bet, ends = severe(shares), [*shares, 0.0]
    cells = [1 - shares[0], *(own - after for own, after in zip(shares, ends[1:], strict=True))]
    factors = [settled(bet, len(shares), passed) for passed in range(len(shares) + 1)]
    assert sum(cell * factor for cell, factor in zip(cells, factors, strict=True)) <= 1 + 1e-9
    assert factors == sorted(factors), "a canary that is quicker than expected earns less"
    assert max(factors) <= math.exp(MAX_HIT) + 1e-9


@given(SHARES)
def test_it_is_fair_for_a_request_that_already_waits_as_well(shares: list[float]) -> None:
    """The onset of a regression may lie anywhere, also between two thresholds that a request exceeds."""
    bet, ends = severe(shares), [*shares, 0.0]
    for before in range(1, len(shares)):
        mean = 0.0
        for passed in range(before, len(shares) + 1):
            rows = [(float(place >= before), float(before <= place < passed)) for place in range(len(shares))]
            rows[before - 1] = (0.0, 0.0)
            mean += (ends[passed - 1] - ends[passed]) / shares[before - 1] * math.exp(bet.ratio(rows))
        assert mean == pytest.approx(1.0, rel=1e-6)


def test_chance_excuses_hardly_anything_and_a_busy_time_nearly_all() -> None:
    source = random.Random(1)

    def mean_share(times: float) -> float:
        hits = [sum(source.random() < 0.025 * times for _ in range(90)) for _ in range(2000)]
        return sum(surged(0.025, 90, number) for number in hits) / len(hits)

    assert mean_share(1.0) < 1.1 * 0.025
    assert mean_share(6.0) > 0.9 * 6.0 * 0.025
    assert surged(0.025, 0, 0) == pytest.approx(0.025)
    assert surged(0.5, 90, 90) > 0.9
