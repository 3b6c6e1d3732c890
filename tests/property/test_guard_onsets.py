"""Protects the mixture over onsets: under the null its evidence rarely convicts at any time, a late change is found about
as soon as an early one, and the weights of all onsets are a prior."""

from __future__ import annotations

import math
import random

import pytest

from pagefleet_operator.domain.analysis.adjusted.onsets import FLOOR, OnsetMixture, OnsetPrior

ODDS, SHARES = (2.0, 5.0), (0.5, 0.5)
PRIOR = OnsetPrior(500.0)


def ratios(hits: int, trials: int, share: float) -> list[float]:
    """Of `hits` among `trials` against a share, for each of ODDS times the share."""
    return [hits * math.log(odds) + (trials - hits) * math.log((1 - odds * share) / (1 - share)) for odds in ODDS]


def first_conviction(source: random.Random, shares: list[float], level: float) -> int | None:
    """The block in which the evidence against a share of 5 % first reaches 1/level; `shares` are the true ones."""
    mixture = OnsetMixture.of(len(ODDS))
    for block, share in enumerate(shares):
        hits = sum(source.random() < share for _ in range(10))
        mixture = mixture.after(ratios(hits, 10, 0.05), SHARES, PRIOR)
        if mixture.log >= -math.log(level):
            return block
    return None


@pytest.mark.parametrize("level", [0.1, 0.01])
def test_under_the_null_it_convicts_at_most_at_its_level(level: float) -> None:
    source, runs = random.Random(11), 600
    crossed = sum(first_conviction(source, [0.05] * 300, level) is not None for _ in range(runs))
    assert crossed <= level * runs + 2 * math.sqrt(level * runs)


def test_a_change_after_a_thousand_good_blocks_is_found_almost_as_soon() -> None:
    source, runs = random.Random(12), 60

    def delay(onset: int) -> float:
        blocks = [first_conviction(source, [0.05] * onset + [0.3] * 60, 0.001) for _ in range(runs)]
        delays = sorted(block - onset if block is not None else 60 for block in blocks)
        return delays[runs // 2]

    assert delay(1000) <= 1.5 * delay(0) + 1


def test_the_weights_of_all_onsets_add_up_to_one_at_most_and_reach_far() -> None:
    weights = [PRIOR.weight(block) for block in range(200_000)]
    assert weights[0] == 0.5 and 0.99 < sum(weights) <= 1
    assert weights[1:] == sorted(weights[1:], reverse=True)
    assert weights[500] > weights[1] / 5, "about equal as far as the horizon"
    assert OnsetPrior(0.0, 0.02).weight(7) == OnsetPrior(0.0, 0.02).weight(70_000) == 0.02


def test_the_sum_is_the_mixture_over_onsets() -> None:
    """Against the sum over all onsets, each computed by itself."""
    source, mixture = random.Random(13), OnsetMixture.of(len(ODDS))
    blocks = [ratios(source.randint(0, 3), 10, 0.05) for _ in range(40)]
    for block in blocks:
        mixture = mixture.after(block, SHARES, PRIOR)
    expected = sum(
        share * PRIOR.weight(onset) * math.exp(sum(block[place] for block in blocks[onset:]))
        for place, share in enumerate(SHARES)
        for onset in range(len(blocks))
    )
    assert mixture.log == pytest.approx(math.log(expected))
    assert mixture.blocks == 40
    assert OnsetMixture.of(2).log < FLOOR + 1
