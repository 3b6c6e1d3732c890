"""Protects how the requests of a slice are counted at a threshold, measured and waiting ones: each is a hit once, in the slice in which
its age passes the threshold, and those of a gateway that has been silent for half a minute are forgotten."""

from __future__ import annotations

from collections.abc import Mapping

from pagefleet_operator.domain.analysis.adjusted.waiting import Row, Side, Waiting, by_stratum
from pagefleet_operator.domain.status.observation import LoadCounts, Slice


def piece(start: float, waiting: Mapping[int, int], instance: str = "g", stratum: str = "a") -> Slice:
    counts = LoadCounts(relative={7: 2}, waiting=waiting, unmeasured={8: 3})
    return Slice(instance, start, 2.0, "s", "", 0, 0, load={stratum: counts})


def test_measured_requests_are_decided_and_strata_without_a_threshold_are_left_out() -> None:
    side = Side({"a": {10: 3, 20: 2}, "b": {10: 1}, "c": {20: 5}}, {}, {}, {})
    assert side.decided({"a": 10, "b": 9, "d": 0}) == (6, 3)
    assert side.strata == {"a", "b", "c"}
    rows = by_stratum([{"a": 10, "b": 9, "d": 0}, {"c": 1}, {"a": 20}])
    assert side.decided_each(rows, 3) == ([6, 5, 5], [3, 5, 0])


def test_thresholds_count_in_the_order_of_their_buckets() -> None:
    assert Row.of({0: 9, 1: 4, 2: 9}).beyond({5: 2, 9: 1, 10: 3}) == {0: 3, 1: 6, 2: 3}


def test_a_request_that_waits_is_a_hit_when_it_passes_the_threshold_and_not_again() -> None:
    """Of 5 measured requests 2 are slower, and so are one that ended unmeasured and one that waits. One of the four was already
    older when the slice began. The other that ended unmeasured is undecided."""
    side = Side({"a": {10: 3, 20: 2}}, {"a": {20: 1, 5: 1}}, {"a": {15: 1}}, {"a": {25: 1}})
    assert side.decided({"a": 10}) == (3 + 3, 3)
    assert side.decided({"a": 15}) == (3 + 4, 4), "it had not passed this one"


def test_each_kind_of_request_alone_makes_a_stratum() -> None:
    one = {"a": {10: 2}}
    assert Side({}, one, {}, {}).decided({"a": 9}) == (2, 2)
    assert Side({}, {}, {}, one).decided({"a": 9}) == (2, 2)
    assert Side(one, {}, {}, {}).decided({"a": 10}) == (2, 0)
    assert Side({"a": {5: 1}}, {}, one, {}).decided({"a": 9}) == (1, 0), (
        "two are gone without a measurement: no negative hits"
    )
    assert [Side(*(one if place == own else {} for place in range(4))).strata for own in range(4)] == [{"a"}] * 4


def test_a_slice_s_requests_are_those_of_all_gateways_and_those_that_wait_at_its_ends() -> None:
    waiting = Waiting()
    first = waiting.take(0.0, [piece(0.0, {1: 1}), piece(0.0, {1: 2, 4: 1}, "h"), piece(0.0, {9: 5}, "i", "b")])
    assert first.relative == {"a": {7: 4}, "b": {7: 2}} and first.unmeasured == {"a": {8: 6}, "b": {8: 3}}
    assert first.begin == {} and first.end == {"a": {1: 3, 4: 1}, "b": {9: 5}}
    second = waiting.take(2.0, [piece(2.0, {2: 1})])
    assert second.begin == first.end and second.end == {"a": {1: 2, 2: 1, 4: 1}, "b": {9: 5}}
    assert second.relative == {"a": {7: 2}}
    assert waiting.take(4.0, [piece(4.0, {})]).end == {"a": {1: 2, 4: 1}, "b": {9: 5}}, (
        "its requests have been answered"
    )


def test_a_gateway_is_taken_for_gone_after_thirty_seconds() -> None:
    waiting = Waiting()
    waiting.take(0.0, [piece(0.0, {1: 1}), piece(0.0, {1: 1}, "h")])
    last = waiting.take(30.0, [piece(30.0, {1: 1}, "h")])
    assert last.end == {"a": {1: 2}}
    after = waiting.take(30.5, [])
    assert after.begin == {"a": {1: 2}} and after.end == {"a": {1: 1}}
    assert after.relative == {}
    waiting.take(60.5, [])
    assert waiting.total() == {}


def test_a_slice_without_load_adjusted_times_only_shows_that_time_has_passed() -> None:
    waiting = Waiting()
    waiting.update(piece(0.0, {1: 1}))
    waiting.update(Slice("g", 2.0, 2.0, "s", "a", 5, 0))
    assert waiting.total() == {"a": {1: 1}}
    waiting.update(Slice("h", 31.0, 2.0, "s", "a", 5, 0))
    assert waiting.total() == {}


def test_a_copy_s_requests_are_its_own() -> None:
    first = Waiting()
    first.update(piece(0.0, {1: 1}))
    copy = first.copied()
    copy.update(piece(2.0, {1: 4}))
    first.update(piece(2.0, {2: 1}, "h"))
    assert (first.total(), copy.total()) == ({"a": {1: 1, 2: 1}}, {"a": {1: 4}})
    assert copy.copied().total() == {"a": {1: 4}}
