"""Protects provider GatewayAPI as a pure decision: the HTTPRoutes and InferencePools word for word (tests/golden_routes;
PAGEFLEET_GOLDEN=write writes them again), honest weights, and the conditions for a missing CRD, a taken name, a gateway
that refuses and fields without effect. Nothing is deleted before the gateway has seen the new split."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_operator.domain.base.revision import revision_hash
from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.manifests.httproute import hundredths, milliseconds
from pagefleet_operator.domain.rollout.draining import WEIGHTS_PROPAGATE_SECONDS
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.status.gateway_api import Features, GatewayApiReading, LiveObject, ParentStatus
from pagefleet_operator.domain.status.observation import Observation, PodReading, RevisionReading
from pagefleet_operator.domain.status.plan import Plan
from pagefleet_operator.domain.status.status import (
    Condition,
    DrainRecord,
    MirrorRecord,
    RouteRecord,
    Status,
    Weight,
)
from pagefleet_operator.domain.traffic.gateway_api import ACCEPTED, ENFORCED, route

FOLDER = Path(__file__).parents[2] / "golden_routes"
NEW = Features("v1", "", timeouts=True, mirror_share=True)
POOLS = replace(NEW, pool="v1")
OLD = Features("v1beta1")
NOW = 1000.0
ANOTHERS = LiveObject("chat", "p", "llm-d", 1)


def spec_of(traffic: dict[str, Any] | None = None, **rollout: Any) -> dict[str, Any]:
    defaults = {"provider": "GatewayAPI", "gatewayAPI": {"parentRefs": [{"name": "edge", "namespace": "infra"}]}}
    spec: dict[str, Any] = {
        "model": {"source": "file:///m", "servedName": "m"},
        "traffic": {**defaults, **(traffic or {})},
    }
    if rollout:
        spec["rollout"] = rollout
    return spec


def typed(spec: dict[str, Any]) -> Spec:
    parsed = parse(spec)
    assert isinstance(parsed, Spec), parsed
    return parsed


def pods(name: str, ready: int = 1) -> RevisionReading:
    return RevisionReading(name, 1, tuple(PodReading(f"{name}-{i}", True, False, 0, 0) for i in range(ready)))


def observation(spec: dict[str, Any], reading: GatewayApiReading | None, status: Status, **more: Any) -> Observation:
    revisions = {entry.revision: pods(entry.revision) for entry in status.traffic}
    revisions |= {name: pods(name) for name in (status.canary,) if name}
    return Observation(
        "team-a", "chat", "u-1", 3, spec, status, more.pop("revisions", revisions), None, reading, **more
    )


SPLIT = Status(stable="aaaaaaaa", canary="bbbbbbbb", traffic=(Weight("aaaaaaaa", 95), Weight("bbbbbbbb", 5)))
CASES: dict[str, tuple[dict[str, Any], Features, Status]] = {
    "services": (spec_of({"timeout": "2m30s"}), NEW, SPLIT),
    "services-forced-mirrored": (
        spec_of(
            {
                "gatewayAPI": {
                    "parentRefs": [{"name": "edge", "namespace": "infra", "sectionName": "https", "port": 443}],
                    "hostnames": ["chat.example.org"],
                }
            },
            route={"header": {"x-canary": "always"}},
        ),
        NEW,
        replace(SPLIT, mirror=MirrorRecord("bbbbbbbb", 12.5)),
    ),
    "services-old-api": (
        spec_of(),
        OLD,
        replace(SPLIT, canary="", traffic=(Weight("aaaaaaaa", 100),), mirror=MirrorRecord("aaaaaaaa", 10.0)),
    ),
    "pool": (spec_of(route={"header": {"x-canary": "always"}}), POOLS, SPLIT),
}


@pytest.mark.parametrize("name", CASES)
def test_a_route_is_the_golden_one(name: str) -> None:
    spec, served, status = CASES[name]
    made = route(observation(spec, GatewayApiReading(served), status), typed(spec), status).manifests
    text = yaml.safe_dump_all(made, sort_keys=False, width=110)
    golden = FOLDER / f"{name}.yaml"
    if os.environ.get("PAGEFLEET_GOLDEN") == "write":
        golden.write_text(text)
    assert golden.read_text() == text


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(CASES)


@given(st.lists(st.integers(0, 1000), max_size=6))
def test_weights_are_rounded_honestly(weights: list[int]) -> None:
    named = [(f"r{index}", weight) for index, weight in enumerate(weights)]
    shares, total = dict(hundredths(named)), sum(weights)
    assert sum(shares.values()) == (100 if total else 0)
    for name, weight in named:
        exact = weight * 100 / total if total else 0
        assert abs(shares.get(name, 0) - exact) < 1
        if not weight:
            assert name not in shares
    if total == 100:
        assert shares == {name: weight for name, weight in named if weight}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(600, "10m"), (5400, "1h30m"), (0.0015, "2ms"), (1.5, "1s500ms"), (86400, "24h"), (0.25, "250ms")],
)
def test_a_duration_is_one_of_the_gateway_api(seconds: float, text: str) -> None:
    assert milliseconds(seconds) == text


def conditions(spec: dict[str, Any], reading: GatewayApiReading | None, status: Status = SPLIT) -> dict[str, Any]:
    stated = route(observation(spec, reading, status), typed(spec), status).conditions
    return {kind: (state, reason, message) for kind, state, reason, message in stated}


def test_a_missing_crd_names_the_field_and_what_to_install() -> None:
    spec = spec_of()
    reading = GatewayApiReading(Features())
    state, reason, message = conditions(spec, reading)[ACCEPTED]
    assert (state, reason) == ("False", "NotInstalled")
    assert message.startswith("spec.traffic.provider: ")
    assert "install the Gateway API's CRDs" in message
    assert route(observation(spec, reading, SPLIT), typed(spec), SPLIT).manifests == ()
    plan = decide(observation(spec, reading, Status()), NOW)
    assert [child["kind"] for child in plan.children] == ["Deployment", "Service", "PodDisruptionBudget"]
    assert "NotInstalled" in [event.reason for event in plan.events]
    again = decide(observation(spec, reading, plan.status), NOW + 5)
    assert "NotInstalled" not in [event.reason for event in again.events], "an Event once, not at every decision"


def test_an_explicit_pool_is_never_replaced_silently() -> None:
    gateway_api = spec_of()["traffic"]["gatewayAPI"]
    spec = spec_of({"gatewayAPI": {**gateway_api, "backend": "InferencePool"}})
    state, _, message = conditions(spec, GatewayApiReading(NEW))[ACCEPTED]
    assert (state, message.split(":")[0]) == ("False", "spec.traffic.gatewayAPI.backend")
    spec = spec_of({"gatewayAPI": {**gateway_api, "backend": "Service"}})
    made = route(observation(spec, GatewayApiReading(POOLS), SPLIT), typed(spec), SPLIT).manifests
    assert [manifest["kind"] for manifest in made] == ["HTTPRoute"]


def test_somebody_elses_route_is_left_alone() -> None:
    reading = GatewayApiReading(NEW, LiveObject("chat", "r-1", "somebody", 1))
    assert conditions(spec_of(), reading)[ACCEPTED][:2] == ("False", "NameTaken")
    spec = spec_of()
    assert route(observation(spec, reading, SPLIT), typed(spec), SPLIT).manifests == ()
    plain = {"model": {"source": "file:///m"}}
    assert route(observation(plain, reading, SPLIT), typed(plain), SPLIT).withdrawn == ()


def answer(**changes: Any) -> ParentStatus:
    return replace(ParentStatus("edge", "infra", "", None, 4, True, True, "", ""), **changes)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((), ("Unknown", "Pending")),
        ((answer(),), ("True", "Accepted")),
        ((answer(observed_generation=3),), ("Unknown", "Pending")),
        ((answer(observed_generation=None),), ("True", "Accepted")),
        ((answer(parent="other"),), ("Unknown", "Pending")),
        ((answer(accepted=False, reason="NotAllowedByListeners", message="no"),), ("False", "NotAllowedByListeners")),
        ((answer(resolved=False, reason="BackendNotFound", message="no"),), ("False", "BackendNotFound")),
    ],
)
def test_reports_of_gateways_become_conditions(answers: tuple[ParentStatus, ...], expected: tuple[str, str]) -> None:
    state, reason, message = conditions(spec_of(), GatewayApiReading(NEW, LiveObject("chat", "r", "u-1", 4, answers)))[
        ACCEPTED
    ]
    assert (state, reason) == expected
    if state == "False":
        assert message.startswith("spec.traffic.gatewayAPI.parentRefs[0]: Gateway edge: ")


def test_a_pool_that_its_gateway_refuses_is_a_condition() -> None:
    refused = ParentStatus(
        "edge", "infra", "", None, 1, True, False, "InvalidExtensionRef", "no Service pagefleet-gateway"
    )
    reading = GatewayApiReading(
        POOLS, LiveObject("chat", "r", "u-1", 4, (answer(),)), LiveObject("chat", "p", "u-1", 1, (refused,))
    )
    state, reason, message = conditions(spec_of(), reading)[ACCEPTED]
    assert (state, reason) == ("False", "InvalidExtensionRef")
    assert "pagefleet-gateway" in message


@pytest.mark.parametrize(
    ("traffic", "served", "named"),
    [
        ({"queue": {"timeout": "5s"}}, NEW, "spec.traffic.queue"),
        ({"retries": 1}, NEW, "spec.traffic.retries"),
        ({"rateLimits": [{"header": "a", "requestsPerMinute": 1}]}, NEW, "spec.traffic.rateLimits"),
        ({"fallback": {"service": "small"}}, POOLS, "spec.traffic.fallback"),
        ({}, NEW, "spec.rollout.guard"),
        ({}, OLD, "spec.traffic.timeout"),
    ],
)
def test_a_field_without_effect_is_named(traffic: dict[str, Any], served: Features, named: str) -> None:
    state, _, message = conditions(spec_of(traffic), GatewayApiReading(served))[ENFORCED]
    assert state == "False"
    assert named in message


def test_a_guard_that_does_not_listen_to_gateways_is_not_without_effect() -> None:
    latency = [{"signal": "ttft", "source": "Engine"}, {"signal": "itl"}]
    for errors, named in (("Prometheus", False), ("Gateway", True)):
        guard = {"latency": latency, "errors": {"maxRate": "1%", "source": errors}}
        spec = spec_of(steps=[{"weight": 10}], guard=guard)
        assert ("spec.rollout.guard" in conditions(spec, GatewayApiReading(NEW))[ENFORCED][2]) is named
    guard = {"latency": latency, "errors": {}, "throughput": {"maxDecrease": "15%"}}
    spec = spec_of(steps=[{"weight": 10}], guard=guard)
    assert "spec.rollout.guard" in conditions(spec, GatewayApiReading(NEW))[ENFORCED][2], "only gateways measure it"


def test_behind_a_picker_queues_and_limits_have_their_effect() -> None:
    spec = spec_of({"queue": {"timeout": "5s"}, "circuitBreaker": {"maxRequestsPerPod": 4}, "retries": 1})
    assert conditions(spec, GatewayApiReading(POOLS))[ENFORCED][0] == "True"


def test_a_revision_without_a_ready_pod_leaves_its_share_to_the_other() -> None:
    spec = spec_of()
    observed = observation(
        spec, GatewayApiReading(NEW), SPLIT, revisions={"aaaaaaaa": pods("aaaaaaaa"), "bbbbbbbb": pods("b", 0)}
    )
    (made,) = route(observed, typed(spec), SPLIT).manifests
    backends = made["spec"]["rules"][-1]["backendRefs"]  # type: ignore[index]
    assert [(ref["name"], ref["weight"]) for ref in backends] == [("chat-aaaaaaaa", 100)]


def test_nothing_serves_nothing_is_routed_to_services() -> None:
    spec = spec_of()
    assert route(observation(spec, GatewayApiReading(NEW), Status()), typed(spec), Status()).manifests == ()
    made = route(observation(spec, GatewayApiReading(POOLS), Status()), typed(spec), Status()).manifests
    assert [manifest["kind"] for manifest in made] == ["InferencePool", "HTTPRoute"], "its picker holds requests"


def promoted(reading: GatewayApiReading | None, written: str = "Service", **gateway_api: str) -> Plan:
    """Decide when revision aaaaaaaa has lost its traffic to the spec's own. A route to such backends was written."""
    spec = spec_of()
    spec["traffic"]["gatewayAPI"] |= gateway_api
    target = revision_hash(typed(spec).raw)
    drained = (DrainRecord("aaaaaaaa", NOW - WEIGHTS_PROPAGATE_SECONDS),)
    status = Status(stable=target, traffic=(Weight(target, 100),), route=RouteRecord(written), draining=drained)
    revisions = {target: pods(target), "aaaaaaaa": pods("aaaaaaaa")}
    return decide(observation(spec, reading, status, revisions=revisions), NOW)


