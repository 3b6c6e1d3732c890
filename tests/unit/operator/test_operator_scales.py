"""Protects the scales by which evidence is divided, by numbers computed by hand: which excursions of single pods count with which
height, and what an alternative without excursions borrows from the others."""

from __future__ import annotations

import math

import pytest

from pagefleet_operator.domain.analysis.adjusted.excursions import MIN_SCALES, NEAR, Excursions, Run

OVER = -1000.0


def row(values: dict[int, float]) -> list[Run]:
    return [(0, [values.get(place, 0.0) for place in range(37)])]


def excursion(excursions: Excursions, *peaks: float, place: int = 0, pod: str = "pod") -> Excursions:
    """Excursions of one alternative, one after the other, each of which ends at exactly 0."""
    for number, peak in enumerate(peaks):
        excursions.add(4.0 * number, pod, row({place: peak}))
        excursions.add(4.0 * number + 2, pod, row({place: -peak}))
    return excursions


def test_the_smallest_scales_are_those_of_a_neighbour_s_phase() -> None:
    """Five quantiles, the multiples 1.5 and 2.2, the far ones 4 and 10, each with four odds, and the bet on all multiples."""
    assert MIN_SCALES == (3.2,) * 20 + (2.4,) * 8 + (1.0,) * 8 + (1.6,)
    assert {*range(28), 36} == NEAR
    assert Excursions().scales() == pytest.approx(MIN_SCALES)


@pytest.mark.parametrize("peaks", [(24.0,), (24.0, 4.0), (4.0, 24.0, 0.5)])
def test_the_mean_height_above_the_level_raises_the_scale_and_the_near_ones_borrow(peaks: tuple[float, ...]) -> None:
    """One excursion rises 20 above the level of 4. Those that do not exceed the level do not count."""
    found = excursion(Excursions(), *peaks).scales()
    alone = (3 * 3.2 + 1.5 * 20) / (3 + 1)
    shared = math.sqrt(((alone / 3.2) ** 2 + 28) / 29)
    assert found[0] == pytest.approx((3 * 3.2 * shared + 1.5 * 20) / (3 + 1))
    assert found[1:20] == pytest.approx([3.2 * shared] * 19) and found[20:28] == pytest.approx([2.4 * shared] * 8)
    assert found[28:36] == (1.0,) * 8 and found[36] == pytest.approx(1.6 * shared)


def test_far_multiples_do_not_lend_and_their_scale_is_their_own_mean() -> None:
    found = excursion(Excursions(), 24.0, 34.0, place=28).scales()
    assert found[28] == pytest.approx((3 * 1.0 + 1.5 * (20 + 30)) / (3 + 2))
    assert [*found[:28], *found[29:]] == pytest.approx([*MIN_SCALES[:28], *MIN_SCALES[29:]])


def test_low_excursions_do_not_lower_a_scale_below_its_smallest() -> None:
    assert excursion(Excursions(), *[4.5] * 50, place=28).scales() == pytest.approx(MIN_SCALES)


@pytest.mark.parametrize(("peak", "counts"), [(5.5, False), (5.75, True)])
def test_an_excursion_under_way_counts_from_a_height_on(peak: float, counts: bool) -> None:
    excursions = excursion(Excursions(), 24.0, place=28)
    excursions.add(10.0, "other", row({28: peak}))
    expected = (3 + 1.5 * (20 + peak - 4)) / (3 + 2) if counts else (3 + 1.5 * 20) / (3 + 1)
    assert excursions.scales()[28] == pytest.approx(expected)
    assert excursions.scales()[28] == pytest.approx(expected), "looking does not count it"
    excursions.forget(11.0)
    assert excursions.scales()[28] == pytest.approx(expected), "an excursion in which a pod went counts likewise"


def test_the_height_of_an_excursion_is_that_of_its_highest_sum() -> None:
    excursions = Excursions()
    for start, ratio in enumerate((20.0, -10.0, 2.0, 12.0, -23.0, 7.0, OVER)):  # 20, 10, 12, 24, 1, 8
        excursions.add(2.0 * start, "pod", row({28: ratio}))
    assert excursions.scales()[28] == pytest.approx((3 + 1.5 * 20) / (3 + 1))


def test_an_excursion_begins_with_a_gain_and_ends_without_one() -> None:
    excursions = Excursions()
    assert not excursions.under_way(0.0, "pod")
    excursions.add(2.0, "pod", row({0: -1.0, 3: 6.0}))
    assert excursions.under_way(2.0, "pod") == {3} and not excursions.under_way(2.0, "other")
    excursions.add(4.0, "pod", row({3: -6.0, 5: 9.0}))
    assert excursions.under_way(4.0, "pod") == {5}, "one that ends at 0 is over"
    excursions.add(6.0, "pod", [(2, [-1.0, 1.0])])
    assert excursions.under_way(6.0, "pod") == {3, 5}, "those that are left out stay as they are"
    excursions.add(8.0, "pod", row({3: OVER, 5: OVER}))
    assert not excursions.under_way(8.0, "pod")


def test_ratios_count_by_their_weight() -> None:
    light, heavy = Excursions(), Excursions()
    light.add(0.0, "pod", row({28: 6.0, 3: -1.0}), weight=4.0)
    heavy.add(0.0, "pod", row({28: 24.0, 3: -4.0}))
    assert light.scales() == heavy.scales() != Excursions().scales()


def test_pods_are_forgotten_by_their_newest_slice_whether_it_was_at_rest_or_not() -> None:
    excursions = Excursions()
    excursions.add(1.0, "old", row({0: 1.0}))
    excursions.add(5.0, "exact", row({0: 1.0}))
    excursions.under_way(6.0, "resting")
    excursions.forget(5.0)
    assert excursions.pods == {"exact", "resting"}
    excursions.under_way(8.0, "exact")
    excursions.forget(7.0)
    assert excursions.pods == {"exact"}


def test_hits_beyond_the_95_percent_quantile_scatter_as_their_excursions_are_high() -> None:
    """The alternative of twice the odds at the fourth threshold is the place 13."""
    assert Excursions().spread() == 1.0
    assert excursion(Excursions(), 11.0, 5.0, place=13).spread() == pytest.approx((3 + 7 + 1) / (3 + 2))
    assert excursion(Excursions(), 4.5, place=13).spread() == 1.0
    assert excursion(Excursions(), math.inf, place=13).spread() == 1.0


def test_a_copy_s_excursions_are_its_own() -> None:
    first = excursion(Excursions(), 24.0, place=28)
    first.add(4.0, "pod", row({28: 3.0}))
    copy, before = first.copied(), first.scales()
    assert copy.scales() == before and copy.pods == first.pods
    copy.add(6.0, "pod", row({28: 40.0}))
    copy.add(8.0, "pod", row({28: OVER}))
    copy.under_way(8.0, "new")
    assert first.scales() == before and first.pods == {"pod"} and first.under_way(8.0, "pod")
