"""Protects provider GatewayAPI on a real API server, with the kinds' schemas: without the kinds a condition names what
to install and the service serves; the HTTPRoute and the InferencePool are written, owned, repaired and taken away;
weights follow a canary; what a gateway answers becomes a condition; nothing is written that a schema drops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from support.cluster.gateway_api_install import answered, install, uninstall
from support.cluster.plane import Plane
from support.cluster.services import NAMESPACE, audited, removed, service, settled

from pagefleet_local.fleet.kubectl import Document, until

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
ROUTES = "/apis/gateway.networking.k8s.io/v1/namespaces/default/httproutes"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools"


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def clean(plane: Plane) -> AsyncIterator[None]:
    """Other tests' cluster has none of these kinds."""
    yield
    await uninstall(plane)


def routed(name: str, **traffic: Any) -> Document:
    document = service(name, args=[])
    fields = {"parentRefs": [{"name": "edge"}], **traffic.pop("gatewayAPI", {})}
    document["spec"]["traffic"] = {"provider": "GatewayAPI", "gatewayAPI": fields, **traffic}
    document["spec"]["rollout"]["route"] = {"header": {"x-canary": "always"}}
    return document


async def read(plane: Plane, collection: str, name: str) -> Document | None:
    return await plane.api.find(f"{collection}/{name}")


async def route_of(plane: Plane, name: str, what: str, holds: Any) -> Document:
    async def check() -> bool:
        live = await read(plane, ROUTES, name)
        return live is not None and bool(holds(live["spec"]))

    await until(check, timeout=45, what=what, interval=0.2)
    live = await read(plane, ROUTES, name)
    assert live is not None
    return live


def weights(spec: Document) -> dict[str, int]:
    return {ref["name"]: ref["weight"] for ref in spec["rules"][-1]["backendRefs"]}


async def answer(plane: Plane, name: str, status: str, reason: str, message: str) -> None:
    """Write a status as a gateway's controller would."""
    live = await read(plane, ROUTES, name)
    assert live is not None
    await plane.api.replace(f"{ROUTES}/{name}/status", answered(live, status, reason, message))


def condition_of(view: Any, kind: str) -> tuple[str, str]:
    """Return the status and the message of the condition `kind`, empty where it is missing."""
    condition = next((c for c in view.status.get("conditions", ()) if c["type"] == kind), {})
    return condition.get("status", ""), condition.get("message", "")


async def test_a_cluster_without_the_kinds_serves_and_is_told_what_to_install(plane: Plane) -> None:
    await plane.kubectl.apply(routed("bare"))
    state = await settled(plane, "bare", "bare is Ready", lambda v: v.is_true("Ready"))
    status, message = condition_of(state, "RouteAccepted")
    assert status == "False"
    assert message.startswith("spec.traffic.provider: ")
    assert "install" in message
    assert (await plane.kubectl.events("bare", NAMESPACE, "NotInstalled")).count("NotInstalled") == 1


async def test_a_route_of_the_first_api_has_only_fields_that_it_knows(plane: Plane) -> None:
    await plane.kubectl.apply(routed("bare"))
    await install(plane.api, "httproutes", first_api=True)
    live = await route_of(plane, "bare", "a route, half a minute after its kind came", lambda spec: spec["rules"])
    assert "timeouts" not in live["spec"]["rules"][0]
    state = await settled(
        plane, "bare", "reported", lambda v: "spec.traffic.timeout" in condition_of(v, "TrafficEnforced")[1]
    )
    assert condition_of(state, "RouteAccepted")[0] == "Unknown"
    await plane.kubectl.run("delete", "isvc", "bare", "-n", NAMESPACE)

    async def gone() -> bool:
        return await read(plane, ROUTES, "bare") is None

    await until(gone, timeout=40, what="the route goes with its service")


