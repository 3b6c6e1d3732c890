"""Records every version of the InferenceServices of one namespace, or of all, and when their pods are Ready, by watches of the real
API server. The invariants are checked on them (rows 13, 15, 16 of docs/reliability.md). Only reads."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp
from faults.proxy import lines
from support import invariants
from support.ready_pods import ReadyPods

from pagefleet_contract.names import ENGINE_POD_SELECTOR
from pagefleet_operator.kube.client import Api, ApiError

Document = dict[str, Any]
RETRY_SECONDS = 0.5
NO_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=10)


@dataclass
class Recording:
    """`versions` by namespace and name, oldest first. Without `namespace` the recording is of the whole cluster. `gaps` has
    the indices of versions before which others may be missing: the API server no longer knew the position of the watch."""

    api: Api
    namespace: str = ""
    versions: dict[tuple[str, str], list[Document]] = field(default_factory=dict)
    gaps: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    pods: ReadyPods = field(default_factory=ReadyPods)
    _version: str = "0"
    _pods_version: str = "0"

    async def run(self) -> None:
        """Record until cancelled. A watch that breaks resumes where it was."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(self._watch))
            group.create_task(self._follow(self._watch_pods))

    async def _follow(self, watch: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await watch()
            except (ApiError, aiohttp.ClientError, TimeoutError, OSError, ValueError):
                await asyncio.sleep(RETRY_SECONDS)

    def violations(self) -> list[str]:
        """Check each version beside the one before it and the pods of its time, except across a gap."""
        return [
            f"{key[0]}/{key[1]} {line}"
            for key, versions in sorted(self.versions.items())
            for first, end in pairwise([0, *sorted(self.gaps.get(key, ())), len(versions)])
            for check in (invariants.over, self.pods.without_pods)
            for line in check(versions[first:end])
        ]

    async def _watch(self) -> None:
        query = {"watch": "true", "resourceVersion": self._version}
        async for event in self._events("/apis/pagefleet.io/v1alpha1", "inferenceservices", query):
            self._take(event)

    async def _watch_pods(self) -> None:
        query = {"watch": "true", "resourceVersion": self._pods_version, "labelSelector": ENGINE_POD_SELECTOR}
        async for event in self._events("/api/v1", "pods", query):
            if event["type"] == "ERROR":
                self._pods_version = "0"
                self.pods.missed()
                raise ApiError(410, "the watch is too old")
            self._pods_version = event["object"]["metadata"]["resourceVersion"]
            self.pods.take(event, time.monotonic())

    async def _events(self, group: str, plural: str, query: dict[str, str]) -> AsyncIterator[Document]:
        scope = f"namespaces/{self.namespace}/" if self.namespace else ""
        path = f"{group}/{scope}{plural}"
        session, settings = self.api._session, self.api._settings
        if session is None or settings is None:
            raise RuntimeError("the Api is closed")
        async with session.get(settings.host + path, params=query, timeout=NO_TIMEOUT) as answer:
            if answer.status != 200:
                raise ApiError(answer.status, "no watch")
            async for line in lines(answer):
                yield json.loads(line)

    def _take(self, event: Document) -> None:
        document = event["object"]
        if event["type"] == "ERROR":
            self._version = "0"
            for key, versions in self.versions.items():
                self.gaps.setdefault(key, set()).add(len(versions))
            raise ApiError(410, "the watch is too old")
        self._version = document["metadata"]["resourceVersion"]
        if event["type"] in ("ADDED", "MODIFIED"):
            metadata = document["metadata"]
            versions = self.versions.setdefault((metadata["namespace"], metadata["name"]), [])
            if not versions or versions[-1] != document:
                versions.append(document)
