"""Protects two estimates about the stable revision's pods, by numbers computed by hand: how alike the hits of its pods are in the same
ten seconds, and as how many requests one of a pod counts that the picker avoids."""

from __future__ import annotations

import math

import pytest

from pagefleet_contract.sketch import bucket_of
from pagefleet_operator.domain.analysis.adjusted.alike import Alikeness
from pagefleet_operator.domain.analysis.adjusted.suspects import Suspects
from pagefleet_operator.domain.analysis.adjusted.traffic import PodTraffic
from pagefleet_operator.domain.analysis.adjusted.waiting import Side
from pagefleet_operator.domain.status.observation import Slice

KEPT = 119 / 120  # of a window's numbers, ten seconds later


def alikeness(*windows: list[int]) -> Alikeness:
    """The hits of each pod in each window, of 10 requests. The last window stays open and does not count."""
    result = Alikeness()
    for number, hits in enumerate([*windows, [0]]):
        for pod, own in enumerate(hits):
            result.add(10.0 * number, f"p{pod}", 10, own)
    return result


def test_pods_with_the_same_hits_in_each_window_are_as_alike_as_the_windows_are_many() -> None:
    """Two windows, the first of which counts a little less; ten windows draw few towards no correlation."""
    windows = KEPT + 1
    assert alikeness([4, 4], [1, 1]).correlation == pytest.approx(windows / (windows + 10))


def test_the_correlation_compares_the_variance_of_all_hits_with_the_sum_of_each_pod_s() -> None:
    """Two pods are unlike, then three have many hits together, then two have few."""
    shares = [8 / 20, (8 * KEPT + 27) / (20 * KEPT + 30), ((8 * KEPT + 27) * KEPT + 6) / ((20 * KEPT + 30) * KEPT + 20)]
    alone = (2 * 2**2 * KEPT + 3 * (9 - 10 * shares[1]) ** 2) * KEPT + 2 * (3 - 10 * shares[2]) ** 2
    together = (27 - 30 * shares[1]) ** 2 * KEPT + (6 - 20 * shares[2]) ** 2
    windows = (KEPT + 1) * KEPT + 1
    pods = ((2 * KEPT + 3) * KEPT + 2) / windows
    expected = (together / alone - 1) / (pods - 1) * windows / (windows + 10)
    assert 0.05 < expected < 0.3
    assert alikeness([6, 2], [9, 9, 9], [3, 3]).correlation == pytest.approx(expected)


def test_a_pod_s_hits_are_compared_with_those_that_its_own_requests_explain() -> None:
    found = Alikeness()
    for start, few, many in ((0.0, 4, 12), (10.0, 1, 5), (20.0, 0, 0)):
        found.add(start, "few", 10, few)
        found.add(start, "many", 30, many)
    share = (16 * KEPT + 6) / (40 * KEPT + 40)
    first, second = 1 - 10 * share, 5 - 30 * share
    alike = (first + second) ** 2 / (first**2 + second**2) - 1
    assert found.correlation == pytest.approx(alike * (KEPT + 1) / (KEPT + 11))


def test_the_correlation_lies_between_none_and_all() -> None:
    assert alikeness([8, 0], [0, 8]).correlation == 0.0, "the pods are slow by turns"
    # The window of six pods has all the hits: there is more variance than the mean of 3.5 pods explains.
    assert alikeness([0], [9] * 6).correlation == pytest.approx((KEPT + 1) / (KEPT + 11))


def test_windows_that_differ_by_one_hit_show_alikeness_too() -> None:
    assert alikeness([1, 1], [0, 0]).correlation == pytest.approx((KEPT + 1) / (KEPT + 11))


def test_pods_without_a_difference_or_without_requests_show_no_alikeness() -> None:
    assert alikeness([5, 5], [5, 5]).correlation == 0.0
    quiet = Alikeness()
    for number in range(3):
        quiet.add(10.0 * number, "p0", 0, 0)
        quiet.add(10.0 * number, "p1", 0, 0)
    assert quiet.correlation == 0.0