def read_as(*answers: ParentStatus, **more: Any) -> GatewayApiReading:
    return GatewayApiReading(more.pop("features", NEW), LiveObject("chat", "r", "u-1", 4, answers), **more)


def test_nothing_is_deleted_before_the_gateway_has_seen_the_new_split() -> None:
    assert promoted(read_as(answer(observed_generation=3))).delete == ()
    assert promoted(read_as(answer(observed_generation=3), answer(parent="other"))).delete == ()
    assert promoted(read_as(answer(observed_generation=4))).delete == ("aaaaaaaa",)
    assert promoted(read_as()).delete == ("aaaaaaaa",), "no gateway has ever served it"


@pytest.mark.parametrize(
    ("reading", "gateway_api"),
    [
        (None, {}),
        (read_as(answer()), {"backend": "InferencePool"}),
        (read_as(answer(), features=POOLS, pool=ANOTHERS), {"backend": "InferencePool"}),
    ],
)
def test_nothing_is_deleted_while_a_route_to_services_cannot_be_written(
    reading: GatewayApiReading | None, gateway_api: dict[str, str]
) -> None:
    """It still leads to the Service of the revision that has lost its traffic, and clients would get 503."""
    plan = promoted(reading, **gateway_api)
    assert plan.delete == ()
    stated = next(one.message for one in plan.status.conditions if one.type == ACCEPTED)
    assert stated.endswith("revision aaaaaaaa keeps its pods until the route can be written")
    assert promoted(reading, "InferencePool", **gateway_api).delete == ("aaaaaaaa",), "its picker splits"


