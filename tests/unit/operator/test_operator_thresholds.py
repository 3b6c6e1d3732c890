"""Protects the thresholds that the stable revision sets for a canary, by numbers computed by hand: the buckets in strata that are known
and in those that are not, the shares of hits, and the age from which a slice no longer counts."""

from __future__ import annotations

import pytest
from support.load_slices import KNOWN, TIMES

from pagefleet_contract.strata import FREE_STRATA, QUEUED_STRATA
from pagefleet_operator.domain.analysis.adjusted.reference import Reference, Threshold
from pagefleet_operator.domain.analysis.adjusted.waiting import Side

MARGIN = 7  # 15 % are seven buckets of 2 %


def thresholds(strata: dict[str, dict[int, int]], increase: float = 0.15) -> tuple[Threshold, ...]:
    reference = Reference()
    reference.add(0.0, strata)
    return reference.thresholds(increase)


def test_a_quantile_s_rank_lies_two_standard_errors_higher_and_the_canary_s_bucket_an_increase_further() -> None:
    """The ranks are 100 + 20, 150 + 17.3, 180 + 12 and 190 + 8.7 of 200. Beyond the 99 % quantile are too few."""
    found = thresholds({KNOWN: TIMES})[:5]
    stable = [60, 84, 96, 120]
    assert [threshold.stable for threshold in found] == [*({KNOWN: bucket} for bucket in stable), {}]
    assert [threshold.canary.get(KNOWN) for threshold in found[:4]] == [bucket + MARGIN for bucket in stable]
    assert [threshold.pooled for threshold in found] == [bucket + MARGIN for bucket in (50, 75, 90, 95, 99)]
    assert [threshold.share for threshold in found] == pytest.approx([0.5, 0.25, 0.1, 0.05, 0.01])
    assert all((one.far, one.elsewhere) == (False, None) for one in found)


def test_a_stratum_needs_ten_requests_above_a_quantile() -> None:
    few, many = (
        thresholds({KNOWN: {5: 19}, FREE_STRATA[4]: {5: 40}}),
        thresholds({KNOWN: {5: 20}, FREE_STRATA[4]: {5: 40}}),
    )
    assert [KNOWN in found[0].stable for found in (few, many)] == [False, True]
    assert [FREE_STRATA[4] in found.stable for found in many[:3]] == [True, True, False]
    assert KNOWN not in many[1].stable and KNOWN in many[5].canary, "the median makes the multiples known"


def test_lower_quantiles_of_strata_that_are_not_known_are_those_of_the_nearest_smaller_one() -> None:
    """Without one they are those of all requests. The margin there is twice seven buckets."""
    queued = {bucket + 10: count for bucket, count in TIMES.items()}
    found = thresholds({KNOWN: TIMES, QUEUED_STRATA[1]: queued})
    whole = found[0].pooled + MARGIN
    free = {name: whole if place < 3 else 60 + 2 * MARGIN for place, name in enumerate(FREE_STRATA)}
    busy = {name: whole if place < 1 else 70 + 2 * MARGIN for place, name in enumerate(QUEUED_STRATA)}
    assert found[0].canary == {**free, **busy, KNOWN: 60 + MARGIN, QUEUED_STRATA[1]: 70 + MARGIN}
    assert len(found[1].canary) == 18 and set(found[2].canary) == {KNOWN, QUEUED_STRATA[1]}


def test_multiples_of_the_95_percent_quantile_count_in_all_strata() -> None:
    """The quantile's bucket is 95, and 1.5, 2.2, 4 and 10 times its value are 20, 40, 70 and 116 buckets further. Two requests lie
    beyond the first. In strata that are not known a share is assumed that is no smaller."""
    found = thresholds({KNOWN: TIMES, FREE_STRATA[5]: {1: 1}})[5:]
    assert [one.elsewhere for one in found] == [115, 135, 165, 211] == [one.pooled for one in found]
    assert [one.canary for one in found] == [{KNOWN: bucket} for bucket in (115, 135, 165, 211)]
    assert [one.stable for one in found] == [one.canary for one in found]
    few = 2 / 203
    assert [one.share for one in found] == pytest.approx([4 / 203, few, few, few])
    assert [one.elsewhere_share for one in found] == pytest.approx([0.10, 0.05, 0.015, few])
    assert [one.far for one in found] == [False, False, True, True]


