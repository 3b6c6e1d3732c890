"""Protects what a long start asks for: replicas for what may arrive until one that is started now is ready, no more than the last hour and
the trend lead to expect, and nothing where a start is short."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from support.virtual.fleet import Replica, VirtualFleet

from pagefleet_operator.domain.scaling import trends
from pagefleet_operator.domain.scaling.trends import reach
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.status.sample import ServiceLoad

START, HOUR = 1200.0, 360  # seconds, and steps of ten seconds


def arriving(*parts: np.ndarray) -> ServiceLoad:
    return ServiceLoad(age=2.0, arrivals=tuple(np.concatenate(parts).tolist()))


def level(rate: float, steps: int) -> np.ndarray:
    return np.full(steps, rate)


@pytest.mark.parametrize(("startup", "times"), [(60.0, 0.0), (300.0, 0.0), (750.0, 2.0), (1200.0, 3.0), (3600.0, 3.0)])
def test_a_longer_start_reaches_further(startup: float, times: float) -> None:
    assert reach(arriving(level(0.0, 240), level(4.0, 120)), startup) == pytest.approx(4.0 * times)


def test_an_hour_without_a_rise_needs_nothing_to_spare() -> None:
    assert reach(arriving(level(4.0, HOUR)), START) == pytest.approx(4.0)
    assert reach(arriving(level(4.0, 120)), START) == pytest.approx(12.0), "nobody knows what an hour brings"


def test_what_came_within_the_hour_may_come_again() -> None:
    fallen = arriving(level(4.0, 30), level(10.0, 30), level(4.0, HOUR - 60))
    assert reach(fallen, START) == pytest.approx(10.0)
    assert reach(arriving(level(4.0, 30), level(90.0, 30), level(4.0, HOUR - 60)), START) == pytest.approx(12.0)


def test_a_rise_beyond_the_hour_is_expected_by_its_trend() -> None:
    """From 4 to 8 in 20 minutes: 12 one start later, and a little more, because a trend has an error."""
    rising = arriving(level(4.0, HOUR - 120), np.linspace(4.0, 8.0, 120))
    assert 11.0 <= reach(rising, START) <= 13.0


def test_a_fall_leaves_less_to_rise() -> None:
    level_now = arriving(level(12.0, HOUR - 120), level(6.0, 120))
    falling = arriving(level(12.0, HOUR - 120), np.linspace(12.0, 5.5, 120))
    assert reach(level_now, START) == pytest.approx(12.0)
    assert 5.5 <= reach(falling, START) < 7.0


def test_nothing_is_known_without_the_gateways() -> None:
    assert reach(None, START) == 0.0
    assert reach(ServiceLoad(age=60.0, arrivals=(4.0,) * HOUR), START) == 0.0
    assert reach(ServiceLoad(age=2.0), START) == 0.0
    assert reach(arriving(level(0.0, HOUR)), START) == 0.0


def fleet_of(rate: Callable[[float], float], replicas: int, most: int = 20) -> VirtualFleet:
    fleet = VirtualFleet(rate, Scaling(1, most, startup=START), seed=1, startup=START)
    fleet.replicas = [Replica(f"first-{i}", fleet.now, fleet.now) for i in range(replicas)]
    fleet.desired = replicas
    return fleet


def wave(at: float) -> float:
    """From 3 requests a second to 15 and back, in two hours: 4.4 replicas at the top."""
    return float(3.0 + 12.0 * np.sin(np.pi * at / 7200) ** 2)


def attained(replicas: int) -> float:
    fleet = fleet_of(wave, replicas)
    fleet.run(5400)
    return fleet.met / fleet.total


def test_a_wave_does_not_outrun_replicas_that_start_for_20_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    with_spare = attained(2)
    monkeypatch.setattr(trends, "reach", lambda load, startup: 0.0)
    without = attained(2)
    assert with_spare > 0.97
    assert without < with_spare - 0.1


def test_a_long_start_is_prepared_for_within_two_minutes_of_the_first_requests() -> None:
    """A curve is learned after four minutes, and each minute without an order is a minute that the wave outruns the replicas."""
    fleet = fleet_of(wave, 2)
    fleet.run(120)
    assert fleet.desired is not None and fleet.desired >= 3


def test_a_few_requests_order_nothing_before_a_curve_is_known() -> None:
    fleet = fleet_of(lambda at: 0.2, 1)
    fleet.run(240)
    assert fleet.desired == 1


def test_a_maximum_is_no_obstacle_to_spare_replicas() -> None:
    """Three times the load needs more than the maximum; the load itself does not, so no status says that the maximum is reached."""
    fleet = fleet_of(lambda at: 8.0, 3, most=4)
    fleet.run(1800)
    assert fleet.desired == 4
    assert {one.limit for one in fleet.recommendations[120:]} == {""}, "from the tenth minute on"


def test_a_level_load_gives_its_spare_replicas_back_after_an_hour() -> None:
    fleet = fleet_of(lambda at: 8.0, 3)
    fleet.run(1800)
    assert fleet.desired is not None
    held = fleet.desired
    fleet.run(3600)
    assert held >= 6
    assert fleet.desired <= 5
    assert fleet.met / fleet.total > 0.99
    assert not [
        (one, two)
        for one, two in pairwise(fleet.changes)
        if one[2] < one[1] and two[2] > two[1] and two[0] - one[0] < 600
    ], "and takes none of them back at once"
