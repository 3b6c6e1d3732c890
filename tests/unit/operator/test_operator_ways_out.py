"""Protects the way out of every rollout: a fix is tried whatever the revisions before it do, no edit takes traffic from the only
pods that serve, and an action, an alert and a load test count exactly once, also after a restore, a lost status or a clock
that was set back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.sample_service import sample
from support.virtual.cluster import Cluster, started

from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.rollout import alerts
from pagefleet_operator.domain.status.gateway_api import Features, GatewayApiReading, LiveObject
from pagefleet_operator.domain.status.observation import LoadTestReading
from pagefleet_operator.domain.status.status import AlertRecord, Phase, RouteRecord, Status

NEVER = 1e12
PAGE = {"severity": "page"}


def dead(cluster: Cluster, *revisions: str) -> None:
    """No pod of these revisions becomes ready."""
    """The pods of these revisions never become ready (again)."""
    for name in revisions:
        if name in cluster.pods:
            cluster.pods[name] = [NEVER for _ in cluster.pods[name]]


def ticks(cluster: Cluster, number: int, *without_pods: str) -> None:
    """Let the operator decide so often, while no pod of some revisions is ready."""
    for _ in range(number):
        dead(cluster, *without_pods)
        cluster.tick()


def promoted(**after: str) -> tuple[Cluster, str]:
    """A second revision that was promoted and is watched, and the name of the first."""
    """A second revision has just been promoted without steps and is watched; and the first one's name."""
    cluster = Cluster(1)
    first = cluster.serving()
    cluster.spec["rollout"].update(steps=[], guard={}, afterPromotion=after or {"watch": "600s"})
    cluster.edit(2)
    cluster.until(lambda status: status.stable != first and status.rollout.phase is Phase.WATCHING)
    return cluster, first


def rejected_third() -> tuple[Cluster, str, str, str]:
    """Three revisions, the third of which was rejected: the second serves."""
    """Three revisions: the second serves again after an undo of the third, which the spec asks for."""
    cluster = Cluster(1)
    cluster.spec["rollout"].update(steps=[], guard={})
    first = cluster.serving()
    cluster.edit(2)
    cluster.until(lambda status: status.stable != first and status.rollout.phase is Phase.IDLE)
    second = cluster.status.stable
    cluster.edit(3)
    cluster.until(lambda status: status.stable != second and status.rollout.phase is Phase.IDLE)
    third = cluster.status.stable
    cluster.act("undo")
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    assert cluster.weights() == {second: 100}
    return cluster, first, second, third


def test_a_fix_is_tried_after_a_canary_beside_a_dead_stable_was_given_up() -> None:
    cluster = Cluster(1)
    stable = cluster.serving()
    cluster.spec["rollout"]["guard"]["deadline"] = "60s"
    dead(cluster, stable)
    cluster.edit(2)
    cluster.tick()
    bad = cluster.status.canary
    ticks(cluster, 60, stable, bad)
    assert cluster.weights() == {stable: 100}
    assert cluster.status.rollout.phase is Phase.ROLLED_BACK, "all traffic is where it is to be"
    cluster.spec["rollout"]["guard"] = {}
    cluster.spec["rollout"]["steps"] = []
    cluster.edit(3)
    ticks(cluster, 60, stable, bad)
    assert cluster.status.stable not in (stable, bad), "the fix is rolled out"


def test_a_fix_is_tried_when_a_rollback_cannot_end() -> None:
    cluster, first = promoted()
    cluster.spec["rollout"]["guard"] = {"latency": [], "errors": {}, "deadline": "60s"}
    ticks(cluster, 20)
    second = cluster.status.stable
    cluster.act("abort")
    ticks(cluster, 60, first)
    assert cluster.status.rollout.phase is Phase.ROLLING_BACK and cluster.weights() == {second: 100}
    cluster.edit(3)
    ticks(cluster, 120, first)
    assert cluster.status.stable not in (first, second)


def test_a_rollback_ends_when_the_maximum_is_lowered_meanwhile() -> None:
    cluster = Cluster(1)
    cluster.spec["scaling"].update(min=8, max=8)
    first = cluster.serving()
    cluster.spec["rollout"].update(steps=[], guard={}, afterPromotion={"watch": "600s"})
    cluster.edit(2)
    cluster.until(lambda status: status.stable != first and status.rollout.phase is Phase.WATCHING)
    ticks(cluster, 20)
    cluster.act("abort")
    cluster.spec["scaling"].update(min=1, max=3)
    cluster.generation += 1
    ticks(cluster, 300)
    assert cluster.replicas[first] == 3
    assert cluster.weights() == {first: 100}


def test_a_reverted_spec_takes_no_traffic_from_the_only_pods_that_serve() -> None:
    cluster = started(steps=[{"weight": 100, "hold": "1h"}])
    cluster.until(lambda status: cluster.weight() == 100)
    stable, canary = cluster.status.stable, cluster.status.canary
    dead(cluster, stable)
    cluster.spec["engine"] = sample()["spec"]["engine"]
    cluster.generation += 1
    ticks(cluster, 3, stable)
    assert cluster.weights() == {canary: 100}, "the stable revision has no ready pod"
    cluster.pods[stable] = [cluster.real for _ in cluster.pods[stable]]
    ticks(cluster, 2)
    assert cluster.weights() == {stable: 100}


