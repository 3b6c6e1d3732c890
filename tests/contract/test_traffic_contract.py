"""Protects spec.traffic between the CRD and the gateway that reads it: every field of the schema has an effect on what
the gateway parses, the bounds and the defaults are the gateway's own, and CEL and Python agree."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import celpy
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_contract.names import SERVICE_LABEL
from pagefleet_contract.quantity import seconds
from pagefleet_contract.traffic import MAX_RETRIES
from pagefleet_gateway.cluster.objects import service_from
from pagefleet_gateway.cluster.service import QueueBounds, RateLimit, Service
from pagefleet_gateway.envoy.timeouts import REQUEST_SECONDS
from pagefleet_gateway.settings import settings_from
from pagefleet_gateway.watching import pools
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.rules.traffic import OWN_FALLBACK_CEL
from pagefleet_operator.domain.spec.schema import structure
from pagefleet_operator.domain.spec.schema.traffic import GATEWAY_API, TRAFFIC
from pagefleet_operator.domain.spec.traffic import EndpointPicker, Parent
from pagefleet_operator.domain.status.gateway_api import POOL_GROUP, FallbackReading
from pagefleet_operator.domain.traffic import fallback
from pagefleet_operator.observe import SYSTEM_GATEWAYS

CHECKOUT = Path(__file__).resolve().parents[2]

FULL: dict[str, Any] = {
    "timeout": "1m30s",
    "firstTokenTimeout": "10s",
    "nextTokenTimeout": "2s",
    "retries": 4,
    "circuitBreaker": {"maxRequestsPerPod": 12},
    "queue": {"timeout": "45s", "maxRequests": 100, "maxBytes": 2048, "tenantHeader": "X-Tenant"},
    "priorities": [
        {
            "name": "paid",
            "header": {"X-Plan": "paid", "x-region": "eu"},
            "queue": {"timeout": "20s", "maxRequests": 10, "maxBytes": 1024},
        }
    ],
    "rateLimits": [
        {"header": "Authorization", "requestsPerMinute": 60},
        {"header": "x-tenant", "tokensPerMinute": 9000, "requestsPerMinute": 5},
    ],
    "fallback": {"service": "small"},
    "peak": {"maxOutputTokens": 512},
}
# Of the operator alone: which gateway splits traffic is not the gateway's to know.
OPERATORS = {"provider", "gatewayAPI"}


def read(traffic: dict[str, Any]) -> Service:
    return service_from({"metadata": {"namespace": "n", "name": "chat"}, "spec": {"traffic": traffic}})


def test_the_gateway_understands_every_field_as_the_operator_does() -> None:
    service = read(FULL)
    parsed = parse({"model": {"source": "file:///m"}, "traffic": FULL})
    assert isinstance(parsed, Spec), parsed
    ours = parsed.traffic
    assert (ours.timeout, ours.retries, ours.fallback) == (service.timeout_seconds, service.retries, service.fallback)
    assert (ours.first_token_timeout, ours.next_token_timeout) == (10, 2)
    assert (service.first_token_seconds, service.next_token_seconds) == (10, 2)
    assert ours.max_requests_per_pod == service.pod_limit == 12
    assert ours.peak_output_tokens == service.peak_output_tokens == 512
    queue = ours.queue
    assert (queue.timeout, queue.max_requests, queue.max_bytes) == (45, 100, 2048)
    assert (service.hold_seconds, service.hold_requests, service.hold_bytes) == (45, 100, 2048)
    assert queue.tenant_header.lower() == service.tenant_header
    assert service.priorities == ((("x-plan", "paid"), ("x-region", "eu")),)
    assert [dict(entry.header) for entry in ours.priorities] == [{"X-Plan": "paid", "x-region": "eu"}]
    own = ours.priorities[0].queue
    assert (own.timeout, own.max_requests, own.max_bytes) == (20, 10, 1024)
    assert service.priority_bounds == (QueueBounds(20, 10, 1024),)
    assert service.limits == (RateLimit("authorization", 60, 0), RateLimit("x-tenant", 5, 9000))
    assert [(e.header.lower(), e.requests_per_minute or 0, e.tokens_per_minute or 0) for e in ours.rate_limits] == [
        (limit.header, limit.requests_per_minute, limit.tokens_per_minute) for limit in service.limits
    ]


def leaves(part: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(part, dict):
        return [leaf for name, sub in part.items() for leaf in leaves(sub, (*path, name))]
    if isinstance(part, list):
        return [leaf for index, sub in enumerate(part) for leaf in leaves(sub, (*path, index))]
    return [path]


@pytest.mark.parametrize("path", [p for p in leaves(FULL) if p[-1] != "name"], ids=lambda p: ".".join(map(str, p)))
def test_no_field_is_without_effect(path: tuple[Any, ...]) -> None:
    """`priorities[].name` alone is for people."""
    changed = copy.deepcopy(FULL)
    place = changed
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    assert read(changed) != read(FULL)


def test_the_full_example_has_every_field_of_the_schema() -> None:
    def absent(part: Any, described: dict[str, Any], path: str) -> list[str]:
        missing = []
        for name, sub in described.get("properties", {}).items():
            if name not in part:
                missing.append(f"{path}{name}")
                continue
            inner, value = sub.get("items", sub), part[name]
            merged = {k: v for entry in value for k, v in entry.items()} if isinstance(value, list) else value
            missing += absent(merged, inner, f"{path}{name}.")
        return missing

    assert absent({**FULL, **dict.fromkeys(OPERATORS)}, without(TRAFFIC, OPERATORS), "") == []


def without(schema: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {**schema, "properties": {k: v for k, v in schema["properties"].items() if k not in names}}


def test_defaults_are_the_gateways_own() -> None:
    """What the API server fills in changes nothing of what the gateway would do without it."""
    filled = structure.filled({}, TRAFFIC)
    assert seconds(filled["timeout"]) == REQUEST_SECONDS
    bare, filled_in = read({}), read(filled)
    assert bare.timeout_seconds is None
    assert (filled_in.retries, filled_in.hold_requests, filled_in.hold_bytes) == (
        bare.retries,
        bare.hold_requests,
        bare.hold_bytes,
    )
    assert (
        filled_in.hold_seconds,
        filled_in.pod_limit,
        filled_in.limits,
        filled_in.priorities,
        filled_in.fallback,
    ) == (0, 0, (), (), "")


def test_bounds_are_the_gateways_own() -> None:
    most = structure.filled({}, TRAFFIC) | {"retries": MAX_RETRIES, "queue": {"timeout": "5m"}}
    assert (read(most).retries, read(most).hold_seconds) == (10, 300)


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"tmeout": "1s"}, "spec.traffic.tmeout"),
        ({"timeout": "0s"}, "spec.traffic.timeout"),
        ({"timeout": "25h"}, "spec.traffic.timeout"),
        ({"retries": 11}, "spec.traffic.retries"),
        ({"firstTokenTimeout": "11m"}, "spec.traffic.firstTokenTimeout"),
        ({"nextTokenTimeout": "0ms"}, "spec.traffic.nextTokenTimeout"),
        ({"circuitBreaker": {}}, "spec.traffic.circuitBreaker.maxRequestsPerPod"),
        ({"circuitBreaker": {"maxRequestsPerPod": 0}}, "spec.traffic.circuitBreaker.maxRequestsPerPod"),
        ({"circuitBreaker": {"maxRequestsPerPod": 1, "maxTokens": 1}}, "spec.traffic.circuitBreaker.maxTokens"),
        ({"queue": {"timeout": "5m1s"}}, "spec.traffic.queue.timeout"),
        ({"queue": {"timeout": "0s"}}, "spec.traffic.queue.timeout"),
        ({"queue": {"maxRequests": 4097}}, "spec.traffic.queue.maxRequests"),
        ({"queue": {"maxBytes": 268435457}}, "spec.traffic.queue.maxBytes"),
        ({"queue": {"tenantHeader": "x tenant"}}, "spec.traffic.queue.tenantHeader"),
        ({"queue": {"tenantHeader": "x-pagefleet-tenant"}}, "spec.traffic.queue.tenantHeader"),
        ({"priorities": [{"header": {"a": "b"}}]}, "spec.traffic.priorities[0].name"),
        ({"priorities": [{"name": "a"}]}, "spec.traffic.priorities[0].header"),
        ({"priorities": [{"name": "a", "header": {}}]}, "spec.traffic.priorities[0].header"),
        ({"priorities": [{"name": "a", "header": {"X-Envoy-A": "b"}}]}, "spec.traffic.priorities[0].header"),
        ({"priorities": [{"name": "a", "header": {"a b": "b"}}]}, "spec.traffic.priorities[0].header"),
        ({"priorities": [{"name": "a", "header": {"a": "b"}}] * 2}, "spec.traffic.priorities"),
        ({"priorities": [{"name": "a", "header": {"a": "b"}, "queue": {}}]}, "spec.traffic.priorities[0].queue"),
        (
            {"priorities": [{"name": "a", "header": {"a": "b"}, "queue": {"maxRequests": 257}}]},
            "spec.traffic.priorities",
        ),
        ({"rateLimits": [{"header": "a"}]}, "spec.traffic.rateLimits"),
        ({"rateLimits": [{"requestsPerMinute": 1}]}, "spec.traffic.rateLimits[0].header"),
        ({"rateLimits": [{"header": "a", "requestsPerMinute": 0}]}, "spec.traffic.rateLimits[0].requestsPerMinute"),
        ({"rateLimits": [{"header": "x-gateway-a", "tokensPerMinute": 1}]}, "spec.traffic.rateLimits[0].header"),
        ({"fallback": {}}, "spec.traffic.fallback.service"),
        ({"fallback": {"service": "Small"}}, "spec.traffic.fallback.service"),
        ({"provider": "GatewayAPI"}, "spec.traffic.gatewayAPI"),
        ({"provider": "Istio"}, "spec.traffic.provider"),
        ({"gatewayAPI": {"parentRefs": [{"name": "a"}]}}, "spec.traffic.gatewayAPI"),
        ({"provider": "GatewayAPI", "gatewayAPI": {"parentRefs": []}}, "spec.traffic.gatewayAPI.parentRefs"),
        ({"provider": "GatewayAPI", "gatewayAPI": {}}, "spec.traffic.gatewayAPI.parentRefs"),
        (
            {"provider": "GatewayAPI", "gatewayAPI": {"parentRefs": [{"name": "a"}], "hostnames": ["A_b"]}},
            "spec.traffic.gatewayAPI.hostnames[0]",
        ),
    ],
)
def test_each_mistake_is_refused_by_its_field(part: dict[str, Any], field: str) -> None:
    parsed = parse({"model": {"source": "file:///m"}, "traffic": part})
    assert not isinstance(parsed, Spec)
    assert field in [error.field for error in parsed.errors]


NAMES = st.sampled_from(["a", "b"])
CEL = celpy.Environment()  # sets the recursion limit, which hypothesis watches
LOOP_OF_ONE = CEL.program(CEL.compile(OWN_FALLBACK_CEL))


@given(NAMES, st.fixed_dictionaries({}, optional={"traffic": st.fixed_dictionaries(
    {}, optional={"fallback": st.fixed_dictionaries({"service": NAMES})})}))  # fmt: skip
def test_cel_refuses_just_what_the_condition_calls_a_loop_of_one(name: str, spec: dict[str, Any]) -> None:
    document = celpy.json_to_cel({"metadata": {"name": name}, "spec": spec})
    named = spec.get("traffic", {}).get("fallback", {}).get("service")
    stated = fallback.state("n", name, "", (FallbackReading(named, exists=True),) if named else ())
    assert bool(LOOP_OF_ONE.evaluate({"self": document})) == (stated is None or stated[2] != "FallbackLoops")


@pytest.fixture(scope="module")
def picker_manifests() -> list[dict[str, Any]]:
    """Return the output of `kubectl kustomize manifests/picker`."""
    command = [str(Path(sys.executable).parent / "kubectl"), "kustomize", str(CHECKOUT / "manifests/picker")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [document for document in yaml.safe_load_all(printed) if document]


def test_the_shipped_picker_is_the_one_that_the_operators_pools_name(picker_manifests: list[dict[str, Any]]) -> None:
    by_kind = {document["kind"]: document for document in picker_manifests}
    picker = EndpointPicker()
    service, deployment = by_kind["Service"], by_kind["Deployment"]
    assert service["metadata"]["name"] == picker.service
    ports = {port["name"]: port for port in service["spec"]["ports"]}
    assert ports["picker"]["port"] == picker.port
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {entry["name"]: entry.get("value", "team-a") for entry in container["env"]}
    read = settings_from(environment)
    assert (read.picker_port, read.pools, read.namespace) == (9003, picker.service, "team-a")
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert named[ports["picker"]["targetPort"]] == read.picker_port
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert f"app.kubernetes.io/name={labels['app.kubernetes.io/name']}" == SYSTEM_GATEWAYS, "its windows are read"
    assert {kind for kind in by_kind if kind.startswith("Cluster")} == set(), "it may read its own namespace only"


def test_the_picker_offers_the_defaults_of_the_schema() -> None:
    filled = structure.filled({"parentRefs": [{"name": "edge"}]}, GATEWAY_API)
    assert EndpointPicker(filled["picker"]["service"], filled["picker"]["port"]) == EndpointPicker()
    assert filled["picker"]["failureMode"] == EndpointPicker().failure_mode
    assert filled["parentRefs"] == [{"name": "edge", "group": Parent("edge").group, "kind": Parent("edge").kind}]
    assert (pools.GROUP, pools.SERVICE_LABEL) == (POOL_GROUP, SERVICE_LABEL)
