"""Protects spec.pod on a real API server, whose admission checks the names: the pods have every field, and an idle operator writes nothing."""

from __future__ import annotations

import pytest
from support.cluster.plane import Plane
from support.cluster.services import NAMESPACE, audited, decided_more, service, settled

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
