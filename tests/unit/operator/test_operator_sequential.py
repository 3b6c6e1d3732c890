"""Protects the numbers of the sequential test of a share and of the ranks that bound a quantile, against values computed by hand and by the
binomial distribution itself."""

from __future__ import annotations

import math

import pytest

from pagefleet_operator.domain.analysis import sequential
from pagefleet_operator.domain.analysis.sequential import ODDS, Evidence, e_value, min_samples, upper_rank


def chance_of(hits: int, trials: int, share: float) -> float:
    """The binomial distribution, by its definition."""
    return math.comb(trials, hits) * share**hits * (1 - share) ** (trials - hits)


def test_counts_are_added() -> None:
    assert Evidence(1, 5).plus(2, 7) == Evidence(3, 12)
    assert Evidence() == Evidence(0, 0)


@pytest.mark.parametrize(("hits", "trials", "share"), [(0, 0, 0.05), (1, 1, 0.05), (0, 10, 0.2), (7, 30, 0.1)])
def test_the_evidence_is_the_mean_of_the_likelihood_ratios(hits: int, trials: int, share: float) -> None:
    chances = [odds * share / (1 - share + odds * share) for odds in ODDS]
    ratios = [chance_of(hits, trials, chance) / chance_of(hits, trials, share) for chance in chances]
    assert e_value(Evidence(hits, trials), share) == pytest.approx(sum(ratios) / len(ODDS))


def test_the_alternatives_reach_from_barely_worse_to_nearly_always() -> None:
    assert sequential.ODDS == (1.5, 2.0, 3.0, 5.0, 10.0, 30.0)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.1])
def test_a_share_lies_between_nothing_and_all(share: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        e_value(Evidence(1, 2), share)


@pytest.mark.parametrize(("quantile", "alpha"), [(0.95, 0.01), (0.5, 0.05), (0.99, 0.1), (0.9, 0.02)])
def test_the_smallest_sample_whose_largest_value_bounds_the_quantile(quantile: float, alpha: float) -> None:
    count = min_samples(quantile, alpha)
    assert quantile**count <= alpha / 2 < quantile ** (count - 1)


@pytest.mark.parametrize("samples", [1, 10, 59, 100, 1000])
@pytest.mark.parametrize(("quantile", "alpha"), [(0.95, 0.01), (0.5, 0.05), (0.9, 0.1)])
def test_the_rank_is_the_smallest_that_bounds_the_quantile(samples: int, quantile: float, alpha: float) -> None:
    rank = upper_rank(samples, quantile, alpha)

    def risk(k: int) -> float:
        return sum(chance_of(hits, samples, quantile) for hits in range(k, samples + 1))

    if risk(samples) > alpha:
        assert rank == samples
    else:
        assert risk(rank) <= alpha < risk(rank - 1)


def test_exactly_the_accepted_risk_is_accepted() -> None:
    assert upper_rank(2, 0.5, 0.25 + 1e-12) == 2
    assert upper_rank(2, 0.5, 0.75 + 1e-12) == 1
    assert upper_rank(2, 0.5, 1.0) == 0


def test_the_chance_of_a_count_is_the_binomials() -> None:
    for k in range(6):
        assert sequential._binomial(5, k, 0.3) == pytest.approx(chance_of(k, 5, 0.3))
    assert sum(sequential._binomial(40, k, 0.95) for k in range(41)) == pytest.approx(1.0)
