"""LeaderWorkerSets for the tests' API server: the kind's schema, and a controller that makes the pods.

The schema is written from the kind's published reference (https://lws.sigs.k8s.io/docs/reference/leaderworkerset.v1/): the
fields, types, enums and defaults by which an API server checks and prunes an object; no descriptions. Nothing here is
copied from the upstream files. The controller does what the real one does for a group's pods, as far as the operator and
the gateway can see it: names, labels, the variables of every container, one group more or less, a group recreated as a whole.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import aiohttp
from support.cluster.gateway_api_kinds import array, definition, integer, record, root, text

from pagefleet_operator.kube.client import Api, ApiError, Document

GROUP, PLURAL = "leaderworkerset.x-k8s.io", "leaderworkersets"
LABEL = "leaderworkerset.sigs.k8s.io"
SETS, PODS = f"/apis/{GROUP}/v1/{PLURAL}", "/api/v1/pods"
OPEN = {"x-kubernetes-preserve-unknown-fields": True}
COUNT = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
RESTARTS = ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]
PASSING = (ApiError, aiohttp.ClientError, TimeoutError)


def crd() -> Document:
    made: Document = definition(GROUP, "LeaderWorkerSet", PLURAL, {"v1": schema()})
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
             "labelSelectorPath": ".status.hpaPodSelector"}  # fmt: skip
    made["spec"]["versions"][0]["subresources"]["scale"] = scale
    return made


def schema() -> Document:
    template = record({"metadata": {"type": "object", **OPEN}, "spec": {"type": "object", **OPEN}})
    group = record(
        {
            "leaderTemplate": template,
            "workerTemplate": template,
            "size": integer(1, default=1),
            "restartPolicy": text(enum=RESTARTS, default="RecreateGroupOnPodRestart"),
            "subGroupPolicy": {"type": "object", **OPEN},
        },
        "workerTemplate",
    )
    update = record(
        {
            "partition": integer(0, default=0),
            "maxUnavailable": COUNT | {"default": 1},
            "maxSurge": COUNT | {"default": 0},
        }
    )
    strategy = record(
        {"type": text(enum=["RollingUpdate"], default="RollingUpdate"), "rollingUpdateConfiguration": update}
    )
    spec = record(
        {
            "replicas": integer(0, default=1),
            "leaderWorkerTemplate": group,
            "rolloutStrategy": strategy,
            "startupPolicy": text(enum=["LeaderCreated", "LeaderReady"], default="LeaderCreated"),
            "networkConfig": record({"subdomainPolicy": text(enum=["Shared", "UniquePerReplica"])}, "subdomainPolicy"),
        },
        "leaderWorkerTemplate",
    )
    condition = {"type": "object", **OPEN}
    counts = {name: integer(0) for name in ("replicas", "readyReplicas", "updatedReplicas")}
    return root(spec, record({**counts, "hpaPodSelector": text(), "conditions": array(condition, 16)}))


class Controller:
    """Makes and removes the pods of every LeaderWorkerSet, four times a second."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def run(self) -> None:
        """Run the controller, for ever."""
        while True:
            with contextlib.suppress(*PASSING):
                await self.once()
            await asyncio.sleep(0.25)

    async def once(self) -> None:
        listed = await self._api.get(SETS)
        desired = {
            (pod["metadata"]["namespace"], pod["metadata"]["name"]): pod
            for one in listed["items"]
            if "deletionTimestamp" not in one["metadata"]
            for pod in pods(one)
        }
        existing = {
            (item["metadata"]["namespace"], item["metadata"]["name"]): item
            for item in (await self._api.get(PODS, labelSelector=f"{LABEL}/name"))["items"]
        }
        for key, pod in desired.items():
            if key not in existing:
                await self._api.create(f"/api/v1/namespaces/{key[0]}/pods", pod)
        for key, item in existing.items():
            broken = _group(item) in {_group(one) for one in existing.values() if _ended(one)}
            if (key not in desired or broken) and "deletionTimestamp" not in item["metadata"]:
                await self._api.delete(f"/api/v1/namespaces/{key[0]}/pods/{key[1]}", item["metadata"]["uid"])


def pods(one: Document) -> Iterator[Document]:
    """Return the pods of a LeaderWorkerSet: its leaders NAME-GROUP, and their workers NAME-GROUP-INDEX."""
    template = one["spec"]["leaderWorkerTemplate"]
    for group in range(one["spec"]["replicas"]):
        for index in range(template["size"]):
            given = template["workerTemplate"] if index else template.get("leaderTemplate", template["workerTemplate"])
            yield _pod(one, given, group, index, template["size"])


def _pod(one: Document, template: Mapping[str, Any], group: int, index: int, size: int) -> Document:
    name, namespace = one["metadata"]["name"], one["metadata"]["namespace"]
    leader = f"{name}-{group}"
    domain = leader if one["spec"].get("networkConfig", {}).get("subdomainPolicy") == "UniquePerReplica" else name
    variables = {"LWS_LEADER_ADDRESS": f"{leader}.{domain}.{namespace}", "LWS_GROUP_SIZE": str(size),
                 "LWS_WORKER_INDEX": str(index)}  # fmt: skip
    env = [{"name": key, "value": value} for key, value in variables.items()]
    containers = [{**c, "env": [*env, *(c.get("env") or ())]} for c in template["spec"]["containers"]]
    own = {f"{LABEL}/name": name, f"{LABEL}/group-index": str(group), f"{LABEL}/worker-index": str(index)}
    owner = {"apiVersion": f"{GROUP}/v1", "kind": "LeaderWorkerSet", "name": name, "uid": one["metadata"]["uid"],
             "controller": True}  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{leader}-{index}" if index else leader,
            "namespace": namespace,
            "labels": {**template["metadata"].get("labels", {}), **own},
            "annotations": {f"{LABEL}/size": str(size)},
            "ownerReferences": [owner],
        },
        "spec": {**template["spec"], "containers": containers, "subdomain": domain},
    }


def _group(item: Document) -> tuple[str, str, str]:
    labels = item["metadata"]["labels"]
    return item["metadata"]["namespace"], labels[f"{LABEL}/name"], labels[f"{LABEL}/group-index"]


def _ended(item: Document) -> bool:
    return "deletionTimestamp" in item["metadata"]
