"""Protects what stands around the sizing rule, decided again and again on a whole service: schedules
that wake, external mode, the cost ceiling, conditions that say why, metrics and deletion costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.scaled_service import NOW, Service

from pagefleet_operator.domain.scaling import capacity, deletion_cost
from pagefleet_operator.domain.spec.scaling import Scaling, in_force
from pagefleet_operator.domain.spec.schedule import Entry
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.observation import PodReading, RevisionReading, SpareReading
from pagefleet_operator.domain.status.sample import ServiceLoad
from pagefleet_operator.web.own_metrics import Metrics


def test_a_decrease_that_a_canary_forbids_is_no_past_change() -> None:
    """Past changes count in step policies and against noise. The stable would get one at each decision for hours."""
    service = Service(scaling={"min": 1, "max": 3})
    service.waiting = 40
    service.run(6)
    stable = service.status.stable
    assert service.replicas() == {stable: 3}
    grown = service.status.scaling[0].steps
    service.waiting = 0
    service.spec["engine"] = {**service.spec["engine"], "args": ["--max-num-seqs=4"]}
    service.run(2)
    assert service.status.canary
    service.run(120)
    assert service.replicas()[stable] == 3
    assert next(one.steps for one in service.status.scaling if one.revision == stable) == grown
    assert [step.change for step in grown] == [2]


def test_a_schedule_wakes_and_keeps_awake() -> None:
    entry = {"cron": "* * * * *", "duration": "1m", "min": 2}
    service = Service(scaling={"min": 0, "max": 3, "idleToZero": "2m", "schedule": [entry]})
    service.run(60)
    assert sum(service.replicas().values()) == 2
    del service.spec["scaling"]["schedule"]
    service.run(60)
    assert service.replicas() == {}
    service.spec["scaling"]["schedule"] = [entry]
    service.run(1)
    assert sum(service.replicas().values()) == 2


def test_in_mode_external_min_is_the_number_of_replicas() -> None:
    service = Service(scaling={"min": 2, "max": 9, "mode": "external"})
    service.waiting = 500
    service.run(5)
    assert sum(service.replicas().values()) == 2
    service.spec["scaling"]["min"] = 7
    service.run(1)
    assert sum(service.replicas().values()) == 7
    assert "spec.scaling.min is 7" in service.status.decisions[-1].message
    service.spec["scaling"]["min"] = 0
    service.run(1)
    assert service.replicas() == {}
    assert service.condition("Ready")[:2] == ("True", "Idle")


def test_the_cost_ceiling_caps_and_says_so() -> None:
    cost = {"perAcceleratorHour": 2.5, "ceilingPerHour": 8.0}
    resources = {"accelerator": {"name": "nvidia.com/gpu", "count": 1}, "cpu": "1", "memory": "4Gi"}
    service = Service(scaling={"min": 1, "max": 9}, cost=cost, resources=resources)
    service.waiting = 500
    service.run(10)
    assert sum(service.replicas().values()) == 3, "3 x 2.50 are within 8.00 an hour"
    assert service.condition("Scaling")[1] == "CostCeiling"
    assert "spec.cost.ceilingPerHour allows 3" in service.condition("Scaling")[2]
    service.spec["cost"] = {"perAcceleratorHour": 2.5}
    service.run(10)
    assert sum(service.replicas().values()) == 9
    assert service.condition("Scaling")[1] == "AtMaximum"


def test_the_ceiling_goes_by_what_a_replica_of_each_revision_costs() -> None:
    """An edit that makes a replica four times as dear must not take three quarters of those that serve, before its own serve. Eight dear ones
    would cost 32 an hour, and two of them leave 2 of 10 for a cheap canary."""
    for first, then, serving, tried in ((1, 4, 8, 1), (4, 1, 2, 2)):
        cost = {"perAcceleratorHour": 1, "ceilingPerHour": 10}
        cards = [
            {"accelerator": {"name": "nvidia.com/gpu", "count": count}, "memory": "4Gi"} for count in (first, then)
        ]
        service = Service(scaling={"min": 1, "max": 8}, cost=cost, resources=cards[0])
        service.waiting = 40
        service.run(10)
        service.spec["resources"] = cards[1]
        service.run(10)
        assert service.replicas() == {service.status.stable: serving, service.status.canary: tried}


def test_a_price_next_to_nothing_ends_no_decision() -> None:
    """It pays for infinitely many replicas of the stable revision and of a canary."""
    service = Service(scaling={"min": 2, "max": 3}, cost={"perAcceleratorHour": 1e-320, "ceilingPerHour": 1e9})
    service.run(5)
    assert sum(service.replicas().values()) == 2
    service.spec["engine"] = {**service.spec["engine"], "args": ["--max-num-seqs=4"]}
    service.run(5)
    assert service.status.canary in service.replicas()


def test_bursts_at_the_maximum_are_one_shortage() -> None:
    """The condition stays between bursts, so that an alert can wait for it, and goes with the last one."""
    service = Service(scaling={"min": 1, "max": 1})
    service.run(2)
    told = []
    for tick in range(60):
        service.waiting = 500 if tick % 3 == 0 else 0
        service.run()
        told.append(service.condition("Scaling")[1:])
    assert {reason for reason, _ in told} == {"AtMaximum"}
    assert len(set(told)) == 1, "nothing is written"
    service.waiting = 0
    service.run(8)
    assert service.condition("Scaling")[1] == "Stable"


def test_a_burst_that_the_maximum_carries_meets_no_limit() -> None:
    service = Service(scaling={"min": 1, "max": 3})
    service.run(2)
    service.waiting = 20
    told = []
    for _ in range(12):
        service.run()
        service.waiting = 20 if sum(service.replicas().values()) < 3 else 0
        told.append(service.condition("Scaling")[1])
    assert sum(service.replicas().values()) == 3
    assert "AtMaximum" not in told


def test_a_refusal_is_a_condition_and_stops_the_growth() -> None:
    service = Service(scaling={"min": 1, "max": 9})
    service.run(2)
    service.waiting, service.refused = 500, "exceeded quota: gpus"
    service.run(10)
    assert sum(service.replicas().values()) == 1
    assert service.condition("Scaling")[1:] == (
        "Refused", "the load needs more than 1 replica, and no more can be created: exceeded quota: gpus")  # fmt: skip


def test_a_replica_that_cannot_be_read_is_named_with_the_cause() -> None:
    service = Service(scaling={"min": 1, "max": 9})
    service.waiting = 9
    service.run(3)
    (before,) = service.replicas().values()
    assert before > 1
    service.waiting, service.load_error = 0, "http://10.0.0.5:8000/metrics does not answer within 2 s"
    service.run(3)
    assert service.condition("Scaling")[1:] == (
        "SignalsMissing",
        f"1 of {before} replicas report no load (pod {service.status.stable}-0: {service.load_error}); "
        "no replica is removed until every one reports",
    )
    service.load_error = ""
    service.run(1)
    assert service.condition("Scaling")[1] == "Stable"


def test_a_canarys_load_is_its_share_of_what_arrives() -> None:
    load = ServiceLoad(2.0, held=10, arrivals=(8.0, 4.0))
    part = capacity.part(load, 0.25)
    assert part is not None
    assert (part.held, part.arrivals) == (3, (2.0, 1.0))
    assert capacity.part(None, 0.25) is None


def test_metrics_tell_need_and_cost_and_go_with_the_service() -> None:
    resources = {"accelerator": {"name": "nvidia.com/gpu", "count": 2}, "cpu": "1", "memory": "4Gi"}
    service = Service(scaling={"min": 1, "max": 3}, cost={"perAcceleratorHour": 1.5}, resources=resources)
    plan = service.run(3)
    metrics = Metrics()
    metrics.load.planned(service.observe(), plan)
    text = metrics.text().decode()
    assert 'pagefleet_cost_per_hour{namespace="ns",service="chat"} 3.0' in text
    assert f'pagefleet_replicas_needed{{namespace="ns",revision="{service.status.stable}",service="chat"}} 0.0' in text
    assert 'pagefleet_arrivals_per_second{namespace="ns",service="chat"} 0.0' in text
    assert "pagefleet_cost_per_1k_tokens{" not in text, "nothing was generated: no price of it"
    metrics.forget("ns", "chat")
    assert 'service="chat"' not in metrics.text().decode()


def test_sleeping_spares_cost_and_do_not_serve_and_tokens_have_a_price() -> None:
    service = Service(scaling={"min": 1, "max": 3, "warmSpares": 2}, cost={"perAcceleratorHour": 3.6})
    plan = service.run(3)
    observation = service.observe()
    stable, reading = service.status.stable, observation.revisions[service.status.stable]
    assert reading.pods[0].ready
    first = reading.pods[0]
    assert first.load is not None
    pods = (replace(first, load=replace(first.load, tokens=100.0)), *reading.pods[1:])
    spares = tuple(
        SpareReading(
            PodReading(f"spare-{n}", awake, False, NOW, NOW if awake else None), asleep=not awake, loaded=awake
        )
        for n, awake in enumerate((False, True))
    )
    spares += (SpareReading(PodReading("spare-loading", False, False, NOW, None)),)
    metrics = Metrics()
    metrics.load.planned(replace(observation, revisions={stable: replace(reading, pods=pods)}), plan)
    assert 'pagefleet_cost_per_1k_tokens{namespace="ns",service="chat"} 0.01' in metrics.text().decode(), (
        "3.6 / 360,000"
    )
    metrics.load.planned(replace(observation, revisions={stable: replace(reading, spares=spares)}), plan)
    text = metrics.text().decode()
    assert 'pagefleet_cost_per_hour{namespace="ns",service="chat"} 10.8' in text, "a replica, a sleeper, one awake"
    assert 'pagefleet_spares{namespace="ns",service="chat"} 2.0' in text
    assert 'pagefleet_spares_awake{namespace="ns",service="chat"} 1.0' in text
    assert replace(reading, spares=spares).ready == reading.ready + 1


def test_min_is_never_above_a_scheduled_max() -> None:
    scaling = Scaling(4, 8, schedule=(Entry("* * * * *", "UTC", 60.0, max=2),))
    allowed = in_force(scaling, NOW)
    assert (allowed.min, allowed.max) == (2, 2)


def test_the_emptiest_then_the_coldest_pod_goes_first() -> None:
    def pod(name: str, used: int, cached: int, **more: Any) -> PodReading:
        load = EngineLoad(kv_pages_total=1000, kv_pages_free=1000 - used, kv_pages_cached=cached)
        return replace(PodReading(name, True, False, NOW, NOW, load=load), **more)

    pods = (
        pod("busy", 30, 0), pod("warm", 3, 500), pod("cold", 3, 20), pod("empty", 0, 900), pod("new", 0, 0, ready=False),
        pod("gone", 0, 0, terminating=True), pod("unread", 0, 0, load=None),
    )  # fmt: skip
    readings = {"a": RevisionReading("a", 6, pods), "b": RevisionReading("b", 1, (pod("other", 1, 1),))}
    costs = deletion_cost.costs(readings, {"a": 5, "b": 1})
    assert sorted(costs, key=lambda name: costs[name]) == ["new", "empty", "cold", "warm", "busy", "unread"]
    assert all(0 <= value < 2**31 for value in costs.values())
    assert deletion_cost.costs(readings, {"a": 6, "b": 2}) == {}, "nothing shrinks"
    assert deletion_cost.costs(readings, {"b": 1}) == {}, "all of them go"
