"""A node that only claims to run pods: it marks the pods scheduled to it Running and Ready, and removes deleted pods.

For tests of the operator against a real control plane where no container needs to run. Never shipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import Any

import aiohttp

from pagefleet_operator.domain.status.codec import time_text
from pagefleet_operator.kube.client import Api, ApiError

NAME = "status-only"
CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "500", "nvidia.com/gpu": "64"}
HEARTBEAT_SECONDS, AT_ONCE = 5.0, 16
PASSING = (ApiError, aiohttp.ClientError, TimeoutError)  # the API server restarts, or is slow under load
PODS = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NAME}"


class StatusNode:
    """`hold` names revisions whose pods stay pending. It looks for new pods every `pause` seconds. A pod with readiness
    gates is Ready while their conditions are true, as a kubelet has it. `prefix`: the pods' addresses. Those of the
    loopback are refused at once; but no Endpoints may have them."""

    def __init__(self, api: Api, max_pods: int = 500, pause: float = 0.2, prefix: str = "127.100") -> None:
        self._api, self._pause, self._prefix = api, pause, prefix
        self._capacity = {**CAPACITY, "pods": str(max_pods)}
        self._addresses = itertools.count(1)
        self.hold: set[str] = set()

    async def register(self) -> None:
        with contextlib.suppress(*PASSING):
            await self._api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}})
        while True:
            try:
                return await self._heartbeat()
            except ApiError as error:
                if error.status != 409:  # the controllers have written to the new Node in between
                    raise

    async def run(self) -> None:
        """Run the node, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            group.create_task(self._pods())

    async def _beat(self) -> None:
        """Send heartbeats in a task of their own: a late heartbeat makes all pods unready."""
        while True:
            with contextlib.suppress(*PASSING):
                await self._heartbeat()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _pods(self) -> None:
        while True:
            with contextlib.suppress(*PASSING):
                listed = await self._api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={NAME}")
                for start in range(0, len(listed["items"]), AT_ONCE):
                    await asyncio.gather(*map(self._served, listed["items"][start : start + AT_ONCE]))
            await asyncio.sleep(self._pause)

    async def _heartbeat(self) -> None:
        path = f"/api/v1/nodes/{NAME}"
        node, now = await self._api.get(path), time_text(time.time())[:19] + "Z"
        node["status"] = {
            "capacity": self._capacity,
            "allocatable": self._capacity,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Claimed",
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
            ],
        }
        await self._api.replace(f"{path}/status", node)
        fresh = await self._api.get(path)
        if fresh["spec"].pop("taints", None):
            await self._api.replace(path, fresh)

    async def _served(self, pod: dict[str, Any]) -> None:
        with contextlib.suppress(*PASSING):  # it changed meanwhile: the next round writes it
            await self._serve(pod)

    async def _serve(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        if "deletionTimestamp" in metadata:
            await self._api._request("DELETE", path, {}, {"gracePeriodSeconds": 0}, "application/json")
            return
        held = metadata["labels"].get("pagefleet.io/revision") in self.hold
        status = pod.get("status") or {}
        if status.get("phase") == "Running":
            await self._gated(pod, path)
            return
        if held:
            return
        now, address = time_text(time.time())[:19] + "Z", next(self._addresses)
        pod["status"] = {
            "phase": "Running",
            "podIP": f"{self._prefix}.{address // 250 % 250}.{address % 250 + 1}",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": now}
                for kind in ("PodScheduled", "Initialized", "ContainersReady")
            ]
            + [{"type": "Ready", "status": "False" if _gates(pod) else "True", "lastTransitionTime": now}],
            "containerStatuses": [
                {"name": "engine", "ready": True, "restartCount": 0, "image": "x", "imageID": "x",
                 "state": {"running": {"startedAt": now}}}
            ],
        }  # fmt: skip
        await self._api.replace(f"{path}/status", pod)

    async def _gated(self, pod: dict[str, Any], path: str) -> None:
        """Set Ready by the gates. As a kubelet does, make pods Ready again that a late heartbeat made unready."""
        conditions = {condition["type"]: condition for condition in pod["status"].get("conditions") or ()}
        status = "True" if all(conditions.get(gate, {}).get("status") == "True" for gate in _gates(pod)) else "False"
        if conditions["Ready"]["status"] != status:
            conditions["Ready"] |= {"status": status, "lastTransitionTime": time_text(time.time())[:19] + "Z"}
            pod["status"]["conditions"] = list(conditions.values())
            await self._api.replace(f"{path}/status", pod)


def _gates(pod: dict[str, Any]) -> list[str]:
    return [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
