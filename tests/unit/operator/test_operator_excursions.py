"""Protects the calibration by single stable pods: the heights of their excursions raise the scale, a pod that is gone is
forgotten, and the excursion in which it went still counts."""

from __future__ import annotations

from pagefleet_contract.sketch import bucket_of
from pagefleet_operator.domain.analysis.adjusted.accumulated import Accumulated, AdjustedScope
from pagefleet_operator.domain.analysis.adjusted.alternatives import COUNT
from pagefleet_operator.domain.analysis.adjusted.excursions import LEVEL, MIN_SCALES, OPEN, Excursions
from pagefleet_operator.domain.analysis.adjusted.reference import RETAINED_SECONDS
from pagefleet_operator.domain.status.observation import LoadCounts, Slice

HIGH = [(0, [LEVEL + OPEN + 20.0] * COUNT)]
OVER = [(0, [-1000.0] * COUNT)]


def test_the_excursion_in_which_a_pod_went_counts_after_the_pod_is_forgotten() -> None:
    excursions = Excursions()
    excursions.add(0.0, "gone", HIGH)
    excursions.add(10.0, "here", HIGH)
    before = excursions.scales()
    assert all(scale > least for scale, least in zip(before, MIN_SCALES, strict=True))
    excursions.forget(5.0)
    assert excursions.pods == {"here"}
    assert excursions.scales() == before


def test_a_pod_that_returns_begins_again() -> None:
    excursions = Excursions()
    excursions.add(0.0, "pod", HIGH)
    excursions.forget(1.0)
    before = excursions.scales()
    excursions.add(2.0, "pod", OVER)
    assert excursions.scales() == before, "the excursion is counted once"


def test_a_copy_forgets_by_itself() -> None:
    excursions = Excursions()
    excursions.add(0.0, "pod", HIGH)
    excursions.copied().forget(1.0)
    assert excursions.pods == {"pod"}


def test_the_sums_of_pods_that_are_gone_are_forgotten_with_the_times_of_that_age() -> None:
    """An autoscaled service has new pods every hour: what is retained must not grow with all that it has ever had."""
    sums = Accumulated(AdjustedScope("s", "c", 0.0, 5, 0.15))
    times = {bucket_of(1.0): 10}
    for number in range(200):
        start = 30.0 * number
        pods = {f"pod-{number}": times}
        sums.add(start, [Slice("g", start, 2.0, "s", "", 0, 0, load={"512-1447": LoadCounts(times)}, pods=pods)])
    retained = round(RETAINED_SECONDS / 30.0) + 1
    assert sums.excursions.pods == {f"pod-{number}" for number in range(200 - retained, 200)}
