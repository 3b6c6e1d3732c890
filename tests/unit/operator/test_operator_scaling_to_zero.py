"""Protects services that sleep: zero replicas are no fault, what wakes them, and what keeps them from falling asleep."""

from __future__ import annotations

from support.scaled_service import NOW, Service

from pagefleet_operator.domain.status.gateway_api import Features, GatewayApiReading
from pagefleet_operator.domain.status.sample import ServiceLoad


def test_a_service_at_zero_is_idle_not_broken_and_its_traffic_stays() -> None:
    service = Service(scaling={"min": 0, "max": 3, "idleToZero": "2m"})
    service.run(20)
    stable = service.status.stable
    assert service.replicas() == {}
    assert [(w.revision, w.weight) for w in service.status.traffic] == [(stable, 100)]
    assert service.condition("Ready")[:2] == ("True", "Idle")
    assert service.condition("Scaling")[:2] == ("False", "Idle")
    assert service.condition("Degraded")[0] == "False"
    assert service.plan is not None and service.plan.asleep
    kinds = [decision.kind for decision in service.status.decisions]
    assert kinds.count("ScaledToZero") == 1
    before = service.status
    service.run(3)
    assert service.status == before, "a sleeping service is not written"
    service.load = ServiceLoad(2.0, held=1, arrivals=(0.0,) * 360)
    service.run()
    assert service.replicas() == {stable: 1}
    assert service.status.decisions[-1].kind == "Woken"
    assert not service.plan.asleep


def test_a_service_that_was_made_or_woken_just_now_is_not_idle_for_the_time_before() -> None:
    """What woke it may be answered before the slice that it is counted in is closed."""
    service = Service(scaling={"min": 0, "max": 3, "idleToZero": "2m"})
    service.run(10)
    assert sum(service.replicas().values()) == 1, "the windows say that nothing came for an hour; it is 100 s old"
    service.run(5)
    assert service.replicas() == {}
    service.load = ServiceLoad(2.0, held=1, arrivals=(0.0,) * 360)
    service.run()
    service.load = ServiceLoad(2.0, arrivals=(0.0,) * 360)
    service.run(10)
    assert sum(service.replicas().values()) == 1
    service.run(5)
    assert service.replicas() == {}


def test_without_gateways_nothing_goes_to_sleep() -> None:
    service = Service(scaling={"min": 0, "max": 3, "idleToZero": "2m"})
    service.load = None
    service.run(60)
    assert sum(service.replicas().values()) == 1


def test_a_service_whose_clients_come_by_a_route_to_services_does_not_sleep() -> None:
    """Their requests go past the gateways, which count none and hold none: nothing would wake it. A pool's picker does both."""
    traffic = {"provider": "GatewayAPI", "gatewayAPI": {"parentRefs": [{"name": "edge"}]}}
    service = Service(scaling={"min": 0, "max": 3, "idleToZero": "2m"}, traffic=traffic)
    service.gateway_api = GatewayApiReading(Features("v1"))
    service.run(60)
    assert sum(service.replicas().values()) == 1
    assert "spec.scaling.idleToZero" in service.condition("TrafficEnforced")[2]
    service.gateway_api = GatewayApiReading(Features("v1", "v1"))
    service.run(60)
    assert service.replicas() == {}
    service.gateway_api = GatewayApiReading(Features("v1"))
    service.run(2)
    assert sum(service.replicas().values()) == 1, "its pool is gone"


def test_a_gateway_that_misses_an_answer_now_and_then_does_not_keep_a_service_awake() -> None:
    """Gateways count the requests of an hour. One answer that is missing in an hour must not begin a longer idle time anew."""
    service = Service(scaling={"min": 1, "max": 3, "idleToZero": "3h"})
    idle, slept = service.load, 0.0
    for minute in range(4 * 60):
        service.load = None if minute % 55 == 54 else idle
        service.run(1, 60.0)
        slept = slept or (service.now - NOW if not service.replicas() else 0.0)
    assert 3 * 3600 <= slept <= 3.2 * 3600


def test_a_new_revision_wakes_a_sleeping_service_and_is_judged_beside_it() -> None:
    service = Service(scaling={"min": 0, "max": 3, "idleToZero": "2m"})
    service.run(20)
    stable = service.status.stable
    service.spec["engine"] = {**service.spec["engine"], "args": ["--max-num-seqs=4"]}
    service.run(2)
    assert service.status.canary
    assert service.replicas() == {stable: 1, service.status.canary: 1}
    service.run(60)
    assert service.replicas()[stable] == 1, "no sleep while a canary is judged"
