"""Protects three parts of the calibration by the stable revision's pods: a slow pod that the picker avoids counts as if it got its
share, pods that are slow together make a canary of several pods less certain, and a conviction is about the requests since the
evidence began to grow."""

from __future__ import annotations

import random

import pytest

from pagefleet_contract.sketch import bucket_of
from pagefleet_operator.domain.analysis.adjusted.alike import Alikeness
from pagefleet_operator.domain.analysis.adjusted.excursions import MIN_SCALES, NEAR, Excursions
from pagefleet_operator.domain.analysis.adjusted.suspects import Suspects
from pagefleet_operator.domain.analysis.adjusted.traffic import GONE_SECONDS, MAX_WEIGHT, PodTraffic
from pagefleet_operator.domain.analysis.adjusted.waiting import Side
from pagefleet_operator.domain.status.observation import Slice


def piece(start: float, requests: dict[str, int]) -> Slice:
    pods = {pod: {bucket_of(1.0): count} for pod, count in requests.items()}
    return Slice("g", start, 2.0, "s", "", 0, 0, pods=pods)


def traffic_of(rates: dict[str, int], until: float = 120.0) -> PodTraffic:
    traffic = PodTraffic()
    for number in range(round(until / 2)):
        traffic.add(2.0 * number, [piece(2.0 * number, rates)])
    return traffic


def test_a_request_of_a_pod_that_gets_few_counts_for_more_and_of_one_that_gets_many_for_no_less() -> None:
    traffic = traffic_of({"avoided": 1, "one": 8, "two": 8, "three": 8})
    assert 2.5 < traffic.weight("avoided") < 6.25  # the average is 6.25 requests a slice
    assert traffic.weight("one") == 1.0
    assert traffic.weight("unknown") == 1.0
    assert traffic_of({"none": 0, "one": 90}).weight("none") == MAX_WEIGHT


def test_few_requests_show_nothing_of_what_the_picker_avoids() -> None:
    traffic = PodTraffic()
    traffic.add(0.0, [piece(0.0, {"one": 1, "two": 0})])
    assert traffic.weight("two") < 1.2


def test_a_pod_without_requests_is_forgotten_and_does_not_lower_the_average() -> None:
    traffic = traffic_of({"gone": 4, "one": 4})
    for number in range(60):
        start = 120.0 + 2 * number
        traffic.add(start, [piece(start, {"one": 4})])
    assert traffic.weight("gone") > 1.5
    traffic.forget()
    assert traffic.weight("gone") == 1.0, f"it has had none for more than {GONE_SECONDS:g} s"
    assert traffic.weight("one") == pytest.approx(1.0)
    copy = traffic.copied()
    copy.add(400.0, [piece(400.0, {"new": 50})])
    assert traffic.weight("new") == 1.0


def alikeness(together: float, alone: float, windows: int = 60, pods: int = 8) -> Alikeness:
    """Hits of 20 requests a window and pod: a share of 0.1, which the window and the pod raise or lower."""
    draws, result = random.Random(1), Alikeness()
    for window in range(windows):
        common = together * draws.gauss(0, 1)
        for pod in range(pods):
            share = min(1.0, max(0.0, 0.2 + common + alone * draws.gauss(0, 1)))
            result.add(10.0 * window, f"p{pod}", 20, sum(draws.random() < share for _ in range(20)))
    return result


def test_pods_that_are_slow_together_are_alike_and_pods_that_are_slow_by_turns_are_not() -> None:
    assert alikeness(0.1, 0.0).correlation > 0.4
    assert alikeness(0.0, 0.1).correlation < 0.03
    assert alikeness(0.0, 0.0).correlation < 0.03
    middle = alikeness(0.1, 0.1).correlation
    assert 0.1 < middle < alikeness(0.1, 0.0).correlation


def test_few_windows_and_a_single_pod_show_no_alikeness() -> None:
    assert alikeness(0.1, 0.0, windows=3).correlation < 0.3
    assert alikeness(0.1, 0.0, pods=1).correlation == 0.0
    assert Alikeness().correlation == 0.0


def test_requests_of_a_canary_of_several_pods_say_less_the_more_alike_pods_are() -> None:
    found = alikeness(0.1, 0.0)
    assert found.design_effect(1) == 1.0
    assert found.design_effect(5) == pytest.approx(1 + 4 * found.correlation)
    assert found.design_effect(0) == 1.0, "a canary whose pods are not ready yet"
    copy = found.copied()
    for window in range(100, 140):
        copy.add(10.0 * window, "p1", 20, 20 * (window % 2))
    assert found.correlation == alikeness(0.1, 0.0).correlation


def test_an_alternative_without_excursions_borrows_from_those_that_have_some() -> None:
    """What makes single pods slow shows at the quantiles first. The far multiples, which no phase reaches, borrow nothing."""
    excursions, quiet = Excursions(), Excursions().scales()
    ratios = [30.0 if place < 8 else -1.0 for place in range(len(MIN_SCALES))]
    for number in range(10):
        excursions.add(4.0 * number, "pod", [(0, ratios)])
        excursions.add(4.0 * number + 2, "pod", [(0, [-1000.0] * len(MIN_SCALES))])
    scales = excursions.scales()
    assert quiet == pytest.approx(MIN_SCALES)
    for place, (scale, least) in enumerate(zip(scales, MIN_SCALES, strict=True)):
        assert (scale > 1.2 * least) if place in NEAR else (scale == least)


def test_the_suspects_are_the_requests_since_the_evidence_was_last_small() -> None:
    suspects, side = Suspects(), Side({"a": {5: 2}}, {"a": {9: 1}}, {}, {})
    suspects.add(side, 0.5)
    suspects.add(side, 3.0)
    assert suspects.measured == {"a": {5: 4}} and suspects.unmeasured == {"a": {9: 2}}
    copy = suspects.copied()
    copy.add(side, -0.1)
    assert copy == Suspects()
    assert suspects.measured == {"a": {5: 4}}
