"""Protects the claims of bench/autoscaling.py: equal attainment is interpolated, a worse ratio or a lower attainment is a miss, and a
fault befalls the trace that is named after it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))

from scalerbench.cases import CASES, trace
from scalerbench.frontier import Point, at, front, near, thinned
from scalerbench.judging import judge, rows, verdict
from scalerbench.running import HEADROOMS, OURS, Job, Result

from pagefleet_simulator.fleet.faults import Hang, Outage

DATA = Path(__file__).resolve().parents[2] / "data" / "azure-llm-synthetic.csv"


def job(seed: int, family: str = OURS, index: int = 0, case: str = "burst") -> Job:
    return Job(case, seed, family, index, True, None)


def result(attainment: float, hours: float, flaps: int = 0) -> Result:
    return Result(attainment, hours, 3, flaps, 0.0)


def test_a_front_leaves_out_what_another_setting_beats_in_both() -> None:
    points = [Point(0.9, 10, "a"), Point(0.95, 9, "b"), Point(0.99, 20, "c"), Point(0.98, 21, "d")]
    assert [one.label for one in front(points)] == ["b", "c"]


def test_between_two_settings_the_hours_follow_the_logarithm_of_what_is_missed() -> None:
    kept = [Point(0.9, 10, "a"), Point(0.99, 20, "b")]
    half = at(kept, 1 - 0.1**1.5)
    assert half is not None and half.hours == pytest.approx(15.0) and half.label == "a .. b"
    assert at(kept, 0.999) is None
    lowest = at(kept, 0.5)
    assert lowest is not None and lowest.hours == 10


def test_settings_next_to_an_attainment_and_the_best_are_kept() -> None:
    kept = [Point(0.9 + i / 100, 10 + i, str(i)) for i in range(8)]
    assert [one.label for one in near(kept, 0.935, 1)] == ["3", "4", "7"]
    assert [one.label for one in thinned(kept, 3)] == ["0", "4", "7"]


def test_only_settings_with_all_seeds_are_compared_and_medians_decide() -> None:
    measured = {
        **{job(seed): result(attainment, 10.0) for seed, attainment in enumerate((0.96, 0.934, 0.97))},
        **{job(seed, "kpa", 1): result(0.96, 20.0) for seed in range(3)},
        job(0, "hpa", 2): result(0.99, 1.0),
    }
    found = verdict("burst", rows(measured))
    assert (found.mine.attainment, found.mine.least, found.ratio, found.peer.label) == (0.96, 0.934, 0.5, "kpa 1")


def test_the_best_of_those_that_are_not_told_what_a_replica_carries_is_shown_beside() -> None:
    measured = {
        job(1): result(0.96, 9.0),
        job(1, "tokenscale"): result(0.97, 10.0),
        job(1, "hpa", 3): result(0.97, 12.0),
    }
    found = verdict("burst", rows(measured))
    assert found.peer.label == "tokenscale 0" and found.untold is not None and found.untold.label == "hpa 3"


@pytest.mark.parametrize(("hours", "holds"), [(10.2, True), (10.3, False)])
def test_more_than_two_percent_more_hours_is_a_miss(hours: float, holds: bool) -> None:
    found = verdict("burst", rows({job(1): result(0.96, hours), job(1, "kpa"): result(0.96, 10.0)}))
    (_, worse), (_, middle), (_, attained) = judge([found])
    assert (worse, middle, attained) == (holds, False, True)


@pytest.mark.parametrize(("case", "mine", "peer", "holds"), [
    ("flash", 0.985, 0.991, False), ("flash", 0.991, 0.999, True), ("flash", 0.5, 0.98, None),
    ("burst", 0.949, 0.98, False), ("burst", 0.951, 0.98, True),
])  # fmt: skip
def test_attainment_is_asked_for_where_others_reach_it(case: str, mine: float, peer: float, holds: bool | None) -> None:
    found = verdict(case, rows({job(1): result(mine, 5.0), job(1, "kpa"): result(peer, 10.0)}))
    attained = [claim for text, claim in judge([found]) if ": attains" in text]
    assert attained == ([] if holds is None else [holds])


@pytest.mark.parametrize(("hours", "holds"), [(20.4, True), (20.5, False)])
def test_headroom_may_attain_what_the_default_does_not_for_as_many_hours_as_others(hours: float, holds: bool) -> None:
    measured = {
        job(1): result(0.96, 5.0),
        job(1, index=1): result(0.98, 6.0),
        job(1, index=2): result(0.995, hours),
        job(1, index=3): result(0.999, 30.0),
        job(1, "kpa"): result(0.96, 10.0),
        job(1, "kpa", 1): result(0.995, 20.0),
    }
    text, held = judge([verdict("burst", rows(measured))])[-1]
    assert held == holds and "headroom of 75% 99.50%" in text
    assert job(1, index=2).scaler().scaling.headroom == HEADROOMS[2] == 0.75


def test_no_headroom_that_attains_it_is_a_miss() -> None:
    measured = {job(1): result(0.96, 5.0), job(1, index=1): result(0.98, 6.0), job(1, "kpa"): result(0.995, 20.0)}
    text, held = judge([verdict("burst", rows(measured))])[-1]
    assert not held and "no headroom up to 500%" in text


def test_faults_are_in_their_cases_and_a_published_trace_needs_the_peak_of_the_fleet() -> None:
    assert CASES["outage"].faults(1000.0) == (Outage(70.0, 370.0),)
    assert CASES["hung"].faults(1000.0) == (Hang(400.0, 1600.0),)
    assert CASES["slow-start"].profile.startup.load == 1200.0
    made = trace("published", 1, True, DATA)
    assert [one.at for one in made.arrivals] == sorted(one.at for one in made.arrivals)
    with pytest.raises(ValueError, match="--published"):
        trace("published", 1, True, None)
