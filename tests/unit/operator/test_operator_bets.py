"""Protects the arithmetic of the bets against a canary, by numbers computed by hand: what a hit and a miss earn at each odds, what a
request earns by the thresholds that it exceeds, which share of hits a busy time excuses, and the prior weights of onsets."""

from __future__ import annotations

import math

import pytest

from pagefleet_operator.domain.analysis.adjusted.alternatives import COUNT, SEVERE, SHARES, ratios, stakes
from pagefleet_operator.domain.analysis.adjusted.onsets import OnsetMixture, OnsetPrior
from pagefleet_operator.domain.analysis.adjusted.severe import severe
from pagefleet_operator.domain.analysis.adjusted.surges import surged

log = math.log


def test_a_hit_earns_the_ratio_of_its_chances_and_a_miss_loses_that_of_its_own() -> None:
    """Of the odds 0.2 / 0.8, the multiples 1.5, 2, 4 and 16 are the shares 3/11, 1/3, 1/2 and 4/5."""
    expected = [(share / 0.2, (1 - share) / 0.8) for share in (3 / 11, 1 / 3, 1 / 2, 4 / 5)]
    for up, down, (hit, miss) in zip(*stakes(0.2), expected, strict=True):
        assert (up, down) == pytest.approx((log(hit), log(miss)))
    assert ratios(0.2, 3.0, 5.0) == pytest.approx([3 * log(hit) + 5 * log(miss) for hit, miss in expected])


def test_a_share_of_nearly_all_requests_is_bet_against_as_one_of_98_percent() -> None:
    assert stakes(1.0) == stakes(0.98) != stakes(0.97)
    assert stakes(0.98)[0][3] == pytest.approx(log(15.68 / 15.7 / 0.98))


def test_the_bet_on_all_multiples_has_a_quarter_of_the_prior_and_the_others_share_the_rest() -> None:
    """Nine thresholds, each with four odds."""
    assert (COUNT, SEVERE) == (37, 36) == (9 * len(stakes(0.3)[0]) + 1, 36)
    assert SHARES == (0.75 / 36,) * 36 + (0.25,)


def test_a_request_earns_by_the_highest_threshold_that_it_exceeds() -> None:
    """The shares 1/16 and 1/256 are the factors 16 ** 0.75 / 4 = 2 and 256 ** 0.75 / 4 = 16; one request in 16 above the first
    threshold exceeds the second, so that exceeding the first is worth 16/16 + 2 * 15/16."""
    bet, first = severe((1 / 16, 1 / 256)), 2.875
    assert bet.exceeds == pytest.approx((log(first), log(16 / first)))
    assert bet.stays == pytest.approx((log(2 / first), 0.0))
    assert bet.quick == pytest.approx(log(0.25))
    # Of 10 requests 4 exceed the first threshold. Of the 9 that are decided about at the second, 1 exceeds it: 2 stay between.
    found = bet.ratio([(10, 4), (9, 1)])
    assert found == pytest.approx(4 * log(first) + log(16 / first) + 2 * log(2 / first) + 6 * log(0.25))


def test_exceeding_a_threshold_is_worth_what_may_follow() -> None:
    middle = 0.0256 * math.exp(3) + (1 - 0.0256) * 16
    first = middle / 16 + 15 / 16 * 2
    assert severe((1 / 16, 1 / 256, 1e-4)).exceeds == pytest.approx((log(first), log(middle / first), 3 - log(middle)))


def test_no_request_earns_more_than_the_limit_and_shares_that_rise_count_as_the_smallest_before() -> None:
    assert severe((1e-4,)).exceeds == pytest.approx((3.0,))
    assert severe((1 / 16, 1 / 8)) == severe((1 / 16, 1 / 16))
    assert severe((1 / 16, 1 / 16)).exceeds == pytest.approx((log(2), 0.0))


def test_hits_of_other_thresholds_than_the_bet_has_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        severe((0.1, 0.01)).ratio([(10, 1)])


def test_a_surge_is_weighed_against_chance_by_how_likely_each_makes_the_hits() -> None:
    """Of 20 requests 2 are expected to be hits and 8 are. In a surge their number is geometric with the mean 3 * 2."""
    chance = 2**8 * math.exp(-2) / math.factorial(8)
    surge = (6 / 7) ** 8 / 7
    weight = 0.1 * surge / (0.1 * surge + 0.9 * chance)
    share = 0.1 * 9 / (2 + 1 / 3)
    assert surged(0.1, 20, 8) == pytest.approx(0.1 + weight * (share - 0.1))


def test_fewer_hits_than_expected_do_not_lower_the_share_and_many_do_not_raise_it_above_one() -> None:
    assert surged(0.1, 20, 0) == surged(0.1, 20, 1) == 0.1
    assert surged(0.1, 5, 2) > 0.1, "half a hit was expected"
    assert surged(0.0, 20, 8) == 0.0
    assert surged(0.5, 100, 100) == 1.0


@pytest.mark.parametrize(("requests", "hits", "more"), [(25, 1, False), (25, 2, True), (90, 8, False), (90, 10, True)])
def test_a_surge_begins_where_its_mean_share_is_above_the_expected_one(requests: int, hits: int, more: bool) -> None:
    """Where one hit more than there are exceeds the expected ones and a third."""
    assert (surged(0.1, requests, hits) > 0.1) is more


def test_half_of_the_prior_is_on_the_first_block_and_the_rest_thins_out_behind_the_horizon() -> None:
    prior = OnsetPrior(4.0)
    assert prior.weight(0) == 0.5
    assert prior.weight(1) == pytest.approx(0.5 * (1 - 4 / 5))
    assert prior.weight(2) == pytest.approx(0.5 * (4 / 5 - 4 / 6))
    assert [OnsetPrior(4.0, 0.02).weight(block) for block in (0, 1)] == [0.5, 0.02]


def test_evidence_does_not_fall_below_its_floor() -> None:
    empty = OnsetMixture.of(2)
    assert (empty.logs, empty.blocks) == ((-1e4, -1e4), 0)
    once = empty.after([-1e6, log(3)], (0.25, 0.75), OnsetPrior(4.0))
    assert once.logs == pytest.approx((-1e4, log(0.5 * 0.75 * 3))) and once.blocks == 1
    twice = once.after([0.0, 0.0], (0.25, 0.75), OnsetPrior(4.0))
    assert twice.logs == pytest.approx((log(0.1 * 0.25), log(0.5 * 0.75 * 3 + 0.1 * 0.75)))


@pytest.mark.parametrize(("ratios", "shares"), [([0.0], (0.5, 0.5)), ([0.0, 0.0], (1.0,))])
def test_a_block_of_other_alternatives_is_refused(ratios: list[float], shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="zip"):
        OnsetMixture.of(2).after(ratios, shares, OnsetPrior(4.0))
