"""Protects what is retained for the watch of the stable revision: of the gateways' slices while no rollout is judged, and of a revision's
latencies when it is replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagefleet_operator.domain.analysis.watching.baseline import record_baseline
from pagefleet_operator.domain.analysis.watching.thinning import thinned
from pagefleet_operator.domain.spec.rollout import Guard, LatencyGuard
from pagefleet_operator.domain.status.observation import LoadCounts, Observation, Slice
from pagefleet_operator.domain.status.status import BaselineRecord, Status

LOADED = Slice("g", 0.0, 2.0, "a", "", 0, 0, load={"0-63": LoadCounts({1: 1})})
RUNNING = Slice("g", 0.0, 2.0, "a", "0-63", 7, 1, in_flight={"e2e": {3: 4, 9: 1}, "ttft": {3: 2}})
IDLE = Slice("g", 0.0, 2.0, "a", "0-63", 7, 1)


def at(start: float, *pieces: Slice) -> list[Slice]:
    return [replace(piece, start=start) for piece in pieces]


@pytest.mark.parametrize("latest", [1000.0, 1009.0])
def test_the_last_two_minutes_stay_as_they_are_and_of_six_minutes_before_what_the_watch_uses(latest: float) -> None:
    """The newest slice begins at 1000: from 880 on all stay, and from 520 on those by load and how many requests ran."""
    oldest = latest - 480.0
    slices = [
        *at(1000.0, IDLE), *at(880.0, IDLE, RUNNING), *at(878.0, LOADED, RUNNING, IDLE),
        *at(oldest, LOADED), *at(oldest - 0.5, LOADED, RUNNING),
    ]  # fmt: skip
    ran = Slice("g", 878.0, 2.0, "a", "0-63", 0, 0, in_flight={"e2e": {0: 3}})
    assert thinned(slices, latest) == [
        *at(oldest, LOADED), *at(878.0, LOADED), ran, *at(880.0, IDLE, RUNNING), *at(1000.0, IDLE)
    ]  # fmt: skip


def test_a_round_of_ten_seconds_begins_the_part_that_stays() -> None:
    assert thinned(at(880.0, IDLE), 1010.0) == []
    assert thinned(at(880.0, IDLE), 1009.9) == at(880.0, IDLE)


def test_requests_that_ran_are_added_up_by_gateway_revision_and_stratum() -> None:
    other, alone = replace(RUNNING, instance="h"), replace(RUNNING, in_flight={"e2e": {1: 1}})
    waiting = replace(RUNNING, stratum="b", in_flight={"ttft": {1: 1}})
    found = thinned(at(600.0, RUNNING, alone, other, waiting), 1000.0)
    assert [(one.instance, one.stratum, one.in_flight) for one in found] == [
        ("g", "0-63", {"e2e": {0: 4}}),
        ("h", "0-63", {"e2e": {0: 3}}),
    ]


def test_the_replaced_revision_s_latencies_are_recorded_by_signal_and_stratum_in_120_buckets() -> None:
    def measured(revision: str, stratum: str, **latency: dict[int, int]) -> Slice:
        return Slice("g", 0.0, 2.0, revision, stratum, 1, 0, latency=latency)

    slices = (
        measured("a", "b", ttft={5: 1}, e2e={9: 1}), measured("a", "a", ttft={6: 2}), measured("a", "b", ttft={5: 1}),
        measured("c", "b", ttft={5: 9}), measured("a", "none"),
    )  # fmt: skip
    wide = (
        measured("a", "b", ttft=dict.fromkeys(range(1, 121), 1)),
        measured("a", "c", ttft=dict.fromkeys(range(1, 122), 1)),
    )
    observation = Observation("team", "chat", "uid", 1, {}, Status(), slices=slices)
    entries = tuple(LatencyGuard("ttft", quantile, 0.2, 0.99, 50) for quantile in (0.5, 0.95))
    guard = Guard(entries, None, 5, False, 600.0)
    expected = (
        BaselineRecord("a", "ttft", "a", {"6": 2}, "gateway"),
        BaselineRecord("a", "ttft", "b", {"5": 2}, "gateway"),
    )
    assert record_baseline(observation, guard, "a") == expected
    found = record_baseline(replace(observation, slices=wide), guard, "a")
    assert [len(one.histogram) for one in found] == [120, 61]