@pytest.mark.parametrize("backend", [{"backend": "Service"}, {}], ids=str)
def test_a_pool_of_the_name_that_is_anothers_is_not_in_the_way_of_services(backend: dict[str, str]) -> None:
    spec, reading = spec_of(), read_as(answer(), features=POOLS, pool=ANOTHERS)
    spec["traffic"]["gatewayAPI"] |= backend
    made = route(observation(spec, reading, SPLIT), typed(spec), SPLIT)
    assert [manifest["kind"] for manifest in made.manifests] == ["HTTPRoute"]
    assert (made.withdrawn, made.record, made.conditions[0][1]) == ((), RouteRecord("Service"), "True")


def test_the_provider_changed_back_takes_the_route_away_and_then_forgets_it() -> None:
    plain = {"model": {"source": "file:///m"}}
    target = revision_hash(typed(plain).raw)
    status = Status(stable=target, traffic=(Weight(target, 100),), route=RouteRecord("InferencePool"))
    reading = GatewayApiReading(POOLS, LiveObject("chat", "r", "u-1", 4), LiveObject("chat", "p", "u-1", 1))
    first = decide(observation(plain, reading, status), NOW)
    assert [(gone.kind, gone.uid) for gone in first.withdrawn] == [("HTTPRoute", "r"), ("InferencePool", "p")]
    assert first.status.route == RouteRecord("InferencePool")
    after = decide(observation(plain, GatewayApiReading(POOLS), first.status), NOW + 5)
    assert after.withdrawn == ()
    assert after.status.route is None
    assert ACCEPTED not in {condition.type for condition in after.status.conditions}


