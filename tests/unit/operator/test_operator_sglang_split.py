"""Protects the pods of a service of SGLang whose prompts are computed by pods of their own: the flags of both kinds of engines, as SGLang has
released them, the variable by which they find their address, the sidecar's protocol, and that the gateway names a prefill pod for every
prompt."""

from __future__ import annotations

from typing import Any

from support.golden_manifests import child_of
from support.released_engines import facts

from pagefleet_contract.names import ENGINE_ANNOTATION, KV_TRANSFER_PORT
from pagefleet_gateway.cluster.engines import engine_from
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.prefill import prefill_deployment
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.status.gateway_api import Features, GatewayApiReading
from pagefleet_operator.domain.status.observation import Observation, PodReading, RevisionReading
from pagefleet_operator.domain.status.status import Status, Weight
from pagefleet_operator.domain.traffic.gateway_api import ENFORCED, route
from pagefleet_sidecar.at_once import AtOnce
from pagefleet_sidecar.main import PROTOCOLS, parser

SPEC = {
    "model": {"source": "pvc://weights/llama"},
    "engine": {"runtime": "sglang", "disaggregation": {"prefill": {"replicas": 2}}},
    "resources": {"accelerator": {"name": "nvidia.com/gpu"}},
}
CHILD = child_of(SPEC)


def containers(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = manifest["spec"]["template"]["spec"]["containers"]
    return found


def test_engines_get_their_role_and_meet_at_the_prefill_pods_port() -> None:
    decode, _ = containers(deployment(CHILD, 1))
    (prefill,) = containers(prefill_deployment(CHILD, 1))
    own = [one for one in prefill["args"] if one not in decode["args"]]
    assert own == ["--port=8000", "--disaggregation-mode=prefill"]
    assert "--disaggregation-mode=decode" in decode["args"]
    for args in (decode["args"], prefill["args"]):
        assert f"--disaggregation-bootstrap-port={KV_TRANSFER_PORT}" in args
        assert "--disaggregation-transfer-backend=nixl" in args
    flags = facts("sglang")["flags"]
    assert {"decode", "prefill"} <= set(flags["--disaggregation-mode"])
    assert "nixl" in flags["--disaggregation-transfer-backend"] and "--disaggregation-bootstrap-port" in flags
    address = {"name": "SGLANG_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    assert address in decode["env"] and address in prefill["env"]


def test_without_disaggregation_nothing_of_it_is_there() -> None:
    engine = {"runtime": "sglang"}
    (alone,) = containers(deployment(child_of({**SPEC, "engine": engine}), 1))
    assert not any("disaggregation" in one for one in alone["args"])
    assert all(one["name"] != "SGLANG_HOST_IP" for one in alone["env"])


def test_another_transfer_backend_may_be_named() -> None:
    engine = {**SPEC["engine"], "args": ["--disaggregation-transfer-backend=mooncake"]}
    args = containers(deployment(child_of({**SPEC, "engine": engine}), 1))[0]["args"]
    named = [one for one in args if one.startswith("--disaggregation-transfer-backend=")]
    assert named[-1].endswith("=mooncake")  # the last one counts


def test_the_sidecar_sends_both_legs_at_once() -> None:
    _, sidecar = containers(deployment(CHILD, 1))
    assert PROTOCOLS[parser().parse_args(sidecar["args"]).protocol] is AtOnce


def test_the_gateway_names_a_prefill_pod_for_every_prompt() -> None:
    described = prefill_deployment(CHILD, 1)["spec"]["template"]["metadata"]["annotations"]
    assert engine_from(described[ENGINE_ANNOTATION]).prefill_from == 0


def test_behind_a_route_to_services_nobody_names_a_prefill_pod_and_clients_cannot() -> None:
    """SGLang's decode pods answer 503 then, which a condition says beforehand. What a client says is removed in every rule."""
    traffic = {"provider": "GatewayAPI", "gatewayAPI": {"parentRefs": [{"name": "edge"}], "hostnames": ["a.example"]}}
    raw = {**SPEC, "traffic": traffic, "rollout": {"route": {"header": {"x-canary": "yes"}}}}
    spec, reading = parse(raw), GatewayApiReading(Features("v1"))
    assert isinstance(spec, Spec)
    status = Status(stable="a", canary="b", traffic=(Weight("a", 90), Weight("b", 10)))
    ready = {name: RevisionReading(name, 1, (PodReading(name, True, False, 0, 0),)) for name in ("a", "b")}
    made = route(Observation("ns", "chat", "u", 1, raw, status, ready, gateway_api=reading), spec, status)
    enforced = next(message for kind, _, _, message in made.conditions if kind == ENFORCED)
    assert "spec.engine.disaggregation (without a picker its pods answer 503)" in enforced
    [manifest] = made.manifests
    rules = manifest["spec"]["rules"]  # type: ignore[index]
    assert len(rules) == 2
    for rule in rules:
        [removed] = [one["requestHeaderModifier"] for one in rule["filters"] if "requestHeaderModifier" in one]
        assert removed == {"remove": ["x-pagefleet-client", "x-pagefleet-prefill"]}
