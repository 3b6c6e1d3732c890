"""The fleet as the parts observe it: services applied with kubectl, pods read from the API server, streams that are watched
to their end. Times are of this process's clock, so a pod was ready a moment before it is observed to be ready."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from pagefleet_contract.names import RECORD_SELECTOR, SERVICE_LABEL
from pagefleet_local.base import paths
from pagefleet_local.demo.load import ask
from pagefleet_local.demo.stage import sample
from pagefleet_local.fleet.kubectl import Kubectl, until
from pagefleet_local.fleet.view import View
from pagefleet_local.lifecycle import cleanup
from pagefleet_local.lifecycle.fleet_up import fleet_up
from pagefleet_local.lifecycle.up import Options, healthy
from pagefleet_operator.kube.client import Api

NAMESPACE, NODE = "scaling", "pagefleet-local"
LOOK_SECONDS = 0.2
MAX_STREAM_SECONDS = 900.0
Result = TypeVar("Result")


@dataclass(frozen=True)
class PodState:
    """`created` is the API server's time of it, UNIX seconds in whole ones."""

    name: str
    ready: bool
    spare: bool
    stopping: bool
    created: str


@dataclass(frozen=True)
class Stream:
    """An answer as its client received it. `first` and `last` are seconds from the request to the first token and the end."""

    status: int
    first: float | None
    last: float
    tokens: int
    finish: str | None
    error: str

    @property
    def whole(self) -> bool:
        return self.status == 200 and self.finish is not None and not self.error


@dataclass(frozen=True)
class Field:
    kubectl: Kubectl
    api: Api
    gateway: str
    node: str

    async def apply(self, name: str, scaling: Mapping[str, Any], **engine: object) -> None:
        document = copy.deepcopy(sample())
        document["metadata"] = {"name": name, "namespace": NAMESPACE}
        chosen = document["spec"]
        chosen["scaling"] = {**scaling}
        chosen["engine"] |= engine
        chosen["traffic"] = {"queue": {"timeout": "5m"}}
        await self.kubectl.apply(document)

    async def view(self, name: str) -> View:
        document = await self.api.get(f"/apis/pagefleet.io/v1alpha1/namespaces/{NAMESPACE}/inferenceservices/{name}")
        return View(document)

    async def pods(self, name: str) -> list[PodState]:
        listed = await self.api.get(
            f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=f"pagefleet.io/service={name}"
        )
        return [_state(item) for item in listed["items"]]

    async def when(self, holds: Callable[[View, list[PodState]], bool], name: str, what: str, timeout: float) -> float:
        """Wait until `holds`, and return the time."""

        async def check() -> bool:
            return holds(await self.view(name), await self.pods(name))

        await until(check, timeout=timeout, what=what, interval=LOOK_SECONDS)
        return time.monotonic()

    async def stream(self, session: aiohttp.ClientSession, name: str, tokens: int, prompt: str = "Count.") -> Stream:
        answer = await ask(session, f"{self.gateway}/{NAMESPACE}/{name}/v1", prompt, tokens)
        return Stream(answer.status, answer.ttft, answer.e2e, answer.tokens, answer.finish, answer.error)

    async def scale(self, name: str, replicas: int) -> float:
        """`kubectl scale`; returns the time at which it was sent."""
        began = time.monotonic()
        await self.kubectl.run("scale", "isvc", name, "-n", NAMESPACE, f"--replicas={replicas}")
        return began

    async def remove(self, name: str) -> None:
        await self.kubectl.run("delete", "isvc", name, "-n", NAMESPACE, "--ignore-not-found")
        own = f"{RECORD_SELECTOR},{SERVICE_LABEL}={name}"  # the next service of this name begins as a new one
        await self.kubectl.run("delete", "controllerrevisions", "-n", NAMESPACE, "-l", own)

        async def gone() -> bool:
            return not await self.pods(name)

        await until(gone, timeout=300, what=f"the pods of {name} are gone", interval=1.0)


def on_fleet(work: Callable[[Field], Awaitable[Result]]) -> Result:
    """Do `work` on the local fleet, which is started, and taken down again unless it ran before; the namespace goes in any case."""
    ran_before = healthy(Options())
    try:
        return asyncio.run(_in_namespace(work))
    finally:
        if not ran_before:
            cleanup.down(paths.layout())


async def _in_namespace(work: Callable[[Field], Awaitable[Result]]) -> Result:
    fleet = await fleet_up(lambda line: print(line, file=sys.stderr))
    async with Api(str(fleet.kubectl.kubeconfig)) as api:
        await fleet.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        try:
            return await work(Field(fleet.kubectl, api, fleet.gateway, NODE))
        finally:
            await fleet.kubectl.run("delete", "namespace", NAMESPACE, "--timeout=300s", check=False)


def clients() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=MAX_STREAM_SECONDS)
    )


def serving(pods: list[PodState], *, spare: bool | None = None) -> int:
    """Ready pods that stay; of the spares, of the others, or of both."""
    return sum(1 for pod in pods if pod.ready and not pod.stopping and spare in (None, pod.spare))


def asleep(view: View) -> int:
    return int((view.status.get("spares") or {}).get("asleep", 0))


def startup(view: View) -> float:
    """Seconds from a pod's creation to its first Ready, as the operator has learned them for the stable revision."""
    records = {entry["revision"]: entry for entry in view.status.get("scaling") or []}
    return float((records.get(view.stable) or {}).get("startup", float("nan")))


async def gathered(tasks: list[asyncio.Task[Stream]]) -> dict[str, int]:
    answers = await asyncio.gather(*tasks)
    bad = [answer for answer in answers if not answer.whole]
    return {
        "streams": len(answers),
        "truncated": sum(1 for answer in bad if answer.status == 200),
        "refused": sum(1 for answer in bad if answer.status != 200),
        "tokens": sum(answer.tokens for answer in answers),
    }


def _state(item: Mapping[str, Any]) -> PodState:
    metadata, conditions = item["metadata"], (item.get("status") or {}).get("conditions") or ()
    return PodState(
        name=metadata["name"],
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in conditions),
        spare="pagefleet.io/spare" in metadata["labels"],
        stopping="deletionTimestamp" in metadata,
        created=json.dumps(metadata["creationTimestamp"]),
    )
