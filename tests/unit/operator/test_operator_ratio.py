"""Protects the numbers that people read before and during a step, by numbers computed by hand: the ratio of the quantiles with its
interval, how many requests a good canary needs, and the sentence about what a step can show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.load_slices import KNOWN, arrivals, piece

from pagefleet_contract.sketch import GROWTH
from pagefleet_operator.domain.analysis.adjusted.forecast import duration, forecast
from pagefleet_operator.domain.analysis.adjusted.ratio import Ratio, ratio, requests_needed
from pagefleet_operator.domain.spec.rollout import LatencyGuard

BASE = {"a": {100: 20}}
HUNDRED = dict.fromkeys(range(101, 201), 1)
SPREAD_OUT = {100: 60, 101: 10, 150: 10}  # the 75 % quantile is in bucket 100, and 7/8 lie within 15 % of it
ENTRY = LatencyGuard("ttft", 0.75, 0.15, 0.99, 50)


def exact(found: Ratio | None, *steps: int | None) -> bool:
    """Whether the ratio and the ends of its interval are so many buckets above the stable's quantile."""
    assert found is not None
    expected = [None if step is None else pytest.approx(GROWTH**step) for step in steps]
    return [found.value, found.low, found.high] == expected


def test_an_interval_s_ends_are_ranks_1_645_standard_errors_apart() -> None:
    """Of the median of 100 requests: the ranks are 50, 50 - 8.2 and 50 + 8.2, and with four times the variance 50 +- 16.5."""
    assert exact(ratio({"a": HUNDRED}, {}, BASE, 0.5, 1.0), 50, 41, 60)
    assert exact(ratio({"a": HUNDRED}, {}, BASE, 0.5, 4.0), 50, 33, 68)
    assert exact(ratio({"a": HUNDRED}, {}, BASE, 0.9, 1.0), 90, 85, 96)


