"""Protects `scaling.headroom`: replicas are kept for so much more than what usually arrives, a burst is met by them and pays for no second
headroom, and engines that report no tokens have it as well."""

from __future__ import annotations

import numpy as np
import pytest
from support.virtual.fleet import Replica, VirtualFleet

from pagefleet_operator.domain.scaling.inflow import seconds_each
from pagefleet_operator.domain.scaling.trends import usual
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad

HOUR = 360  # steps of ten seconds


def arriving(*parts: np.ndarray, age: float = 2.0) -> ServiceLoad:
    return ServiceLoad(age=age, arrivals=tuple(np.concatenate(parts).tolist()))


def level(rate: float, steps: int) -> np.ndarray:
    return np.full(steps, rate)


def test_a_burst_does_not_move_what_is_usual() -> None:
    assert usual(arriving(level(4.0, HOUR))) == pytest.approx(4.0)
    assert usual(arriving(level(4.0, HOUR - 120), level(40.0, 120))) == pytest.approx(4.0)
    assert usual(arriving(level(4.0, 60), level(40.0, HOUR - 60))) == pytest.approx(40.0), "it lasts for fifty minutes"


def test_a_fall_is_usual_once_it_has_lasted_for_a_quarter_of_an_hour() -> None:
    assert usual(arriving(level(8.0, HOUR - 60), level(2.0, 60))) == pytest.approx(8.0)
    assert usual(arriving(level(8.0, HOUR - 102), level(2.0, 102))) == pytest.approx(2.0)


def test_the_time_before_the_first_request_is_not_known() -> None:
    assert usual(arriving(level(0.0, HOUR - 12), level(6.0, 12))) == pytest.approx(6.0)
    assert usual(arriving(level(0.0, HOUR))) == usual(ServiceLoad(age=2.0)) == usual(None) == 0.0
    assert usual(arriving(level(4.0, HOUR), age=60.0)) == 0.0


def test_the_time_in_the_replicas_is_those_there_over_those_that_arrive() -> None:
    past = [Sample(1000.0 + 5 * i, 2, 2, EngineLoad(running=12, waiting=3)) for i in range(121)]
    assert seconds_each(arriving(level(1.0, 240), level(3.0, 120)), past) == pytest.approx(5.0, rel=0.05)
    assert seconds_each(arriving(level(0.01, HOUR)), past) == 0.0
    half = [Sample(one.time, 2, 1, one.load) for one in past]
    assert seconds_each(arriving(level(3.0, HOUR)), half) == pytest.approx(10.0, rel=0.05), "one of two was read"


def crowd(at: float) -> float:
    """Four requests a second for half an hour, then twelve for five minutes: one replica carries about 3.7 a second."""
    return 12.0 if 1800 <= at < 2100 else 4.0


def fleet_of(headroom: float, *, counts_tokens: bool = True, most: int = 20) -> VirtualFleet:
    fleet = VirtualFleet(crowd, Scaling(1, most, headroom=headroom), seed=3, counts_tokens=counts_tokens)
    fleet.replicas = [Replica(f"first-{i}", fleet.now, fleet.now) for i in range(2)]
    fleet.desired = 2
    return fleet


def met(fleet: VirtualFleet) -> float:
    """The share of the requests of the crowd whose first token came in time."""
    fleet.run(1800)
    before = fleet.met, fleet.total
    fleet.run(300)
    return (fleet.met - before[0]) / (fleet.total - before[1])


@pytest.mark.parametrize("counts_tokens", [True, False])
def test_a_crowd_within_the_headroom_is_met_by_the_replicas_that_are_there(counts_tokens: bool) -> None:
    without, with_headroom = (met(fleet_of(share, counts_tokens=counts_tokens)) for share in (0.0, 2.0))
    assert with_headroom > 0.97
    assert without < with_headroom - 0.1


def test_a_crowd_pays_for_no_second_headroom() -> None:
    """Twelve requests a second need four replicas or five. Three times that would be twelve and more."""
    fleet = fleet_of(2.0)
    fleet.run(1800)
    before = fleet.desired
    fleet.run(300)
    assert before is not None and fleet.desired is not None
    assert before <= fleet.desired <= before + 2


def test_headroom_is_named_as_the_reason() -> None:
    fleet = fleet_of(1.0)
    fleet.run(600)
    assert any("headroom of 100% above the usual " in message for *_, message in fleet.changes)


def test_a_maximum_cuts_the_headroom_and_is_not_reported_as_too_small() -> None:
    fleet = fleet_of(9.0, most=3)
    fleet.run(1700)
    assert fleet.desired == 3
    assert {one.limit for one in fleet.recommendations[60:]} == {""}