def test_a_window_takes_the_slices_of_ten_seconds_from_its_first_one_on() -> None:
    apart, whole = Alikeness(), Alikeness()
    for begin, hits in ((3.0, (4, 2)), (13.0, (9, 7)), (23.0, (0, 0))):
        for pod, own in enumerate(hits):
            whole.add(begin, f"p{pod}", 10, own)
            apart.add(begin, f"p{pod}", 4, own // 2)
            apart.add(begin + 9.9, f"p{pod}", 6, own - own // 2)
    assert apart.correlation == pytest.approx(whole.correlation) and 0.05 < whole.correlation < 0.15


def test_a_copy_s_open_window_is_its_own() -> None:
    first = Alikeness()
    first.add(0.0, "p0", 10, 4)
    copy = first.copied()
    copy.add(2.0, "p0", 10, 4)
    copy.add(2.0, "p1", 10, 0)
    for start, hits in ((10.0, 9), (20.0, 0)):
        first.add(start, "p0", 10, hits)
        first.add(start, "p1", 10, hits)
    alone = Alikeness()
    for start, hits, pods in ((0.0, 4, 1), (10.0, 9, 2), (20.0, 0, 2)):
        for pod in range(pods):
            alone.add(start, f"p{pod}", 10, hits)
    assert first.correlation == alone.correlation > 0


def piece(start: float, requests: dict[str, int]) -> Slice:
    return Slice("g", start, 2.0, "s", "", 0, 0, pods={pod: {bucket_of(1.0): own} for pod, own in requests.items()})


def test_a_request_counts_by_the_average_pod_s_requests_of_the_last_seconds() -> None:
    """The average is half of them all. Five requests are added on both sides, and a request counts for 1/e after 20 s."""
    traffic, old = PodTraffic(), math.exp(-0.1)
    traffic.add(0.0, [piece(0.0, {"one": 20, "two": 2})])
    traffic.add(2.0, [piece(2.0, {"one": 12}), piece(2.0, {"one": 8})])
    average = (22 * old + 20) / 2
    assert traffic.weight("two") == pytest.approx((average + 5) / (2 * old + 5))
    assert traffic.weight("one") == 1.0
    assert traffic.weight("new") == 1.0


def test_a_request_counts_for_four_at_most() -> None:
    traffic = PodTraffic()
    traffic.add(0.0, [piece(0.0, {"one": 90, "two": 0})])
    assert traffic.weight("two") == 4.0


def test_a_pod_is_forgotten_a_minute_after_its_last_request_with_all_its_requests() -> None:
    traffic = PodTraffic()
    traffic.add(0.0, [piece(0.0, {"gone": 200})])
    traffic.add(60.0, [piece(60.0, {"one": 20, "two": 2})])
    traffic.forget()
    assert traffic.weight("gone") > 1.0, "its last slice is exactly a minute old"
    traffic.add(60.5, [])
    traffic.forget()
    assert traffic.weight("gone") == 1.0
    old = math.exp(-0.5 / 20)
    assert traffic.weight("two") == pytest.approx((11 * old + 5) / (2 * old + 5))


def test_after_all_pods_are_forgotten_nothing_of_them_counts() -> None:
    traffic = PodTraffic()
    traffic.add(0.0, [piece(0.0, {"one": 3, "two": 7})])
    traffic.add(61.0, [])
    traffic.forget()
    traffic.add(62.0, [piece(62.0, {"one": 10, "two": 0})])
    assert traffic.weight("two") == pytest.approx(2.0)


def test_a_copy_s_traffic_is_its_own() -> None:
    first = PodTraffic()
    first.add(0.0, [piece(0.0, {"one": 20, "two": 2})])
    copy, before = first.copied(), first.weight("two")
    first.add(2.0, [piece(2.0, {"three": 50})])
    assert copy.weight("two") == before
    copy.add(2.0, [piece(2.0, {"one": 20})])
    assert copy.weight("two") == pytest.approx(((22 * math.exp(-0.1) + 20) / 2 + 5) / (2 * math.exp(-0.1) + 5))


def test_requests_are_suspect_as_long_as_the_evidence_is_larger_than_at_its_start() -> None:
    suspects, side = Suspects(), Side({"a": {5: 2}}, {}, {}, {})
    suspects.add(side, 0.5)
    suspects.add(side, 0.0)
    assert suspects == Suspects()