def test_many_requests_of_the_stable_leave_the_assumed_shares_as_they_are() -> None:
    found = thresholds({KNOWN: {5: 1000}})
    assert [one.elsewhere_share for one in found[5:]] == [0.10, 0.05, 0.015, 0.005]


def test_the_quantile_of_all_requests_has_the_next_rank_and_may_lie_in_the_lowest_bucket() -> None:
    assert thresholds({KNOWN: dict.fromkeys(range(51), 1)})[0].pooled == 25 + MARGIN, "the 26th of 51"
    assert thresholds({KNOWN: {0: 60}})[0].pooled == MARGIN


def test_there_are_no_thresholds_before_fifty_requests() -> None:
    assert thresholds({KNOWN: {5: 49}}) == ()
    assert len(thresholds({KNOWN: {5: 25}, FREE_STRATA[4]: {5: 25}})) == 9


def test_the_accepted_increase_moves_the_canary_s_buckets_only() -> None:
    """50 % are 20.5 buckets of 2 %."""
    found = thresholds({KNOWN: TIMES}, 0.5)
    assert (found[0].stable[KNOWN], found[0].canary[KNOWN], found[0].pooled) == (60, 80, 70)
    assert found[0].canary[FREE_STRATA[4]] == 80 + MARGIN
    assert found[5].canary == {KNOWN: 115}


def test_times_count_for_twenty_minutes() -> None:
    reference = Reference()
    reference.add(0.0, {KNOWN: {5: 50}})
    reference.add(1.0, {KNOWN: {6: 1}, FREE_STRATA[4]: {5: 1}})
    reference.add(1199.0, {KNOWN: {8: 200}})
    assert reference.strata == {KNOWN: {5: 50, 6: 1, 8: 200}, FREE_STRATA[4]: {5: 1}}
    copy = reference.copied()
    copy.add(1200.0, {KNOWN: {7: 1}})
    assert copy.strata == {KNOWN: {6: 1, 7: 1, 8: 200}, FREE_STRATA[4]: {5: 1}}
    copy.add(1201.0, {KNOWN: {7: 1}})
    assert copy.strata == {KNOWN: {7: 2, 8: 200}}
    assert reference.strata == {KNOWN: {5: 50, 6: 1, 8: 200}, FREE_STRATA[4]: {5: 1}}


def test_the_last_times_of_a_stable_without_requests_stay() -> None:
    reference = Reference()
    reference.add(0.0, {KNOWN: TIMES})
    for start in range(2, 8000, 2):
        reference.add(float(start), {})
    assert reference.strata == {KNOWN: TIMES} and reference.thresholds(0.15)


def test_two_hundred_requests_of_a_stable_that_has_few_stay_however_old_they_are() -> None:
    reference = Reference()
    for number in range(300):
        reference.add(60.0 * number, {KNOWN: {number: 1}})
    assert reference.strata == {KNOWN: dict.fromkeys(range(100, 300), 1)}


def test_a_threshold_decides_in_known_strata_and_elsewhere() -> None:
    side = Side({"a": {10: 1, 20: 2}, "b": {15: 3, 40: 4}}, {}, {}, {})
    assert Threshold({}, {"a": 10}, 0, 0.1).decided(side) == ((3, 2), (0, 0))
    assert Threshold({}, {"a": 10}, 0, 0.1, 30, 0.2).decided(side) == ((3, 2), (7, 4))
    assert Threshold({}, {"a": 10, "b": 15}, 0, 0.1, 30, 0.2).decided(side) == ((10, 6), (0, 0))
    assert Threshold({}, {}, 0, 0.1).elsewhere_share == 0.0
