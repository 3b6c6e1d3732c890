"""Protects the records of a revision's times by load, by numbers computed by hand: what a record takes and forgets, which load's bound
serves which load, and how much the slow requests of single minutes scatter."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis.watching.load_records import (
    at,
    bounds_of,
    dispersion_of,
    grown,
    is_load_record,
    only,
    quantiles_of,
)
from pagefleet_operator.domain.analysis.watching.minutes import Minute, StratumMinute
from pagefleet_operator.domain.status.status import BaselineRecord

SPREAD_OUT = dict.fromkeys(range(1, 101), 1)


def record(name: str, running: int, histogram: Mapping[int, int], dispersion: float = 0.0) -> BaselineRecord:
    written = {str(bucket): count for bucket, count in histogram.items()}
    return BaselineRecord("a", "ttft", f"load {name}, running {running}", written, "gateway", dispersion)


def minute(start: float, running: int, **strata: Mapping[int, int]) -> Minute:
    return Minute(start, running, {name: StratumMinute(measured) for name, measured in strata.items()})


def buckets(bounds: Mapping[str, object]) -> object:
    return {name: [(running, sketch.bucket_of(value)) for running, value in own] for name, own in bounds.items()}  # type: ignore[attr-defined]


def test_records_are_told_apart_by_their_names() -> None:
    ours = [record("0-63 queued", 12, {1: 1}), record("x" * 60, 0, {1: 1})]
    names = ("512-1447", "load , running 1", "load a, running 100", "load a, running 1 ", f"load {'x' * 61}, running 1")
    others = [BaselineRecord("a", "ttft", name) for name in names]
    assert only([*others, *ours]) == tuple(ours)
    assert [is_load_record(one) for one in others] == [False] * 5


def test_a_new_record_has_its_load_its_dispersion_and_the_end_of_its_newest_minute() -> None:
    minutes = [minute(60.0, 2, b={7: 100}, empty={}), minute(120.0, 2, a={5: 20}, b={7: 1})]
    found = grown((), minutes, "r", 0.95)
    assert [(one.revision, one.signal, one.stratum, one.source) for one in found] == [
        ("r", "ttft", "load a, running 2", "gateway"),
        ("r", "ttft", "load b, running 2", "gateway"),
    ]
    assert [one.until for one in found] == [180.0, 180.0] and [one.dispersion for one in found] == [2.0, 2.0]
    assert [one.counts for one in found] == [{5: 20}, {7: 101}]
    assert grown((), (), "r", 0.95) == ()


def test_a_record_takes_400_requests_at_a_time_until_it_has_4000() -> None:
    """Those taken have equal distances of rank, so that the quantiles stay."""
    many = minute(0.0, 1, a=dict.fromkeys(range(1, 101), 10))
    [once] = grown((), [many], "r", 0.95)
    assert sum(once.histogram.values()) == 400
    assert sketch.quantile(once.counts, 0.95) == sketch.upper(96)
    [few] = grown([record("a", 1, {50: 3900})], [many], "r", 0.95)
    assert sum(few.histogram.values()) == 4000 and few.until == 60.0
    [last] = grown([record("a", 1, {50: 3999})], [many], "r", 0.95)
    assert sum(last.histogram.values()) == 4000
    full = record("a", 1, {50: 4000})
    assert grown([full], [many], "r", 0.95) == (full,)


def test_what_a_record_takes_is_every_so_manieth_request_by_rank() -> None:
    """Of 800 requests the 2nd, 4th, ... : a bucket with a single one of rank 1 gives none."""
    histogram = {100: 1, 101: 2, 102: 397, 103: 399, 104: 1}
    [found] = grown((), [minute(0.0, 1, a=histogram)], "r", 0.95)
    assert found.counts == {0: 1, 102: 199, 103: 199, 104: 1}
    [whole] = grown((), [minute(0.0, 1, a={100: 399, 101: 1})], "r", 0.95)
    assert whole.counts == {100: 399, 101: 1}, "400 are not too many"


def test_the_quickest_three_tenths_lie_in_one_bucket_and_a_record_has_sixty() -> None:
    [found] = grown((), [minute(0.0, 1, a=dict.fromkeys(range(101, 111), 10))], "r", 0.95)
    assert found.counts == {0: 20, **dict.fromkeys(range(103, 111), 10)}, "the third tenth reaches the limit"
    [wide] = grown((), [minute(0.0, 1, a=dict.fromkeys(range(101, 185), 1))], "r", 0.95)
    assert wide.counts == {0: 25, **dict.fromkeys(range(126, 185), 1)}
    [wider] = grown((), [minute(0.0, 1, a=dict.fromkeys(range(101, 186), 1))], "r", 0.95)
    assert wider.counts == {0: 25, 126: 1, **dict.fromkeys(range(128, 186, 2), 2), 186: 1}


def test_the_32_largest_records_stay() -> None:
    records = [record("a", number, {50: 100 + number}) for number in range(33)]
    found = grown(records, [], "r", 0.95)
    assert found == tuple(records[1:])
    assert grown([record("b", 1, {5: 9}), *records[:2]], [], "r", 0.95) == (*records[:2], record("b", 1, {5: 9}))


def test_a_bound_is_the_quantile_one_standard_error_higher_and_raised_by_the_increase() -> None:
    """Of 100 requests the ranks are 95 + 2.2 and 50 + 5, and of 60 requests 54 + 2.3."""
    found = bounds_of([record("a", 3, SPREAD_OUT)], 0.95, 0.2)
    assert found == {"a": [(3, pytest.approx(1.2 * sketch.upper(98)))]}
    assert bounds_of([record("a", 3, SPREAD_OUT)], 0.5, 0.0) == {"a": [(3, sketch.upper(55))]}
    sixty = bounds_of([record("a", 3, dict.fromkeys(range(1, 61), 1))], 0.9, 0.0)
    assert sixty == {"a": [(3, sketch.upper(57))]}
    assert bounds_of([record("a", 3, dict.fromkeys(range(1, 60), 1))], 0.9, 0.0) == {}
    assert bounds_of([record("a", 3, {9: 60})], 0.999, 0.0) == {"a": [(3, sketch.upper(9))]}, "no rank beyond the last"


def test_a_class_with_few_requests_counts_in_the_next_busier_one_of_its_stratum() -> None:
    records = [
        record("a", 2, {10: 59}), record("a", 5, {20: 1}), record("a", 7, {30: 59}), record("b", 1, {40: 60}),
        record("b", 3, {50: 20}), record("c", 1, {60: 100}), BaselineRecord("a", "ttft", "512-1447", {"9": 500}),
    ]  # fmt: skip
    found = quantiles_of(reversed(records), 0.5)
    assert found == {
        "a": [(5, sketch.upper(10)), (7, sketch.upper(30))],
        "b": [(1, sketch.upper(40)), (3, sketch.upper(50))],
        "c": [(1, sketch.upper(60))],
    }
    assert list(bounds_of(records, 0.5, 0.0)) == ["a", "b", "c"]
    assert [running for running, _ in bounds_of(records, 0.5, 0.0)["a"]] == [5], "the busiest has too few"


def test_a_load_has_the_value_of_the_next_busier_class_that_is_recorded() -> None:
    bounds = {"a": [(2, 0.2), (5, 0.5)]}
    assert [at(bounds, "a", running) for running in (0, 2, 3, 5, 6)] == [0.2, 0.2, 0.5, 0.5, None]
    assert at(bounds, "b", 0) is None


def test_the_dispersion_is_the_largest_that_is_recorded_and_two_before() -> None:
    assert dispersion_of([]) == dispersion_of([record("a", 1, {1: 1})]) == 2.0
    known = [record("a", 1, {1: 1}, 1.5), record("b", 1, {1: 1}, 3.0), BaselineRecord("a", "ttft", "x", dispersion=7.0)]
    assert dispersion_of(known) == 3.0


def scatter(*minutes: Minute) -> float:
    """The dispersion written after these minutes; the record's 90 % quantile is in bucket 50."""
    new = grown([record("a", 1, {50: 90, 60: 10})], minutes, "r", 0.9)
    return max(one.dispersion for one in new)


def test_the_dispersion_follows_the_squares_of_the_minutes_slow_requests() -> None:
    """Ten minutes of the prior 2.0. Of 100 requests 10 are expected to be slow with a variance of 9."""
    assert scatter(minute(0.0, 1, a={50: 84, 60: 16})) == round((20 + 6**2 / 9) / 11, 3)
    assert scatter(minute(0.0, 1, a={50: 84, 60: 16}), minute(60.0, 0, a={50: 90, 60: 10})) == round((20 + 4) / 12, 3)
    assert scatter(minute(0.0, 1, a={60: 100})) == round((20 + 25) / 11, 3), "a minute's square is bounded"
    assert scatter(minute(0.0, 1, a={50: 90, 60: 10}, new={50: 90, 60: 90})) == round(20 / 11, 3), (
        "no threshold, no say"
    )
    assert scatter(minute(0.0, 1, new={60: 500})) == 2.0
    assert scatter(*[minute(60.0 * number, 1, a={60: 100}) for number in range(90)]) == 8.0
    assert scatter(*[minute(60.0 * number, 1, a={50: 9, 60: 1}) for number in range(90)]) == 1.0
