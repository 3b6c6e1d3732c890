"""Protects sizing on random readings and on fleets in virtual time: always within bounds, never down on what is missing
or stale, never up while pods cannot be had, no flaps under noise, up before the queue is felt, down after a burst."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.virtual.fleet import Replica, VirtualFleet

from pagefleet_operator.domain.scaling.autoscale import size
from pagefleet_operator.domain.scaling.load import Totals, remember
from pagefleet_operator.domain.spec.scaling import Policy, Scaling
from pagefleet_operator.domain.spec.schema.targets import Targets
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad
from pagefleet_operator.domain.status.status import ScalingRecord

TRACES = int(os.environ.get("PAGEFLEET_AUTOSCALE_TRACES", "300"))
COUNT, RATE = st.integers(0, 200), st.floats(0, 1e4)
POLICIES = st.lists(
    st.builds(Policy, st.floats(1, 1800), st.integers(1, 5), st.none())
    | st.builds(Policy, st.floats(1, 1800), st.none(), st.floats(0.01, 1.0)),
    max_size=2,
).map(tuple)
SCALINGS = st.builds(
    Scaling,
    min=st.integers(0, 5),
    max=st.integers(5, 40),
    target=st.builds(
        Targets,
        queue_depth=st.floats(0.1, 50),
        free_kv_pages=st.floats(0, 0.99),
        ttft=st.none() | st.floats(0.01, 10),
    ),
    stabilization=st.none() | st.floats(0, 600),
    up_stabilization=st.sampled_from([0.0, 30.0]),
    up_policies=POLICIES,
    down_policies=POLICIES,
    tolerance=st.floats(0, 0.5),
    headroom=st.sampled_from([0.0, 0.0, 0.5, 1e13]),
    startup=st.sampled_from([60.0, 60.0, 1200.0]),
    idle_to_zero=st.none() | st.floats(0, 600),
)
LOADS = st.none() | st.builds(
    ServiceLoad,
    age=st.sampled_from([2.0, 4.0, 31.0, float("inf")]),
    held=st.sampled_from([0, 0, 1, 300]),
    arrivals=st.lists(st.sampled_from([0.0, 0.1, 3.0, 500.0]), max_size=40).map(tuple),
    ttft=st.none() | st.floats(0, 60),
)


@st.composite
def readings(draw: st.DrawFn) -> tuple[float, Totals, ServiceLoad | None]:
    """Seconds since the reading before, and what is read: nothing needs to hang together."""
    serving = draw(st.integers(0, 40))
    fresh = draw(st.sampled_from([serving, serving, serving, serving // 2, 0]))
    total = draw(st.integers(0, 5000)) * fresh
    latest = Sample(
        0.0, serving, fresh, EngineLoad(
            running=draw(COUNT) * bool(fresh), waiting=draw(COUNT) * bool(fresh), waiting_tokens=0,
            kv_pages_total=total, kv_pages_free=total - draw(st.integers(0, total)),
            preemptions=draw(st.sampled_from([0.0, 0.5])), tokens=draw(st.none() | RATE.map(lambda rate: rate * bool(fresh))),
        ),
    )  # fmt: skip
    stuck = draw(st.sampled_from([0, 0, 0, 2]))
    totals = Totals(latest, stuck, stuck, "no node fits" if stuck else "", slots=draw(st.none() | st.integers(1, 256)))
    return draw(st.sampled_from([1.0, 5.0, 5.0, 60.0, 900.0, -3600.0])), totals, draw(LOADS)


@settings(max_examples=TRACES, suppress_health_check=[HealthCheck.too_slow])
@given(SCALINGS, st.lists(readings(), min_size=1, max_size=25))
def test_any_readings_stay_within_bounds(
    scaling: Scaling, trace: list[tuple[float, Totals, ServiceLoad | None]]
) -> None:
    now, desired, record, history = 1e9, None, ScalingRecord("a"), ()
    for passed, read, load in trace:
        now += passed
        totals = replace(read, latest=replace(read.latest, time=now), history=history)
        answer = size(totals, load, desired, record, scaling, now)
        before = max(1, scaling.min) if desired is None else desired
        zero = answer.replicas == 0 and scaling.idle_to_zero is not None
        assert zero or max(1, scaling.min) <= answer.replicas <= scaling.max
        assert bool(answer.message) == (answer.replicas != before)
        if answer.replicas < before:
            assert totals.latest.serving == totals.latest.fresh > 0, "down without every reading"
            assert load is not None
            assert load.age <= 30, "down on stale arrivals"
            assert zero or totals.latest.serving >= answer.replicas, "down to more than serve"
        if answer.replicas > before > 0:
            assert not read.refused, "up while pods cannot be had"
        again = size(totals, load, answer.replicas, answer.record, scaling, now)
        assert len(again.record.steps) <= 30
        desired, record = answer.replicas, answer.record
        history = remember(history, totals.latest)
    assert all(a.time < b.time for a, b in pairwise(history))


def warm(rate: Callable[[float], float], replicas: int, scaling: Scaling, seed: int = 1) -> VirtualFleet:
    fleet = VirtualFleet(rate, scaling, seed=seed)
    fleet.replicas = [Replica(f"first-{i}", fleet.now, fleet.now) for i in range(replicas)]
    fleet.desired = replicas
    return fleet


def noise(mean: float, every: float, seed: int) -> Callable[[float], float]:
    source = random.Random(seed)
    rates = [mean * (1 + 0.1 * source.uniform(-1, 1)) for _ in range(2000)]
    return lambda at: rates[int(at // every)]


@pytest.mark.parametrize(
    ("mean", "every", "headroom"),
    [
        (12.0, 10.0, 0.0),
        (12.0, 60.0, 0.0),
        (12.0, 60.0, 1.0),
        (40.0, 10.0, 0.0),
        (40.0, 300.0, 0.0),
        (40.0, 300.0, 1.0),
        (100.0, 60.0, 0.0),
    ],
)
def test_noise_of_ten_percent_makes_no_flaps(mean: float, every: float, headroom: float) -> None:
    fleet = warm(noise(mean, every, 3), round(mean / 2.5), Scaling(1, 200, headroom=headroom))
    fleet.run(5400)
    settled = [change for change in fleet.changes if change[0] > 600]
    flaps = [
        (one, two) for one, two in pairwise(settled) if two[2] > two[1] and one[2] < one[1] and two[0] - one[0] < 600
    ]
    assert not flaps
    assert fleet.met / fleet.total > 0.99


def test_a_step_is_carried_one_start_up_time_later() -> None:
    fleet = warm(lambda at: 4.0 if at < 900 else 20.0, 2, Scaling(1, 40))
    fleet.run(900 + fleet.startup + 30)
    met, total = fleet.met, fleet.total
    first = next(change for change in fleet.changes if change[0] > 900)
    assert first[0] <= 920, "the step is seen within two decisions after its arrivals are counted"
    fleet.run(60)
    assert not fleet.held
    met, total = fleet.met, fleet.total
    fleet.run(600)
    assert (fleet.met - met) / (fleet.total - total) > 0.97
    assert fleet.desired is not None
    assert 6 <= fleet.desired <= 9, (
        "20 requests/s of 203 tokens at 690 tokens/s a replica are 5.9, with room for chance"
    )


def test_a_bursts_replicas_go_when_it_is_over() -> None:
    fleet = warm(lambda at: 25.0 if 600 <= at < 780 else 4.0, 2, Scaling(1, 40))
    fleet.run(780)
    assert fleet.desired is not None
    high = fleet.desired
    assert high >= 7
    fleet.run(fleet.startup + 150)
    assert fleet.desired <= 3


def test_a_given_window_is_waited_for_and_no_longer() -> None:
    fleet = warm(lambda at: 12.0 if at < 600 else 8.0, 6, Scaling(1, 40, stabilization=120.0))
    fleet.run(600)
    held = fleet.desired
    fleet.run(100)
    assert fleet.desired == held
    fleet.run(120)
    assert fleet.desired is not None
    assert held is not None
    assert fleet.desired < held, "a drop of a third, which the long window would have waited for 15 minutes"


def test_missing_readings_never_shrink_a_fleet() -> None:
    for blind in ("engines_silent", "gateways_silent"):
        fleet = warm(lambda at: 8.0 if at < 600 else 0.1, 4, Scaling(1, 40))
        fleet.run(590)
        held = fleet.desired
        setattr(fleet, blind, True)
        fleet.run(2400)
        assert fleet.desired == held
        assert fleet.recommendations[-1].limit == "SignalsMissing"
        setattr(fleet, blind, False)
        fleet.run(2400)
        assert fleet.desired == 1, "and shrinks once they are back"


def test_no_thrash_while_nodes_are_full() -> None:
    fleet = warm(lambda at: 20.0, 2, Scaling(1, 40))
    fleet.max_pods = 4
    fleet.run(1200)
    assert fleet.desired is not None
    stuck = fleet.desired - 4
    assert 0 < stuck <= 4, "asks once, and not again while that cannot be had"
    assert len(fleet.changes) <= 2
    assert fleet.recommendations[-1].limit == "Refused"


def test_an_idle_fleet_sleeps_and_the_first_request_wakes_it() -> None:
    fleet = warm(lambda at: 2.0 if at < 300 or at >= 2000 else 0.0, 1, Scaling(0, 4, idle_to_zero=300.0))
    fleet.run(1990)
    assert fleet.desired == 0
    slept = fleet.changes[-1]
    assert 600 <= slept[0] <= 680, "300 s after the last request"
    fleet.run(60)
    woken = fleet.changes[len([change for change in fleet.changes if change[0] <= slept[0]])]
    assert woken[0] <= 2000 + 10
    fleet.run(60)
    assert len(fleet.serving) >= 1
    assert not fleet.held


def test_a_larger_fleet_needs_less_room_for_chance() -> None:
    """The reason for square-root staffing: the share of replicas above the bare need falls with the fleet's size."""
    spare = []
    for mean in (10.0, 160.0):
        fleet = warm(lambda at, mean=mean: mean, round(mean / 2.5), Scaling(1, 200))  # type: ignore[misc]
        fleet.run(3600)
        assert fleet.desired is not None
        assert fleet.met / fleet.total > 0.99
        spare.append(fleet.desired / (mean * 203 / 690))
    assert spare[1] < spare[0]
    assert spare[1] < 1.25