def test_an_invalid_spec_keeps_the_route_and_its_conditions() -> None:
    condition = Condition(ACCEPTED, "True", "Accepted", "fine", 5.0, 2)
    status = replace(SPLIT, conditions=(condition,), route=RouteRecord("Service"))
    plan = decide(replace(observation({"traffic": 7}, GatewayApiReading(NEW), status), generation=9), NOW)
    assert replace(condition, observed_generation=9) in plan.status.conditions
    assert {condition.observed_generation for condition in plan.status.conditions} == {9}
    assert (plan.routes, plan.withdrawn, plan.status.route) == ((), (), RouteRecord("Service"))


def test_a_reading_that_failed_changes_nothing() -> None:
    status = replace(SPLIT, route=RouteRecord("Service"))
    assert conditions(spec_of(), None, status)[ACCEPTED][0] == "Unknown"
    condition = Condition(ACCEPTED, "True", "Accepted", "fine", 5.0, 2)
    before = replace(status, conditions=(condition,))
    assert conditions(spec_of(), None, before)[ACCEPTED] == ("True", "Accepted", "fine")
    made = route(observation(spec_of(), None, status), typed(spec_of()), status)
    assert (made.manifests, made.withdrawn, made.record) == ((), (), RouteRecord("Service"))


def test_a_pool_is_deleted_only_when_the_gateway_has_seen_the_route_without_it() -> None:
    gateway_api = spec_of()["traffic"]["gatewayAPI"]
    spec = spec_of({"gatewayAPI": {**gateway_api, "backend": "Service"}})
    pool = LiveObject("chat", "p", "u-1", 1)
    behind = GatewayApiReading(POOLS, LiveObject("chat", "r", "u-1", 4, (answer(observed_generation=3),)), pool)
    assert route(observation(spec, behind, SPLIT), typed(spec), SPLIT).withdrawn == ()
    ahead = replace(behind, route=LiveObject("chat", "r", "u-1", 4, (answer(),)))
    assert [gone.uid for gone in route(observation(spec, ahead, SPLIT), typed(spec), SPLIT).withdrawn] == ["p"]
