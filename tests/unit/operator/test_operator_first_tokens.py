"""Protects fleets from a target.ttft that no number of replicas reaches: it is found out, said, and then holds nothing at the maximum. A
target that more replicas do reach is kept as ever. The fleet is in virtual time: first tokens take a time of their own and more with
each request in flight on a replica."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from support.scaled_service import Service

from pagefleet_operator.domain.scaling.autoscale import AT_MAXIMUM, UNREACHABLE, Recommendation, size
from pagefleet_operator.domain.scaling.first_tokens import FACTOR, learned, unreachable, within_reach
from pagefleet_operator.domain.scaling.load import Totals
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.spec.schema.targets import Targets
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad
from pagefleet_operator.domain.status.status import ScalingRecord

STEP, STARTUP, SLOTS = 5.0, 60.0, 64


class Fleet:
    """Decides every few seconds. `first` is the p95 of first tokens by the requests in flight on a replica."""

    def __init__(self, first: Callable[[float], float], running: int, most: int = 40, target: float = 1.0) -> None:
        self._first, self.running, self._random = first, running, random.Random(7)
        self.scaling = Scaling(min=1, max=most, target=Targets(ttft=target))
        self.now, self.desired, self.serving = 0.0, 2, 2
        self.record, self._history = ScalingRecord("a", startup=STARTUP), list[Sample]()
        self._ready: list[tuple[float, int]] = []
        self.limits: list[str] = []

    def step(self) -> Recommendation:
        self.now += STEP
        while self._ready and self._ready[0][0] <= self.now:
            self.serving += self._ready.pop(0)[1]
        load = EngineLoad(
            running=self.running, slots=SLOTS, kv_pages_total=10_000 * self.serving,
            kv_pages_free=9_000 * self.serving, tokens=40.0 * self.running,
        )  # fmt: skip
        latest = Sample(self.now, self.serving, self.serving, load, unqueued=self.serving)
        noise = self._random.uniform(0.93, 1.07)
        gateways = ServiceLoad(2.0, arrivals=(2.0,) * 360, ttft=noise * self._first(self.running / self.serving))
        totals = Totals(latest, slots=SLOTS, history=tuple(self._history))
        found = size(totals, gateways, self.desired, self.record, self.scaling, self.now)
        self._history = [*self._history, latest][-360:]
        if found.replicas > self.desired:
            self._ready.append((self.now + STARTUP, found.replicas - self.desired))
        elif found.replicas < self.desired:
            self.serving = max(1, self.serving - (self.desired - found.replicas))
        self.desired, self.record = found.replicas, found.record
        self.limits.append(found.limit)
        return found

    def run(self, seconds: float) -> list[int]:
        """The replicas after each decision."""
        return [self.step().replicas for _ in range(round(seconds / STEP))]


def changes(replicas: list[int]) -> int:
    return sum(one != other for one, other in pairwise(replicas))


@pytest.mark.parametrize("slope", [0.0, 0.02])
@pytest.mark.parametrize("floor", [1.3, 3.0])
def test_a_target_below_the_time_of_an_idle_replica_holds_no_fleet_at_its_maximum(floor: float, slope: float) -> None:
    fleet = Fleet(lambda load: floor + slope * load, running=20)
    replicas = fleet.run(3 * 3600.0)
    assert max(replicas) < 20, "it is found out on the way"
    assert replicas[-1] <= 3 and fleet.limits[-1] == UNREACHABLE
    assert changes(replicas) <= 6, "it shrinks once, and does not try again and again"


def test_a_target_that_replicas_reach_is_kept() -> None:
    fleet = Fleet(lambda load: 0.4 + 0.1 * load, running=40)
    replicas = fleet.run(3 * 3600.0)
    assert 6 <= replicas[-1] <= 14 and 0.4 + 0.1 * 40 / replicas[-1] <= 1.1
    assert changes(replicas) <= 8, "no replica that was added for first tokens goes before anybody saw what it does"
    assert UNREACHABLE not in fleet.limits


def test_at_the_maximum_nothing_is_known_before_the_load_was_smaller() -> None:
    fleet = Fleet(lambda _: 1.3, running=20, most=2)
    assert fleet.run(1800.0)[-1] == 2 and fleet.limits[-1] == AT_MAXIMUM
    fleet.running = 10
    fleet.run(1800.0)
    assert fleet.limits[-1] == UNREACHABLE


def test_shorter_prompts_bring_the_target_back() -> None:
    fleet = Fleet(lambda _: 1.3, running=20)
    fleet.run(3600.0)
    assert fleet.record.floor is not None
    fleet._first = lambda load: 0.3 + 0.05 * load
    replicas = fleet.run(8 * 3600.0)
    assert fleet.record.floor is None and UNREACHABLE not in fleet.limits[-100:]
    assert 0.3 + 0.05 * 20 / replicas[-1] <= 1.0


def totals(running: int, serving: int = 4) -> Totals:
    return Totals(Sample(0.0, serving, serving, EngineLoad(running=running)))


def test_the_floor_is_where_the_line_meets_no_load() -> None:
    def after(record: ScalingRecord, running: int, first: float | None, target: float | None = 1.0) -> ScalingRecord:
        return learned(record, totals(running), first, target, 100.0)

    late = after(ScalingRecord("a"), 40, 3.0)
    assert (late.late_load, late.late_seconds, late.floor) == (10.0, 3.0, None)
    assert after(late, 30, 2.5) == late, "the loads are too much alike"
    assert after(late, 20, 2.5).floor == 2.0
    assert after(late, 20, 2.0).floor is None, "the line says 1.0"
    assert after(late, 20, 3.5).floor == 3.5
    assert after(late, 20, 0.81) == late, "nearly late"
    assert after(late, 20, 0.8) == ScalingRecord("a")
    assert after(late, 64, 3.1).late_load == 16.0
    assert after(ScalingRecord("a"), 2, 1.5).floor == 1.5, "alone"
    for unknown in ((40, None, 1.0), (0, 3.0, 1.0), (40, 3.0, None)):
        assert after(ScalingRecord("a"), *unknown) == ScalingRecord("a")


@pytest.mark.parametrize(
    ("now", "first", "kept"), [(100.0, 2.0, True), (100.0, 1.7, False), (-5.0, 2.0, False), (6 * 3600.0, 2.0, False)]
)
def test_a_floor_holds_for_some_hours_and_until_first_tokens_are_below_it(now: float, first: float, kept: bool) -> None:
    record = ScalingRecord("a", late_load=10.0, late_seconds=3.0, floor=2.0, floor_since=0.0)
    assert (learned(record, totals(40), first, 1.0, now).floor == 2.0) is kept


def test_a_target_above_the_floor_is_the_spec_s() -> None:
    scaling = Scaling(1, 9, target=Targets(ttft=1.0))
    record = ScalingRecord("a", floor=2.0)
    assert within_reach(scaling, record).target.ttft == FACTOR * 2.0
    eased = replace(scaling, target=Targets(ttft=4.0))
    assert within_reach(eased, record) == eased and not unreachable(eased, record)
    assert "about 2 s" in unreachable(scaling, record) and "target is 1 s" in unreachable(scaling, record)


def test_a_condition_and_one_event_say_so() -> None:
    service = Service(scaling={"min": 1, "max": 4, "target": {"ttft": {"p95": "1s"}}})
    service.run(3)
    service.load, service.running = ServiceLoad(2.0, arrivals=(1.0,) * 360, ttft=1.5), 12
    events = list(service.run(20).events)
    service.running = 4
    for _ in range(60):
        events += service.run().events
    assert service.condition("Scaling")[1] == UNREACHABLE
    assert "about 1.5 s on a replica" in service.condition("Scaling")[2]
    assert [one.type for one in events if one.reason == UNREACHABLE] == ["Warning"]