async def test_a_route_follows_a_canary_is_repaired_and_answers_become_a_condition(plane: Plane) -> None:
    await install(plane.api, "httproutes")
    await plane.kubectl.apply(routed("divided", timeout="90s"))
    stable = (await settled(plane, "divided", "divided is Ready", lambda v: v.is_true("Ready"))).stable
    live = await route_of(
        plane, "divided", "all on the stable", lambda spec: weights(spec) == {f"divided-{stable}": 100}
    )
    owner = live["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("InferenceService", "divided", True)
    assert live["spec"]["parentRefs"] == [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"}]
    await route_of(plane, "divided", "timeouts", lambda spec: spec["rules"][0].get("timeouts") == {"request": "1m30s"})
    await answer(plane, "divided", "True", "Accepted", "fine")
    await settled(plane, "divided", "accepted", lambda v: condition_of(v, "RouteAccepted")[0] == "True")
    await answer(plane, "divided", "False", "NotAllowedByListeners", "no listener allows it")
    state = await settled(plane, "divided", "refused", lambda v: condition_of(v, "RouteAccepted")[0] == "False")
    assert "spec.traffic.gatewayAPI.parentRefs[0]" in condition_of(state, "RouteAccepted")[1]

    changed = routed("divided", timeout="90s")
    changed["spec"]["engine"]["args"] = ["--max-num-seqs=4"]
    await plane.kubectl.apply(changed)
    state = await settled(plane, "divided", "the canary has traffic", lambda v: v.weights.get(v.canary) == 10)
    canary = state.canary
    live = await route_of(plane, "divided", "two weights", lambda spec: len(weights(spec)) == 2)
    assert weights(live["spec"]) == {f"divided-{stable}": 90, f"divided-{canary}": 10}
    forced = live["spec"]["rules"][0]
    assert forced["matches"][0]["headers"] == [{"type": "Exact", "name": "x-canary", "value": "always"}]
    assert [ref["name"] for ref in forced["backendRefs"]] == [f"divided-{canary}"]

    live["spec"]["rules"][-1]["backendRefs"][1]["weight"] = 77
    await plane.api.replace(f"{ROUTES}/divided", live)
    await route_of(plane, "divided", "repaired", lambda spec: weights(spec).get(f"divided-{canary}") == 10)

    # Back at the stable: its Service must not go before the gateway has seen the route without it.
    await answer(plane, "divided", "True", "Accepted", "fine")
    await settled(plane, "divided", "accepted again", lambda v: condition_of(v, "RouteAccepted")[0] == "True")
    before = len(audited(plane))
    await plane.kubectl.apply(routed("divided", timeout="90s"))
    await route_of(plane, "divided", "all back", lambda spec: weights(spec) == {f"divided-{stable}": 100})
    # The write that takes the weight away comes first: the status, then at once the route that follows it.
    writes = [e["objectRef"] for e in audited(plane)[before:] if e["objectRef"].get("name", "").startswith("divided")]
    kinds = [(ref["resource"], ref.get("subresource", "")) for ref in writes]
    assert kinds[:2] == [("inferenceservices", "status"), ("httproutes", "")]
    for _ in range(3):
        behind = await settled(
            plane, "divided", "a decision", lambda v: condition_of(v, "RouteAccepted")[0] == "Unknown"
        )
        assert await plane.kubectl.get("service", f"divided-{canary}", NAMESPACE) is not None
    assert behind.weights == {stable: 100}
    await answer(plane, "divided", "True", "Accepted", "fine")

    async def gone() -> bool:
        return await plane.kubectl.get("service", f"divided-{canary}", NAMESPACE) is None

    await until(gone, timeout=40, what="the canary's children are deleted after the gateway's answer")


async def test_a_route_that_the_api_server_refuses_is_an_event_and_stops_nothing_else(plane: Plane) -> None:
    await install(plane.api, "httproutes")
    refused = routed("refused")
    # A match of an HTTPRoute has at most 16 headers.
    refused["spec"]["rollout"]["route"]["header"] = {f"x-canary-{number}": "always" for number in range(17)}
    await plane.kubectl.apply(refused)
    await settled(plane, "refused", "refused is Ready", lambda v: v.is_true("Ready"))
    refused["spec"]["engine"]["args"] = ["--max-num-seqs=4"]
    await plane.kubectl.apply(refused)
    state = await settled(plane, "refused", "the canary has its weight", lambda v: v.weights.get(v.canary) == 10)
    assert await plane.kubectl.get("deployment", f"refused-{state.canary}", NAMESPACE) is not None
    assert (await plane.kubectl.events("refused", NAMESPACE, "RouteRefused")).count("RouteRefused") == 1
    await plane.kubectl.run("delete", "isvc", "refused", "-n", NAMESPACE)


async def test_where_pools_are_served_the_route_leads_to_one_and_both_go_with_the_provider(plane: Plane) -> None:
    await install(plane.api, "httproutes")
    await plane.kubectl.apply(routed("divided", timeout="90s"))
    await settled(plane, "divided", "divided is Ready", lambda v: v.is_true("Ready"))
    await install(plane.api, "inferencepools")
    live = await route_of(
        plane,
        "divided",
        "a pool behind the route",
        lambda spec: spec["rules"][0]["backendRefs"][0]["kind"] != "Service",
    )
    (rule,) = live["spec"]["rules"]
    assert [(r["group"], r["kind"], r["name"]) for r in rule["backendRefs"]] == [
        ("inference.networking.k8s.io", "InferencePool", "divided")
    ]
    pool = await read(plane, POOLS, "divided")
    assert pool is not None
    assert pool["metadata"]["ownerReferences"][0]["name"] == "divided"
    assert pool["spec"] == {
        "selector": {"matchLabels": {"app.kubernetes.io/managed-by": "pagefleet", "pagefleet.io/service": "divided"}},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {
            "kind": "Service",
            "name": "pagefleet-gateway",
            "port": {"number": 9003},
            "failureMode": "FailClose",
        },
    }
    await plane.api.delete(f"{POOLS}/divided", pool["metadata"]["uid"])

    async def again() -> bool:
        return await read(plane, POOLS, "divided") is not None

    await until(again, timeout=30, what="a deleted pool is written anew")
    plain = service("divided", args=[])
    await plane.kubectl.apply(plain)

    async def gone() -> bool:
        return await read(plane, ROUTES, "divided") is None and await read(plane, POOLS, "divided") is None

    await until(gone, timeout=30, what="route and pool are deleted with the provider")
    state = await settled(plane, "divided", "forgotten", lambda v: "route" not in v.status)
    assert condition_of(state, "RouteAccepted") == ("", "")


async def test_somebody_elses_route_is_not_taken_over(plane: Plane) -> None:
    own = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "taken", "namespace": NAMESPACE},
        "spec": {"hostnames": ["mine.example.org"]},
    }
    await install(plane.api, "httproutes")
    before = await plane.api.create(ROUTES, own)
    await plane.kubectl.apply(routed("taken"))
    state = await settled(plane, "taken", "taken is Ready", lambda v: v.is_true("Ready"))
    assert condition_of(state, "RouteAccepted")[0] == "False"
    assert "default/taken" in condition_of(state, "RouteAccepted")[1]
    after = await read(plane, ROUTES, "taken")
    assert after is not None
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_a_fallback_that_is_not_there_or_leads_in_a_circle_is_reported(plane: Plane) -> None:
    def falling(name: str, to: str) -> Document:
        document = service(name)
        document["spec"]["traffic"] = {"fallback": {"service": to}}
        return document

    await plane.kubectl.apply(falling("first", "second"))
    state = await settled(plane, "first", "reported", lambda v: condition_of(v, "FallbackReady")[0] == "False")
    assert "default/second" in condition_of(state, "FallbackReady")[1]
    await plane.kubectl.apply(falling("second", "third"))
    await plane.kubectl.apply(service("third"))
    await settled(plane, "first", "the fallback is there", lambda v: condition_of(v, "FallbackReady")[0] == "True")
    await plane.kubectl.apply(falling("third", "first"))
    state = await settled(plane, "first", "a circle", lambda v: condition_of(v, "FallbackReady")[0] == "False")
    assert "first -> second -> third -> first" in condition_of(state, "FallbackReady")[1]
    for name in ("first", "second", "third"):
        await removed(plane, name)


async def test_unknown_fields_of_traffic_never_get_in(plane: Plane) -> None:
    broken = service("unknown")
    broken["spec"]["traffic"] = {"queue": {"timeout": "1s", "patience": 3}, "circuitBreaker": {"maxRequestsPerPod": 0}}
    refused = await plane.kubectl.apply(broken, check=False)
    assert refused.code != 0
    assert "patience" in refused.text or "maxRequestsPerPod" in refused.text
