"""Outages of the API server, or of etcd under it, in the middle of many stories at once (row 8). Each story reaches a
write of its own; when all have, the daemon is killed and stays away for a while. Meanwhile requests go through a real
gateway, and none may fail. Afterwards every story must end as without faults."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from faults.cases import Case, at_write
from faults.proxy import Fault
from faults.runs import EXTRA_SECONDS, Calm, Ground, StoryResult
from faults.story import NAME, NotConverged, Story
from support.cluster.pod_engines import PodEngines
from support.cluster.status_node import NAME as NODE
from support.cluster.status_node import OWN_STATUS

from pagefleet_contract.names import GATEWAY, GATEWAY_INTERNAL_PORT, NAME_LABEL, SYSTEM_NAMESPACE
from pagefleet_local.assets import kubernetes
from pagefleet_local.base.certificates import Authority
from pagefleet_local.base.paths import Layout
from pagefleet_local.base.processes import Daemon
from pagefleet_local.controlplane import apiserver, etcd
from pagefleet_local.fleet.kubectl import until
from pagefleet_local.lifecycle.up import CONTROL_PLANE
from pagefleet_operator.kube.client import JSON, Api, ApiError

POINTS, AT_ONCE = 20, 5
SECONDS = float(os.environ.get("PAGEFLEET_OUTAGE_SECONDS", "60"))
DAEMONS = ("kube-apiserver", "etcd")
GATEWAY_ADDRESS, GATEWAY_PORT = "127.99.0.1", 18280
GATEWAYS = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
EVERY_SECONDS, ASK_SECONDS = 0.2, 10.0
AGAIN_SECONDS = 0.5


class RetryingApi(Api):
    """The user's client: it asks again while the API server is away. A creation whose answer was lost counts as made."""

    async def _request(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None = None, kind: str = JSON
    ) -> dict[str, Any]:
        again = False
        while True:
            try:
                return await super()._request(method, path, query, body, kind)
            except ApiError as error:
                if method == "POST" and again and error.status == 409:
                    return {}
                if error.status < 500 and error.status not in (401, 429):
                    raise
            except (aiohttp.ClientError, TimeoutError, OSError):
                pass
            again = True
            await asyncio.sleep(AGAIN_SECONDS)


@dataclass
class Outage:
    """One outage. `arrive` returns when `expected` stories have reached it, or no other will, and the daemon was killed."""

    layout: Layout
    daemon: str
    seconds: float
    expected: int
    _come: int = 0
    _down: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    async def arrive(self) -> None:
        self._come += 1
        self._look()
        await self._down.wait()

    def absent(self) -> None:
        """Count a story that will not reach its write (any more)."""
        self.expected -= 1
        self._look()

    async def over(self) -> None:
        if self._task is not None:
            await self._task

    def _look(self) -> None:
        if self._come >= self.expected and self._come and self._task is None:
            self._task = asyncio.create_task(self._strike())

    async def _strike(self) -> None:
        pid = Daemon(self.layout, self.daemon).pid()
        if pid is None:
            raise RuntimeError(f"{self.daemon} does not run")
        os.kill(pid, signal.SIGKILL)
        self._down.set()
        await asyncio.sleep(self.seconds)
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        authority = Authority(self.layout.pki)
        if self.daemon == "etcd":
            etcd.start(self.layout, authority)
        else:
            apiserver.start(self.layout, kubernetes.binaries(CONTROL_PLANE), authority)


