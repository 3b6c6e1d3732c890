"""Protects the refusal of values that can never do what they say, on a real API server: it names the field and what is allowed
when such an object is written. One that is stored already keeps its pods, and a condition or an Event names the field."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from support.cluster.plane import Plane
from support.cluster.services import NAMESPACE, ready, removed, service, settled, view

from pagefleet_local.fleet.kubectl import until
from pagefleet_operator import crd
from pagefleet_operator.kube.client import ApiError

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferenceservices.pagefleet.io"
SERVICES = f"/apis/pagefleet.io/v1alpha1/namespaces/{NAMESPACE}/inferenceservices"
SIGNAL = {"signal": "ttft", "confidence": "100%"}
# By the structure of the schema, which every API server knows.
STRUCTURAL: list[tuple[dict[str, Any], str, str]] = [
    ({"rollout": {"guard": {"latency": [SIGNAL]}}}, "confidence", "^[5-9][0-9]"),
    ({"scaling": {"target": {"freeKVPages": "150%"}}}, "spec.scaling.target.freeKVPages", "^[0-9]{1,2}"),
    ({"model": {"servedName": "my --model"}}, "spec.model.servedName", "^[A-Za-z0-9]"),
    ({"engine": {"kvCache": {"pages": 1}}}, "spec.engine.kvCache.pages", "greater than or equal to 2"),
]
# By a rule across fields: where the API server has no CEL, the operator states it.
RULES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"engine": {"kvCache": {"pages": 3}}}, "Degraded", "spec.engine.kvCache.pages", "must hold at least 64 tokens"),
    (
        {"traffic": {"fallback": {"service": "odd"}}},
        "FallbackReady",
        "spec.traffic.fallback.service",
        "another service",
    ),
]


def odd(part: dict[str, Any]) -> dict[str, Any]:
    """Return a service named odd, with the fields of `part` in its spec."""
    document = service("odd")

    def merge(into: dict[str, Any], fields: dict[str, Any]) -> None:
        for name, value in fields.items():
            if isinstance(value, dict) and isinstance(into.get(name), dict):
                merge(into[name], value)
            else:
                into[name] = value

    merge(document["spec"], copy.deepcopy(part))
    return document


@pytest.mark.parametrize(("part", "field", "words"), STRUCTURAL, ids=[case[1] for case in STRUCTURAL])
async def test_the_api_server_refuses_by_the_field(plane: Plane, part: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ApiError) as refused:
        await plane.api.create(SERVICES, odd(part))
    assert refused.value.status == 422
    assert field in refused.value.message
    assert words in refused.value.message


@pytest.mark.parametrize(("part", "kind", "field", "words"), RULES, ids=[case[2] for case in RULES])
async def test_a_rule_across_fields_refuses_or_is_stated_by_the_operator(
    plane: Plane, part: dict[str, Any], kind: str, field: str, words: str
) -> None:
    try:
        await plane.api.create(SERVICES, odd(part))
    except ApiError as error:
        message = error.message
    else:
        state = await settled(
            plane, "odd", f"{kind} is stated", lambda v: words in v.condition(kind).get("message", "")
        )
        message = state.condition(kind)["message"]
        await removed(plane, "odd")
    assert field in message
    assert words in message


def loosened(node: Any) -> Any:
    """Return a schema without patterns and rules, as versions before them had it."""
    if isinstance(node, list):
        return [loosened(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    return {
        name: loosened(entry) for name, entry in node.items() if name not in ("x-kubernetes-validations", "pattern")
    }


async def define(plane: Plane, document: dict[str, Any]) -> None:
    current = await plane.api.get(DEFINITION)
    document["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
    await plane.api.replace(DEFINITION, document)


async def in_force(plane: Plane) -> None:
    """Wait until the API server refuses what the shipped CRD refuses; for a moment after the definition it still accepts it."""

    async def refused() -> bool:
        try:
            await plane.api.create(SERVICES, odd({"scaling": {"target": {"freeKVPages": "150%"}}}))
        except ApiError as error:
            return error.status == 422
        await removed(plane, "odd")
        return False

    await until(refused, timeout=30, what="the shipped CRD refuses 150%")


async def stated(plane: Plane, name: str) -> str:
    """Return what the operator says about a spec that the CRD refuses: by the condition where the API server accepts the status,
    else (before Kubernetes 1.30) by an Event."""
    if (degraded := (await view(plane, name)).condition("Degraded"))["reason"] == "InvalidSpec":
        return degraded["message"]
    fields = f"involvedObject.name={name},reason=StatusRefused"
    events = (await plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/events", fieldSelector=fields))["items"]
    return events[0]["message"] if events else ""


@pytest.mark.parametrize("decided", ["before the CRD is in force", "after"])
async def test_a_stored_object_with_such_a_value_keeps_its_pods_and_its_field_is_named(
    plane: Plane, decided: str
) -> None:
    name = f"stored-{decided.partition(' ')[0]}"
    state = await ready(plane, name)
    definition = yaml.safe_load(crd.rendered())
    await define(plane, loosened(definition))

    async def accepted() -> bool:
        try:
            await plane.api.merge(f"{SERVICES}/{name}", {"spec": {"scaling": {"target": {"freeKVPages": "150%"}}}})
        except ApiError as error:
            if error.status != 422:
                raise
            return False
        return True

    if decided == "after":
        plane.operator.kill()
    try:
        await until(accepted, timeout=30, what="the older CRD accepts 150%")
        if decided != "after":
            state = await settled(plane, name, "is Degraded", lambda v: v.condition("Degraded")["status"] == "True")
    finally:
        try:
            await define(plane, definition)
            await in_force(plane)
        finally:
            if decided == "after":
                await plane.operator.start()

    async def named() -> bool:
        return "spec.scaling.target.freeKVPages" in await stated(plane, name)

    await until(named, timeout=40, what="the condition or an Event names the field")
    kept = await view(plane, name)
    assert kept.condition("Ready")["status"] == "True"
    assert kept.weights == {state.stable: 100}
    pods = await plane.kubectl.run("delete", "pods", "-n", NAMESPACE, "-l", f"pagefleet.io/service={name}")
    assert pods.code == 0

    async def again() -> bool:
        found = await plane.api.get(
            f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=f"pagefleet.io/service={name}"
        )
        conditions = [item["status"].get("conditions", ()) for item in found["items"]]
        return [any(c["type"] == "Ready" and c["status"] == "True" for c in each) for each in conditions] == [True]

    await until(again, timeout=40, what="the pod is made again")
    await plane.api.merge(f"{SERVICES}/{name}", {"spec": {"scaling": {"target": {"freeKVPages": "15%"}}}})
    fixed = await settled(
        plane, name, "Ready", lambda v: v.is_true("Ready") and v.condition("Degraded")["status"] == "False"
    )
    assert fixed.stable == state.stable
    assert fixed.status["replicas"] == 1