@pytest.mark.parametrize(("requests", "high"), [(4, None), (6, None), (7, 7)])
def test_the_upper_end_needs_a_request_with_its_rank(requests: int, high: int | None) -> None:
    """The margin of 7 requests is 2.2, so that the rank of the upper end is 7."""
    found = ratio({"a": dict.fromkeys(range(101, 101 + requests), 1)}, {}, BASE, 0.5, 1.0)
    assert exact(found, (requests + 1) // 2, 1, high)


def test_requests_without_a_measurement_count_once_they_are_older_than_the_stable_s_quantile() -> None:
    """Ten of fifteen are: the ranks are those of 110 requests, 55 and 55 -+ 8.6."""
    found = ratio({"a": HUNDRED}, {100: 5, 300: 10}, BASE, 0.5, 1.0)
    assert exact(found, 55, 46, 65) and found is not None and found.requests == 100


def test_only_strata_in_which_the_stable_has_twenty_requests_are_compared() -> None:
    canary = {"a": {110: 30}, "b": {500: 4}, "c": {500: 3}, "d": {}}
    found = ratio(canary, {}, {**BASE, "b": {1: 19}, "d": {1: 20}, "e": {1: 20}}, 0.5, 1.0)
    assert exact(found, 10, 10, 10) and found is not None and (found.requests, found.others) == (30, 7)
    assert ratio({"b": {500: 4}}, {300: 5}, {"b": {1: 19}}, 0.5, 1.0) is None


@pytest.mark.parametrize(("quantile", "base"), [(0.7, 100), (0.75, 100), (0.8, 200)])
def test_the_stable_s_mix_of_strata_is_made_the_canary_s(quantile: float, base: int) -> None:
    """Of the canary's 40 requests 10 are in the second stratum, of the stable's 60 are 40; one bucket is in both."""
    stable = {"a": {100: 18, 90: 2}, "b": {200: 36, 90: 4}}
    canary = {"a": {base: 30}, "b": {base: 10}}
    found = ratio(canary, {}, stable, quantile, 1.0)
    assert found is not None and found.value == pytest.approx(1.0)
    few = ratio({"a": {100: 2}}, {}, {"a": {100: 15, 200: 5}}, 0.75, 1.0)
    assert few is not None and few.value == pytest.approx(1.0), "three quarters of two requests lie in the first bucket"
    rare = ratio({"a": {90: 30}, "b": {90: 10}}, {}, stable, 0.1, 1.0)
    assert rare is not None and rare.value == pytest.approx(1.0)


def test_a_good_canary_s_requests_are_enough_when_its_interval_fits_into_the_accepted_increase() -> None:
    """1.645 ** 2 * 3/16 / (7/8 - 3/4) ** 2 is 32.5, and twice the variance needs twice as many."""
    assert requests_needed(SPREAD_OUT, 0.75, 0.15, 1.0) == 33
    assert requests_needed({100: 60, 101: 10, 150: 10}, 0.75, 0.15, 2.0) == 65
    assert requests_needed({100: 80}, 0.75, 0.15, 1.0) == 9


def test_it_is_not_known_how_many_a_canary_needs_when_nothing_fits_or_the_stable_has_too_few() -> None:
    assert requests_needed({}, 0.75, 0.15, 1.0) is None
    assert requests_needed({100: 79}, 0.75, 0.15, 1.0) is None
    assert requests_needed({100: 60, 150: 20}, 0.75, 0.15, 1.0) is None, "just a quarter lies beyond the increase"
    assert requests_needed({100: 70, 150: 10}, 0.75, 0.0, 1.0) is None, "no canary is shown to be no slower at all"


def test_a_step_s_sentence_names_the_requests_needed_and_those_that_its_hold_gives() -> None:
    """100 requests in the 10 seconds that count them, of which the canary gets 24 %: 2.4 a second. The hits' variance counts twice."""
    pieces = [piece("s", 0.0, SPREAD_OUT), *(arrivals("s", start, 20) for start in (10.0, 2.0, 4.0, 6.0, 8.0))]
    text = "a canary as good as s needs about 65 requests to pass on ttft p75, about 27 s"
    assert forecast(pieces, "s", ENTRY, 24, None) == text
    assert forecast(pieces, "s", ENTRY, 24, 300.0) == f"{text}; the step's hold of 5 minutes gives it about 720"
    more = forecast(pieces, "s", replace(ENTRY, min_requests=1800), 24, None)
    assert more is not None and more.endswith("needs about 1,800 requests to pass on ttft p75, about 12 minutes")


def test_only_possible_slices_of_the_stable_s_last_minutes_are_in_the_sentence() -> None:
    """The requests of the last five minutes, and the times of the last twenty."""
    pieces = [
        piece("s", 801.0, SPREAD_OUT), piece("s", 800.0, {100: 8000}), piece("c", 2000.0, {100: 8000}),
        arrivals("s", 1700.0, 9000), arrivals("s", 1701.0, 150), replace(arrivals("s", 2000.0, 152), seconds=3.0),
        arrivals("c", 2000.0, 900), replace(arrivals("s", 1999.0, 900), errors=1),
    ]  # fmt: skip
    text = forecast(pieces, "s", ENTRY, 100, 302.0)
    assert text == (
        "a canary as good as s needs about 65 requests to pass on ttft p75, about 65 s; "
        "the step's hold of 5 minutes gives it about 302"
    )


def test_there_is_no_sentence_before_the_stable_is_known_and_two_when_there_can_be_no_verdict() -> None:
    assert forecast([], "s", ENTRY, 10, None) is None
    assert forecast([piece("s", 0.0, {100: 79}), arrivals("s", 0.0, 9)], "s", ENTRY, 10, None) is None
    assert forecast([piece("s", 0.0, {100: 80})], "s", ENTRY, 10, None) == (
        "revision s has had no requests for 300 s: without requests there is no verdict"
    )
    varied = forecast([piece("s", 0.0, {100: 60, 150: 20}, stratum=KNOWN)], "s", ENTRY, 10, None)
    assert varied == (
        "ttft p75 of revision s varies so much that no canary can be shown to lie within 15% of it: "
        "raise maxIncrease or lower quantile in spec.rollout.guard.latency"
    )


def test_seconds_are_written_in_the_unit_that_suits_them() -> None:
    written = {89.0: "89 s", 90.0: "2 minutes", 5399.0: "90 minutes", 5400.0: "1.5 hours", 3.6e6: "1000.0 hours"}
    assert {seconds: duration(seconds) for seconds in written} == written