@dataclass
class Traffic:
    """Sends requests through a gateway to every story that serves. `answers` counts them by status; 0: no answer."""

    stories: list[Story] = field(default_factory=list)
    answers: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Send requests, for ever."""
        timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                await asyncio.gather(*(self._ask(session, story) for story in self.stories if story.serves))
                await asyncio.sleep(EVERY_SECONDS)

    async def _ask(self, session: aiohttp.ClientSession, story: Story) -> None:
        url = f"http://{GATEWAY_ADDRESS}:{GATEWAY_PORT}/{story.namespace}/{NAME}/v1/chat/completions"
        body = {"model": "smollm2", "messages": [{"role": "user", "content": "hello"}]}
        try:
            async with session.post(url, json=body) as answer:
                status, text = answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            status, text = 0, type(error).__name__
        if not story.serves:
            return
        self.answers[status] += 1
        if status != 200:
            self.failures.append(f"{story.namespace}, chapter {story.chapter}: {status} {text[:200]}")


@asynccontextmanager
async def gateway(ground: Ground, engines: PodEngines | None = None) -> AsyncIterator[int]:
    """Run the gateway's console script with its Envoy, and `engines` for the pods of the node. Yield the gateway's process id."""
    if engines is not None:
        await ground.node.serve_with(engines)
    variables = {
        "PAGEFLEET_KUBECONFIG": str(ground.layout.kubeconfig),
        "PAGEFLEET_GATEWAY_ADDRESS": GATEWAY_ADDRESS,
        "PAGEFLEET_GATEWAY_PORT": str(GATEWAY_PORT),
        "PAGEFLEET_GATEWAY_SETTLE_SECONDS": "1",
        "TMPDIR": str(ground.folder),
    }
    with (ground.folder / "gateway.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from pagefleet_gateway.main import run; run()",
            env={**os.environ, **variables},
            stdout=log,
            stderr=log,
        )
    try:
        await until(_gateway_ready, timeout=60, what="the gateway is ready")
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait_for(process.wait(), 60)
        await ground.node.serve_no_more()


@asynccontextmanager
async def announced(ground: Ground) -> AsyncIterator[None]:
    """Let operators find the gateway: a pod with its address. (One of a node that does not exist would soon be removed.)"""
    metadata = {"name": "gateway", "labels": {NAME_LABEL: GATEWAY, OWN_STATUS: "true"}}
    spec = {"containers": [{"name": "gateway", "image": "x"}], "nodeName": NODE}
    made: dict[str, Any] = {}

    async def accepted() -> bool:
        """In a namespace that is a moment old, the API server refuses pods until the service account has its token."""
        try:
            made.update(
                await ground.api.create(
                    GATEWAYS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
                )
            )
        except ApiError as error:
            if "service account" not in str(error) and "serviceaccount" not in str(error):
                raise
            return False
        return True

    await until(accepted, timeout=60, what="the namespace takes the gateway's pod", interval=0.2)
    made["status"] = {"phase": "Running", "podIP": GATEWAY_ADDRESS}
    await ground.api.replace(f"{GATEWAYS}/gateway/status", made)
    try:
        yield
    finally:
        await ground.api._request("DELETE", f"{GATEWAYS}/gateway", {}, {"gracePeriodSeconds": 0}, JSON)


async def _gateway_ready() -> bool:
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{GATEWAY_ADDRESS}:{GATEWAY_INTERNAL_PORT}/readyz") as answer,
        ):
            return answer.status == 200
    return False


def batches(writes: int, seed: int) -> list[tuple[str, list[int]]]:
    """Yield the daemon to kill and the writes at which it is killed: POINTS in all, the same for the same seed."""
    chance = random.Random(f"outages-{seed}")
    chosen = chance.sample(range(1, writes + 1), min(POINTS, writes))
    groups = [chosen[start : start + AT_ONCE] for start in range(0, len(chosen), AT_ONCE)]
    return [(DAEMONS[index % len(DAEMONS)], sorted(group)) for index, group in enumerate(groups)]


def names(daemon: str, writes: Sequence[int]) -> list[str]:
    """Return the names of the results of `played`: one story for each write, and the requests."""
    return [
        *(f"{daemon}-{SECONDS:g}s-at-write-{write}" for write in writes),
        f"{daemon}-{SECONDS:g}s-requests-{writes[0]}",
    ]


async def played(ground: Ground, calm: Calm, daemon: str, writes: Sequence[int]) -> list[StoryResult]:
    """Play one outage with as many stories as there are writes."""
    *stories, requests = names(daemon, writes)
    outage, traffic = Outage(ground.layout, daemon, SECONDS, len(writes)), Traffic()
    async with RetryingApi(str(ground.layout.kubeconfig)) as api, gateway(ground, PodEngines()):
        patient = Ground(api, ground.layout, ground.node, ground.folder, ground.numbers)
        asking = asyncio.create_task(traffic.run())
        try:
            cases = [
                Case(8, name, at_write(write, Fault(wait=outage.arrive)), 30 + SECONDS)
                for name, write in zip(stories, writes, strict=True)
            ]
            results = await asyncio.gather(*(_one(patient, case, calm, outage, traffic) for case in cases))
            await outage.over()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
    served = StoryResult(requests, 8, tuple(traffic.failures[:5]), {}, (str(dict(traffic.answers)),), 0)
    return [*results, served]


async def _one(ground: Ground, case: Case, calm: Calm, outage: Outage, traffic: Traffic) -> StoryResult:
    script, struck = case.script(), False

    def watched(call: Any) -> Fault | None:
        nonlocal struck
        fault = script(call)
        struck = struck or fault is not None
        return fault

    try:
        timeout = max(calm.durations.values()) + case.slack + EXTRA_SECONDS
        story = await ground.story("r8", watched, timeout, traffic.stories.append)
        return ground.judged(case, story, calm, unheard=outage.daemon == DAEMONS[0])
    except NotConverged as error:
        return StoryResult(case.name, case.row, (str(error),), {}, (), 0)
    finally:
        if not struck:
            outage.absent()
