"""A node that only claims to run pods: it marks the pods scheduled to it Running and Ready, and removes deleted pods. Where a
test asks for it, pods start slowly, crash, run out of memory and get evicted, and an HTTP server answers for each that lives.

For tests of the operator against a real control plane where no container needs to run. Never shipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import aiohttp
from support.cluster.pod_engines import PodEngines
from support.cluster.pod_life import End, Life, PodState

from pagefleet_operator.domain.status.codec import time_text
from pagefleet_operator.kube.client import Api, ApiError

NAME = "status-only"
CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "500", "nvidia.com/gpu": "64"}
HEARTBEAT_SECONDS, AT_ONCE = 5.0, 16
PASSING = (ApiError, aiohttp.ClientError, TimeoutError)  # the API server restarts, or is slow under load
PODS = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NAME}"
STARTING = PodState(False)
OWN_STATUS = "test-writes-its-status"  # label of a pod whose status a test writes


@dataclass
class _Pod:
    """What the node knows of a pod: its number and its first sight by the monotonic clock for its Life, its address once it has
    one, and the state that was written."""

    number: int
    since: float
    namespace: str
    revision: str
    address: str = ""
    state: PodState = STARTING


async def ended(task: asyncio.Future[object]) -> None:
    """Cancel a task until it has ended. One cancellation can be lost: an HTTP client that meets it in the moment of its own time
    limit raises that limit's error, which a loop that goes on for ever takes for a passing one."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=1.0)
    await asyncio.gather(task, return_exceptions=True)


class StatusNode:
    """`hold` names revisions whose pods stay pending. It looks for new pods every `pause` seconds. A pod with readiness
    gates is Ready while their conditions are true, as a kubelet has it. `prefix`: the pods' addresses. Those of the
    loopback are refused at once; but no Endpoints may have them. `lives` are by namespace; without one a pod is Ready at once
    and stays so. `happened` counts what ended containers."""

    def __init__(self, api: Api, max_pods: int = 500, pause: float = 0.2, prefix: str = "127.100") -> None:
        self._api, self._pause, self._prefix = api, pause, prefix
        self._capacity = {**CAPACITY, "pods": str(max_pods)}
        self._addresses, self._numbers = itertools.count(1), itertools.count()
        self._known: dict[str, _Pod] = {}  # by uid
        self._engines: PodEngines | None = None
        self.hold: set[str] = set()
        self.lives: dict[str, Life] = {}
        self.happened: Counter[End] = Counter()

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

    async def serve_with(self, engines: PodEngines) -> None:
        """Have engines answer for the pods that live, from now on."""
        self._engines = engines
        for pod in list(self._known.values()):
            if pod.state.ready:
                await engines.up(pod.address, pod.namespace, pod.revision)

    async def serve_no_more(self) -> None:
        """End the engines of `serve_with`."""
        engines, self._engines = self._engines, None
        if engines is not None:
            await engines.stop()

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
        if metadata["labels"].get(OWN_STATUS):
            return
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        revision = metadata["labels"].get("pagefleet.io/revision", "")
        known = self._known.setdefault(
            metadata["uid"], _Pod(next(self._numbers), time.monotonic(), metadata["namespace"], revision)
        )
        if "deletionTimestamp" in metadata:
            await self._set_engine(known, answers=False)
            await self._api._request("DELETE", path, {}, {"gracePeriodSeconds": 0}, "application/json")
            del self._known[metadata["uid"]]
            return
        life = self.lives.get(metadata["namespace"])
        state = PodState(True) if life is None else life.at(known.number, time.monotonic() - known.since)
        status = pod.get("status") or {}
        if status.get("phase") == "Failed" or (revision in self.hold and status.get("phase") != "Running"):
            return
        if status.get("phase") == "Running" and state == known.state:
            await self._gated(pod, path)
            return
        if not known.address:
            known.address = status.get("podIP") or self._address()
        await self._set_engine(known, answers=state.ready)
        pod["status"] = {**status, **_status(pod, state, known.address)}
        await self._api.replace(f"{path}/status", pod)
        self.happened.update(state.ends[len(known.state.ends) :])
        known.state = state

    def _address(self) -> str:
        number = next(self._addresses)
        return f"{self._prefix}.{number // 250 % 250}.{number % 250 + 1}"

    async def _set_engine(self, pod: _Pod, *, answers: bool) -> None:
        if self._engines is None or not pod.address:
            return
        if answers:
            await self._engines.up(pod.address, pod.namespace, pod.revision)
        else:
            await self._engines.down(pod.address)

    async def _gated(self, pod: dict[str, Any], path: str) -> None:
        """Set Ready by the gates. As a kubelet does, make pods Ready again that a late heartbeat made unready."""
        conditions = {condition["type"]: condition for condition in pod["status"].get("conditions") or ()}
        gates = all(conditions.get(gate, {}).get("status") == "True" for gate in _gates(pod))
        ready = conditions.get("ContainersReady", {}).get("status") == "True"
        status = "True" if gates and ready else "False"
        if conditions["Ready"]["status"] != status:
            conditions["Ready"] |= {"status": status, "lastTransitionTime": time_text(time.time())[:19] + "Z"}
            pod["status"]["conditions"] = list(conditions.values())
            await self._api.replace(f"{path}/status", pod)


def _status(pod: dict[str, Any], state: PodState, address: str) -> dict[str, Any]:
    """Return a pod's status as a kubelet writes it."""
    now = time_text(time.time())[:19] + "Z"
    if state.evicted:
        return {
            "phase": "Failed",
            "reason": End.EVICTED.value,
            "message": "The node was low on resource: memory.",
            "conditions": [],
            "containerStatuses": [],
        }
    truth = {
        "PodScheduled": True,
        "Initialized": True,
        "ContainersReady": state.ready,
        "Ready": state.ready and not _gates(pod),
    }
    container: dict[str, Any] = {
        "name": "engine",
        "ready": state.ready,
        "restartCount": len(state.ends),
        "image": "x",
        "imageID": "x",
    }
    if state.ready or not state.ends:
        container["state"] = {"running": {"startedAt": now}}
    else:
        container["state"] = {
            "waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}
        }
    if state.ends:
        code = 137 if state.ends[-1] is End.OUT_OF_MEMORY else 1
        ended = {"reason": state.ends[-1].value, "exitCode": code, "finishedAt": now}
        container["lastState"] = {"terminated": ended}
    return {
        "phase": "Running",
        "podIP": address,
        "conditions": [
            {"type": kind, "status": str(holds), "lastTransitionTime": now} for kind, holds in truth.items()
        ],
        "containerStatuses": [container],
    }


def _gates(pod: dict[str, Any]) -> list[str]:
    return [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