def test_an_undo_while_nothing_serves_is_done() -> None:
    cluster = Cluster(1)
    cluster.tick()
    first = cluster.status.stable
    dead(cluster, first)
    cluster.edit(2)
    cluster.tick()
    second = cluster.status.stable
    dead(cluster, second)
    cluster.act("undo")
    assert cluster.answer() == ("Done", True)
    cluster.pods = {name: [cluster.real + 4 for _ in pods] for name, pods in cluster.pods.items()}
    ticks(cluster, 30)
    assert cluster.weights() == {first: 100}


def test_an_undo_while_a_restored_revision_starts_brings_no_rejected_one_back() -> None:
    cluster, first, second, third = rejected_third()
    cluster.replace_service()
    cluster.until(lambda status: status.rollout.phase is Phase.RESTORING)
    ticks(cluster, 5, second)
    cluster.actions += 1
    cluster.act("undo", first)
    for _ in range(60):
        dead(cluster, second)
        cluster.tick()
        assert third not in cluster.weights()
    assert cluster.weights() == {first: 100}


def test_an_undo_does_not_roll_a_revision_back_to_itself() -> None:
    cluster, first = promoted()
    ticks(cluster, 20)
    second = cluster.status.stable
    cluster.act("abort")
    dead(cluster, first)
    cluster.edit(3)
    ticks(cluster, 5, first)
    cluster.act("undo", second)
    assert cluster.answer()[0] == "Refused"


@pytest.mark.parametrize("how", ["lost", "restored"])
def test_an_action_is_not_done_again_when_the_status_is_lost(how: str) -> None:
    """Velero and kubectl restore the annotations of a service, and no status."""
    cluster, _, second, third = rejected_third()
    action = cluster.action
    if how == "lost":
        cluster.status = Status()
    else:
        cluster.replace_service()
        cluster.action = action
    for _ in range(60):
        cluster.tick()
        assert third not in cluster.weights(), "it was rejected"
    assert cluster.weights() == {second: 100}
    assert [one.hash for one in cluster.status.rejected] == [third]


def test_a_retry_tests_the_load_again() -> None:
    cluster = started(steps=[{"loadTest": {"requests": 10}}, {"weight": 50, "hold": "10s"}])
    cluster.until(lambda status: status.rollout.phase is Phase.LOAD_TEST)
    cluster.load_test = LoadTestReading({"requests": 10, "errors": 9, "ttft": {"300": 10}})
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    cluster.load_test = None
    cluster.act("retry")
    cluster.until(
        lambda status: status.rollout.phase is not Phase.STARTING and status.rollout.phase is not Phase.ROLLED_BACK
    )
    cluster.tick()
    assert cluster.status.rollout.phase is Phase.LOAD_TEST
    assert cluster.plan is not None and cluster.plan.job is not None


def test_an_alert_counts_after_the_clock_was_set_back() -> None:
    cluster = started(steps=[{"weight": 50, "hold": "1h"}])
    cluster.until(lambda status: cluster.weight() == 50)
    cluster.now -= 3600
    ticks(cluster, 5)
    canary = cluster.status.canary
    alert = AlertRecord("f", "Bad", cluster.now, canary, cluster.now, PAGE)
    cluster.status = replace(cluster.status, alerts=(alert,))
    ticks(cluster, 2)
    assert [(one.hash, one.reason) for one in cluster.status.rejected] == [(canary, "Alert")]


@pytest.mark.parametrize("how", ["alert", "abort"])
def test_the_way_back_after_a_promotion_stays_open_with_an_invalid_spec(how: str) -> None:
    cluster, first = promoted(watch="600s", keepPrevious="600s")
    second = cluster.status.stable
    cluster.spec = {**cluster.spec, "scaling": {**cluster.spec["scaling"], "min": 99}}
    cluster.generation += 1
    cluster.tick()
    if how == "alert":
        alert = AlertRecord("f", "Bad", cluster.now, second, cluster.now, PAGE)
        cluster.status = replace(cluster.status, alerts=(alert,))
        assert alerts.decides(cluster.status, cluster.spec, None), "for which nothing is measured"
        ticks(cluster, 5)
    else:
        cluster.act("abort")
    ticks(cluster, 5)
    assert cluster.weights() == {first: 100}


@pytest.mark.parametrize("how", ["alert", "abort"])
def test_a_route_goes_the_way_back_although_another_part_of_the_spec_is_invalid(how: str) -> None:
    """Its Gateway sends the canary its share until the route is written."""
    cluster = started(steps=[{"weight": 50, "hold": "1h"}])
    cluster.until(lambda status: cluster.weight() == 50)
    canary, stable = cluster.status.canary, cluster.status.stable
    traffic = {"provider": "GatewayAPI", "gatewayAPI": {"parentRefs": [{"name": "edge"}]}}
    cluster.spec = {**cluster.spec, "traffic": traffic, "scaling": {**cluster.spec["scaling"], "min": 99}}
    cluster.generation += 1
    alert = AlertRecord("f", "Bad", cluster.now, canary, cluster.now, PAGE)
    status = replace(cluster.status, route=RouteRecord("Service"), alerts=(alert,) if how == "alert" else ())
    reading = GatewayApiReading(Features("v1"), LiveObject("chat", "r", cluster.uid, 4))
    action = json.dumps({"id": "a", "action": "abort", "by": "anna"}) if how == "abort" else ""
    before = replace(cluster.observe(), status=status, gateway_api=reading, action=action)
    plan = decide(before, cluster.now)
    assert [(one.revision, one.weight) for one in plan.status.traffic] == [(stable, 100)]
    [route] = plan.routes
    backends = route["spec"]["rules"][-1]["backendRefs"]  # type: ignore[index]
    assert [(one["name"], one["weight"]) for one in backends] == [(f"{before.name}-{stable}", 100)]
