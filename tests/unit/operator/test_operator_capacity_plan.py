"""Protects the comparison of `spec.capacityPlan` with what is measured: a finding takes two looks and does not come and go, and the condition
names the number, the revision, and what it means in replicas and money."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from support.sample_service import sample
from support.virtual.planned import HALF_HOUR, NOW, PAGE, PAGES, Service, load, seen

from pagefleet_operator.domain.base.revision import revision_hash, snapshot
from pagefleet_operator.domain.capacity_plan import estimates, report
from pagefleet_operator.domain.capacity_plan.consequence import Consequence, consequence
from pagefleet_operator.domain.capacity_plan.record import LOOK_SECONDS, Subject, record
from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.spec.capacity_plan import Assumption, CapacityPlan
from pagefleet_operator.domain.spec.parse import Spec, SpecErrors, parse
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.observation import Observation, PodReading, RevisionReading
from pagefleet_operator.domain.status.plan import Event
from pagefleet_operator.domain.status.records.capacity_plan import AssumptionRecord, CapacityPlanRecord, Finding
from pagefleet_operator.domain.status.sample import Sample
from pagefleet_operator.domain.status.status import Phase, RevisionRecord, RolloutRecord, Status, Weight

RATE, OUTPUT, KV, SPEED, CACHE = Assumption
ABOVE, BELOW, HOLDS, UNKNOWN = Finding.ABOVE, Finding.BELOW, Finding.HOLDS, Finding.UNKNOWN


PLAN = CapacityPlan(0.15, {SPEED: 1429.0}, replicas=3, concurrency=50)


def looks(plan: CapacityPlan, *runs: list[Sample], before: CapacityPlanRecord | None = None) -> CapacityPlanRecord:
    """A look every LOOK_SECONDS, each at other readings."""
    now = NOW if before is None else before.written + LOOK_SECONDS
    for samples in runs:
        moved = [replace(one, time=one.time - NOW + now - 1) for one in samples]
        subject = Subject(RevisionReading("a", 2, history=tuple(moved)), 0.0, PAGE)
        before = record(plan, [subject], None, before, now)
        now += LOOK_SECONDS
    assert before is not None
    return before


def test_a_look_without_readings_does_not_count() -> None:
    (one,) = looks(PLAN, seen(50), [], seen(50)).assumptions
    assert one.finding is HOLDS
    (one,) = looks(PLAN, seen(50), seen(10), seen(50)).assumptions
    assert one.finding is UNKNOWN, "a look that leaves it open does"


def test_of_readings_at_the_same_concurrency_the_quickest_are_not_preferred() -> None:
    """An hour of readings that scatter by 9 % around 32 tokens/s."""
    service = Service(base=0.0625, slope=0.0, replicas=1, noise=0.09)
    found = estimates.throughput_at(service.samples(NOW, 3600, lambda _: 2), 2)
    assert found is not None and found.value == pytest.approx(32, rel=0.03)
    assert found.low <= 32 <= found.high


def test_a_bound_that_refutes_a_plan_is_told_as_a_bound() -> None:
    plan = replace(PLAN, planned={SPEED: 5000.0})
    found = looks(plan, seen(5), seen(5))
    ((_, status, reason, message),) = report.conditions(plan, found, "", None)
    assert (status, reason) == ("False", "WorseThanPlanned")
    assert " planned, 400 to 4,000 measured of revision a until " in message
    assert message.endswith(": at least 20% less")


def test_two_looks_in_a_row_make_a_finding_and_an_idle_time_keeps_it() -> None:
    slow, right, idle = seen(50, base=0.02), seen(50), seen(0)
    (one,) = looks(PLAN, slow).assumptions
    assert (one.finding, one.pending, one.measured) == (UNKNOWN, BELOW, None)
    twice = looks(PLAN, slow, slow)
    (one,) = twice.assumptions
    assert one.finding is BELOW
    assert one.measured == pytest.approx(Service(base=0.02).throughput(50), rel=0.05)
    (later,) = looks(PLAN, right, idle, slow, before=twice).assumptions
    assert (later.finding, later.measured) == (BELOW, one.measured), "one look says nothing, nor does an idle time"
    (later,) = looks(PLAN, right, right, before=twice).assumptions
    assert later.finding is HOLDS


def test_a_record_is_looked_at_again_after_five_minutes_and_by_its_plan() -> None:
    before = looks(PLAN, seen(50), seen(50))
    subject = Subject(RevisionReading("a", 2), 0.0, PAGE)
    assert record(PLAN, [subject], None, before, before.written + LOOK_SECONDS - 1) is before
    other = record(replace(PLAN, planned={SPEED: 2000.0}), [subject], None, before, before.written + 5)
    assert other is not None
    assert (other.written, other.assumptions) == (before.written, (AssumptionRecord(SPEED, "a", 2000.0),))
    canary = record(PLAN, [Subject(RevisionReading("b", 1)), subject], None, before, before.written + 5)
    assert canary is not None
    assert [(one.revision, one.finding) for one in canary.assumptions] == [("b", UNKNOWN), ("a", HOLDS)]
    assert record(None, [subject], None, before, NOW) is None


def test_what_measured_numbers_mean_in_replicas() -> None:
    plan = CapacityPlan(0.15, {RATE: 12.0, OUTPUT: 250.0, KV: 4096.0, SPEED: 1500.0, CACHE: 450_000.0}, 2, 35.0)
    assert consequence(plan, {}) == Consequence(2, 2)
    assert consequence(plan, {SPEED: 750.0}) == Consequence(2, 4)
    assert consequence(plan, {OUTPUT: 500.0}) == Consequence(2, 4)
    assert consequence(plan, {RATE: 6.0}) == Consequence(2, 1)
    assert consequence(plan, {KV: 8192.0}) == Consequence(2, 2), "54 of them fit, and 35 have to"
    assert consequence(plan, {KV: 3 * 8192.0}) == Consequence(2, 4), "18 fit, half of 35"
    assert consequence(replace(plan, replicas=6), {CACHE: 450_000 / 6}) == Consequence(6, 12), "planned for users"
    roomy = replace(plan, peak_throughput=2700.0)
    assert consequence(roomy, {SPEED: 1000.0}) == Consequence(2, 2), "each can generate 1800 with more requests at once"
    assert consequence(roomy, {SPEED: 700.0}) == Consequence(2, 3)


def test_without_a_rate_only_the_room_says_something_of_replicas() -> None:
    """A slower replica answers its users later, but holds as many of them."""
    users = CapacityPlan(0.15, {KV: 1000.0, SPEED: 1500.0, CACHE: 50_000.0}, 3, 50.0)
    assert consequence(users, {SPEED: 1000.0}) is None
    assert consequence(users, {KV: 2000.0, SPEED: 1000.0}) == Consequence(3, 6)
    assert consequence(replace(users, replicas=None), {KV: 2000.0}) is None


PLANNED = {
    "replicas": 3,
    "requestsPerSecond": 20,
    "perRequest": {"outputTokens": 200, "kvTokens": 800},
    "perReplica": {"concurrency": 50, "outputTokensPerSecond": 1400, "kvCacheTokens": PAGES * PAGE},
}


class World:
    """A service that is decided every five minutes; its stable revision runs as `stable`, its canary as `canary`."""

    def __init__(self, stable: Service, canary: Service | None = None) -> None:
        self.now, self.stable, self.canary, self.running = NOW, stable, canary, 50.0
        self.spec: dict[str, Any] = sample()["spec"] | {
            "scaling": {"min": 3, "max": 3},
            "cost": {"perAcceleratorHour": 2.5},
            "capacityPlan": PLANNED,
        }
        self.status = Status()
        self.events: list[Event] = []
        self.decide()
        self.first = self.status.stable
        self.status = replace(self.status, traffic=(Weight(self.first, 100),), rollout=RolloutRecord(Phase.IDLE))

    def decide(self) -> None:
        self.now += LOOK_SECONDS
        revisions, started = {}, {}
        for name, service in ((self.status.stable, self.stable), (self.status.canary, self.canary)):
            if name and service is not None:
                samples = service.samples(self.now - 5, HALF_HOUR, lambda time: self.running + 4 * math.sin(time / 60))
                pods = tuple(
                    PodReading(f"{name}-{number}", True, False, NOW, NOW, load=one, load_age=1.0)
                    for number, one in enumerate(
                        [replace(samples[-1].load, kv_pages_total=PAGES, kv_pages_free=PAGES // 2)] * 3
                    )
                )
                revisions[name] = RevisionReading(name, 3, pods, tuple(samples))
                started[name] = service.started(samples)
        seen = Observation("ns", "chat", "uid", 1, self.spec, self.status, revisions, (), load=load(started))
        plan = decide(seen, self.now)
        self.status = codec.load(codec.dump(plan.status))
        self.events += [event for event in plan.events if event.reason.startswith("Capacity")]

    def run(self, looks: int) -> None:
        for _ in range(looks):
            self.decide()

    @property
    def condition(self) -> tuple[str, str, str]:
        return next(
            (one.status, one.reason, one.message) for one in self.status.conditions if one.type == report.CONDITION
        )


def test_a_service_as_planned_says_so_and_a_slow_one_says_what_it_costs() -> None:
    world = World(Service())
    world.run(3)
    status, reason, message = world.condition
    assert (status, reason) == ("True", "AsPlanned")
    assert "perReplica.outputTokensPerSecond 1,400 (1,4" in message
    assert not world.events
    world.stable = Service(base=0.035)
    world.run(2)
    status, reason, message = world.condition
    assert (status, reason) == ("False", "WorseThanPlanned")
    assert "perReplica.outputTokensPerSecond: 1,400 tokens/s with 50 running requests planned, 8" in message
    assert f"measured of revision {world.first} until" in message
    assert "% less; the planned load needs 5 replicas, not 3, which cost 5.00 more per hour" in message
    assert [(event.type, event.reason) for event in world.events] == [("Warning", "CapacityWorseThanPlanned")]
    world.running = 0
    world.run(12)
    assert world.condition[:2] == ("False", "WorseThanPlanned"), "an idle hour refutes nothing"
    world.running, world.stable = 50.0, Service()
    world.run(2)
    assert world.condition[:2] == ("True", "AsPlanned")
    assert [event.reason for event in world.events] == ["CapacityWorseThanPlanned", "CapacityAsPlanned"]
    del world.spec["capacityPlan"]
    world.run(1)
    assert world.status.capacity_plan is None
    assert not [one for one in world.status.conditions if one.type == report.CONDITION]


def test_a_replica_that_does_more_than_planned_is_no_warning() -> None:
    world = World(Service(base=0.001))
    world.run(3)
    status, reason, message = world.condition
    assert (status, reason) == ("False", "BetterThanPlanned")
    assert "the planned load still needs 3 replicas" in message or "less per hour" in message
    assert [(event.type, event.reason) for event in world.events] == [("Normal", "CapacityBetterThanPlanned")]


def test_with_little_load_the_condition_says_what_is_not_known() -> None:
    world = World(Service())
    world.running = 10
    world.run(3)
    status, reason, message = world.condition
    assert (status, reason) == ("Unknown", "TooLittleData")
    assert "perReplica.outputTokensPerSecond: 1,400 tokens/s with 50 running requests planned," in message
    assert "by the load so far: not known closely enough" in message
    assert "as planned within 15% (measured): " in message
    assert not world.events


def test_a_canary_is_compared_while_a_rollout_runs_and_the_stable_after_a_rollback() -> None:
    world = World(Service(), Service(held=1600.0))
    world.run(3)
    assert world.condition[0] == "True"
    rollout = RolloutRecord(Phase.PAUSED, since=NOW, started=NOW, traffic_since=NOW, paused="action a1")
    world.spec["engine"] = {**world.spec["engine"], "args": ["--max-num-seqs=64"]}
    parsed = parse(world.spec)
    assert isinstance(parsed, Spec)
    decided = revision_hash(parsed.raw)
    canary = RevisionRecord(decided, world.now, snapshot(parsed.raw))
    world.status = replace(
        world.status,
        canary=decided,
        revisions=(*world.status.revisions, canary),
        rollout=rollout,
        traffic=(Weight(world.first, 75), Weight(decided, 25)),
    )
    world.run(7)
    assert world.status.canary == decided
    status, reason, message = world.condition
    assert (status, reason) == ("False", "WorseThanPlanned")
    assert "perRequest.kvTokens: 800 tokens planned, 1,6" in message
    assert f"measured of revision {decided}" in message
    assert world.status.capacity_plan is not None
    assert {one.revision for one in world.status.capacity_plan.assumptions} == {"", decided, world.first}
    world.status = replace(
        world.status, canary="", traffic=(Weight(world.first, 100),), rollout=RolloutRecord(Phase.IDLE)
    )
    world.spec["engine"] = sample()["spec"]["engine"]
    world.run(1)
    assert world.condition[:2] == ("True", "AsPlanned")


def test_an_invalid_spec_keeps_what_was_found() -> None:
    world = World(Service())
    world.run(3)
    known = world.status.capacity_plan
    world.spec["scaling"] = {"min": "many"}
    world.run(1)
    assert world.condition[:2] == ("True", "AsPlanned")
    assert world.status.capacity_plan == known


def test_what_the_schema_takes_and_refuses() -> None:
    def parsed(**plan: Any) -> Spec | SpecErrors:
        return parse({"model": {"source": "file:///m"}, "capacityPlan": plan})

    whole = parsed(**PLANNED)
    assert isinstance(whole, Spec)
    assert whole.capacity_plan == CapacityPlan(
        0.15, {RATE: 20.0, OUTPUT: 200.0, KV: 800.0, SPEED: 1400.0, CACHE: PAGES * PAGE}, 3, 50
    )
    for wrong in (
        {"perReplica": {"concurrency": 50}},
        {"perReplica": {"outputTokensPerSecond": 50}},
        {"replicas": 3},
        {**PLANNED, "tolerance": "0%"},
        {**PLANNED, "perRequest": {"sharedTokens": 30}},
        {**PLANNED, "perReplica": {"kvCacheTokens": 0}},
    ):
        refused = parsed(**wrong)
        assert isinstance(refused, SpecErrors), wrong
        assert "spec.capacityPlan" in refused.message
