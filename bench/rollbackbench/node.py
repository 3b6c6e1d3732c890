"""A node whose pods are the stub engines of this process: pods start, are Ready some time later, and end with their streams.

    python -m bench.rollbackbench.node KUBECONFIG MAX_PODS

Beside the load generator and not in it: they must not share an interpreter. tests/support/cluster/status_node.py registers the node; this
one follows its pods by a watch, because hundreds of pods are too many to list again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from typing import Any

import uvloop
from bench.rollbackbench.engines import Engines
from kubernetes.aio import client, config, watch
from support.cluster.status_node import NAME, PASSING, StatusNode

from pagefleet_operator.domain.status.codec import time_text
from pagefleet_operator.kube.client import Api

START_SECONDS = (0.5, 2.5)  # from being scheduled to Ready: no model is loaded here
BLOCK = 250  # addresses 127.101.x.1 to 127.101.x.250 are one block
Raw = dict[str, Any]


class EngineNode(StatusNode):
    def __init__(self, api: Api, kubeconfig: str, engines: Engines, max_pods: int) -> None:
        super().__init__(api, max_pods)
        self._kubeconfig, self._engines = kubeconfig, engines
        self._known: dict[str, asyncio.Task[None]] = {}  # by uid: its start, later its end
        self._at: dict[str, str] = {}  # uid -> address
        self._ending: set[str] = set()

    async def _pods(self) -> None:
        settings = client.Configuration()
        await config.load_kube_config(config_file=self._kubeconfig, client_configuration=settings)
        async with client.ApiClient(settings) as api:
            ask = client.CoreV1Api(api).list_pod_for_all_namespaces
            while True:
                follow = watch.Watch(return_type="object")
                async for event in follow.stream(ask, field_selector=f"spec.nodeName={NAME}", timeout_seconds=300):
                    self._took(event["raw_object"])

    def _took(self, pod: Raw) -> None:
        uid = pod["metadata"]["uid"]
        if "deletionTimestamp" in pod["metadata"]:
            if uid not in self._ending:
                self._ending.add(uid)
                self._run(uid, self._end(pod))
        elif uid not in self._known:
            self._run(uid, self._start(pod))

    def _run(self, uid: str, work: Any) -> None:
        if before := self._known.get(uid):
            before.cancel()
        self._known[uid] = asyncio.create_task(work)

    async def _start(self, pod: Raw) -> None:
        number = next(self._addresses) - 1
        address = f"127.101.{number // BLOCK}.{number % BLOCK + 1}"
        uid = pod["metadata"]["uid"]
        self._at[uid] = address
        await asyncio.sleep(random.uniform(*START_SECONDS))
        self._engines.start(address)
        now = time_text(time.time())[:19] + "Z"
        kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        container = {"name": "engine", "ready": True, "restartCount": 0, "image": "x", "imageID": "x",
                     "state": {"running": {"startedAt": now}}}  # fmt: skip
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds],
            "containerStatuses": [container],
        }
        await self._insist("merge", f"{_path(pod)}/status", {"status": status})

    async def _end(self, pod: Raw) -> None:
        grace = pod["metadata"].get("deletionGracePeriodSeconds", 30)
        if address := self._at.get(pod["metadata"]["uid"]):
            await self._engines.stop(address, grace)
        await self._insist("_request", "DELETE", _path(pod), {}, {"gracePeriodSeconds": 0}, "application/json")

    async def _insist(self, method: str, *arguments: Any) -> None:
        """A kubelet tries again, too; not when the pod is gone."""
        for _ in range(20):
            try:
                await getattr(self._api, method)(*arguments)
                return
            except PASSING as error:
                if getattr(error, "status", 0) == 404:
                    return
                await asyncio.sleep(0.1)


def _path(pod: Raw) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


async def main(kubeconfig: str, max_pods: int) -> None:
    engines = Engines()
    async with Api(kubeconfig) as api:
        node = EngineNode(api, kubeconfig, engines, max_pods)
        await node.register()
        serving = asyncio.create_task(engines.serve())
        print("serving", flush=True)
        await asyncio.gather(node.run(), serving)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], int(sys.argv[2])))
