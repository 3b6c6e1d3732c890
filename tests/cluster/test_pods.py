"""Protects spec.pod on a real API server, whose admission checks the names: the pods have every field, an idle operator writes nothing, and
no pods are made of a field that this server, Kubernetes 1.20, does not know."""

from __future__ import annotations

from typing import Any

import pytest
from support.cluster.plane import Plane
from support.cluster.services import NAMESPACE, audited, decided_more, service, settled

from pagefleet_local.fleet.kubectl import until

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
NAME = "required"
POD = {
    "labels": {"kueue.x-k8s.io/queue-name": "serving", "team": "search"},
    "annotations": {"example.com/owner": "search@example.com"},
    "imagePullSecrets": [{"name": "registry"}],
    "serviceAccountName": "models",
    "priorityClassName": "interactive",
    "schedulerName": "default-scheduler",
    "runtimeClassName": "sandbox",
}
TOKEN = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
OBJECTS = (
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "models", "namespace": NAMESPACE}},
    {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "interactive"}, "value": 1000},
    {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "sandbox"}, "handler": "runc"},
)


async def test_the_pods_have_what_the_cluster_requires_and_nothing_is_written_twice(plane: Plane) -> None:
    for made in OBJECTS:
        await plane.kubectl.apply(made)
    document = service(NAME)
    document["spec"]["pod"] = POD
    document["spec"]["engine"]["env"] = [TOKEN]
    await plane.kubectl.apply(document)
    state = await settled(plane, NAME, "it is Ready", lambda v: v.is_true("Ready"))
    await settled(plane, NAME, "nothing is left to do", lambda v: v.condition("Scaling")["status"] == "False")
    found = await plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")
    [pod] = [
        one
        for one in found["items"]
        if one["metadata"]["name"].startswith(f"{NAME}-") and "deletionTimestamp" not in one["metadata"]
    ]
    fields = {name: value for name, value in POD.items() if name not in ("labels", "annotations")}
    assert fields.items() <= pod["spec"].items()
    assert pod["spec"]["priority"] == 1000
    assert TOKEN in pod["spec"]["containers"][0]["env"]
    assert not any(volume.get("projected") for volume in pod["spec"]["volumes"]), "the account's token is mounted"
    deployment = await plane.kubectl.get("deployment", f"{NAME}-{state.stable}", NAMESPACE)
    assert deployment is not None
    for metadata in (pod["metadata"], deployment["metadata"]):
        assert POD["labels"].items() <= metadata["labels"].items()
        assert POD["annotations"].items() <= metadata["annotations"].items()

    def writes() -> int:
        return sum(str(event["objectRef"].get("name", "")).startswith(f"{NAME}-") for event in audited(plane))

    before = writes()
    await decided_more(plane, NAME)
    assert writes() == before


async def reported(plane: Plane, name: str, reason: str) -> list[str]:
    """Return the messages of a service's Events with this reason."""
    listed = await plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/events", fieldSelector=f"involvedObject.name={name}")
    return [event["message"] for event in listed["items"] if event["reason"] == reason]


async def children(plane: Plane, name: str) -> list[str]:
    listed = await plane.kubectl.run(
        "get",
        "deployments,services,poddisruptionbudgets",
        "-n",
        NAMESPACE,
        "-l",
        f"pagefleet.io/service={name}",
        "-o",
        "name",
    )
    return listed.out.split()


IMAGE = {"model": {"source": f"oci://registry.example/llama@sha256:{'0a' * 32}/models"}}
CLAIM = {"pod": {"resourceClaims": [{"name": "port", "resourceClaimName": "fabric"}]}, "resources": {}}


@pytest.mark.parametrize(
    ("name", "given", "field", "dropped"),
    [
        ("image", IMAGE, "spec.model.source", "volumes[].image"),
        ("claim", CLAIM, "spec.pod.resourceClaims", "resourceClaims"),
    ],
)
async def test_no_pods_are_made_without_a_field_that_the_server_drops(
    plane: Plane, name: str, given: dict[str, Any], field: str, dropped: str
) -> None:
    document = service(name)
    document["spec"] |= given
    await plane.kubectl.apply(document)
    state = await settled(
        plane, name, "a condition names the field", lambda v: v.condition("Degraded")["reason"] == "PodFieldDropped"
    )
    assert f"{field}: this API server drops {dropped} of pods" in state.condition("Ready")["message"]
    await decided_more(plane, name)
    assert await children(plane, name) == []
    assert len(await reported(plane, name, "PodFieldDropped")) == 1
    probes = [one for one in audited(plane) if one["objectRef"].get("name") == "pagefleet-dry-run"]
    assert all("dryRun=All" in one["requestURI"] for one in probes)
    await plane.kubectl.apply(service(name))
    await settled(plane, name, "without the field it has pods", lambda v: v.is_true("Ready"))


async def test_a_field_that_the_server_refuses_is_named_by_an_event(plane: Plane) -> None:
    document = service("undeclared")
    document["spec"]["placement"] = {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "minDomains": 2,
            }
        ]
    }
    await plane.kubectl.apply(document)

    async def told() -> bool:
        return any("minDomains" in message for message in await reported(plane, "undeclared", "ChildRefused"))

    await until(told, timeout=40, what="an Event names the field")
    assert await children(plane, "undeclared") == []
    document["spec"]["placement"] = {}
    await plane.kubectl.apply(document)
    await settled(plane, "undeclared", "without the field it has pods", lambda v: v.is_true("Ready"))
