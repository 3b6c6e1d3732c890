"""One service's life, driven through the API server alone: it is created, a canary is promoted, a canary is rolled back
by a paging alert, it is scaled and deleted. After each chapter the end state is read, and the chapter's duration stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from faults.operator_process import Operator
from faults.oracle import flat
from support.recording import Recording
from support.sample_service import sample

from pagefleet_contract.names import SPARE_LABEL
from pagefleet_local.fleet.view import View
from pagefleet_operator.kube.client import Api, ApiError

NAME = "story"
GROUP = "/apis/pagefleet.io/v1alpha1"
KINDS = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "Service": "/api/v1/namespaces/{}/services",
    "PodDisruptionBudget": "/apis/policy/v1beta1/namespaces/{}/poddisruptionbudgets",
    "ReplicaSet": "/apis/apps/v1/namespaces/{}/replicasets",
    "Pod": "/api/v1/namespaces/{}/pods",
}
STILL_SECONDS = 2.5  # longer than the time between two decisions while a change is under way
RETRIES = 2  # spec.traffic.retries: a field that is no part of a revision, for a user to edit
CHAPTERS = ("create", "promote", "rollback", "scale", "delete")
Document = dict[str, Any]


class NotConverged(AssertionError):
    """A story did not reach an expected state in time."""


@dataclass
class Story:
    """`states[chapter]` is every object's document by (kind, name); `durations[chapter]` in seconds; `pace` is how slow the
    machine was at its begin (`faults.runs.pace`)."""

    chapters: ClassVar[tuple[str, ...]] = CHAPTERS
    kinds: ClassVar[Mapping[str, str]] = KINDS  # whose objects are the state
    api: Api
    operator: Operator
    timeout: float = 60.0
    pace: float = 0.0
    chapter: str = ""
    states: dict[str, dict[str, Document]] = field(default_factory=dict)
    durations: dict[str, float] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        return self.operator.namespace

    def __post_init__(self) -> None:
        self.recording = Recording(self.api, self.namespace)

    async def run(self) -> None:
        """Run every chapter. Raises NotConverged."""
        recording = asyncio.create_task(self.recording.run())
        try:
            await self._run_chapters()
        finally:
            recording.cancel()
            await asyncio.gather(recording, return_exceptions=True)

    async def _run_chapters(self) -> None:
        await self.api.create(
            "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        )
        for chapter in self.chapters:
            self.chapter = chapter
            began = time.monotonic()
            await getattr(self, f"_{chapter}")()
            self.durations[chapter] = time.monotonic() - began
            self.states[chapter] = await self._still()

    async def _still(self) -> dict[str, Document]:
        """Return the state when it has stopped changing. Changes under way when a chapter ends belong to it. A service that is
        not Ready counts as a change under way (a late heartbeat of the node makes all pods unready until the next one). So
        does a status that Kubernetes' controllers must still write: after an outage of the API server they take long to
        receive changes again."""
        end, state = time.monotonic() + self.timeout, await self.state()
        while time.monotonic() < end:
            await asyncio.sleep(STILL_SECONDS)
            before, state = state, await self.state()
            service = View(state.get(f"InferenceService/{NAME}", {}))
            still = flat(before) == flat(state) and all(
                caught_up(name.partition("/")[0], one) for name, one in state.items()
            )
            if still and (not service.document or self.settled(service)):
                return state
        raise NotConverged(f"{self.namespace}: never still")

    def settled(self, view: View) -> bool:
        """Whether the status says that nothing is under way."""
        return view.is_true("Ready") and quiet(view)

    @property
    def serves(self) -> bool:
        """Whether requests must be answered now."""
        return "create" in self.states and self.chapter != "delete"

    async def view(self) -> View:
        document = await self.api.find(f"{GROUP}/namespaces/{self.namespace}/inferenceservices/{NAME}")
        return View(document or {"metadata": {"generation": -1}})

    async def state(self) -> dict[str, Document]:
        """Return every object of the namespace that belongs to the story, by kind and name."""
        documents: dict[str, Document] = {}
        for kind, path in self.kinds.items():
            for item in (await self.api.get(path.format(self.namespace)))["items"]:
                name = item["metadata"]["name"]
                if kind == "Service" and name == "kubernetes":
                    continue
                documents[f"{kind}/{name}"] = item
        service = await self.view()
        if "spec" in service.document:
            documents[f"InferenceService/{NAME}"] = service.document
        return documents

    async def until(self, what: str, holds: Callable[[View], bool]) -> View:
        end = time.monotonic() + self.timeout
        while True:
            view = await self.view()
            if holds(view):
                return view
            if time.monotonic() > end:
                raise NotConverged(f"{self.namespace}: not within {self.timeout:.0f} s: {what}; {view.line()}")
            await asyncio.sleep(0.2)

    def spec(self) -> Document:
        """Return what the service's spec has beside the sample's."""
        rollout = {"steps": [{"weight": 50}], "guard": {}, "alerts": {"matchLabels": {"severity": "page"}}}
        return {"traffic": {"retries": RETRIES}, "rollout": rollout}

    async def _create(self) -> None:
        document = sample()
        document["metadata"] = {"name": NAME, "namespace": self.namespace}
        document["spec"] |= self.spec()
        await self.api.create(f"{GROUP}/namespaces/{self.namespace}/inferenceservices", document)
        await self.until("Ready", lambda v: v.is_true("Ready") and quiet(v))

    async def _promote(self) -> None:
        old = (await self.view()).stable
        await self._edit(lambda spec: spec["engine"].update(args=["--max-num-seqs=4"]))
        await self.until("promoted", lambda v: v.stable not in ("", old) and v.phase == "Idle" and quiet(v))
        await self._gone(old)

    async def _rollback(self) -> None:
        def worse(spec: Document) -> None:
            spec["engine"]["args"] = ["--max-num-seqs=2"]
            spec["rollout"]["steps"] = [{"weight": 50, "hold": "1h"}]

        stable = (await self.view()).stable
        await self._edit(worse)
        state = await self.until("the canary has its weight", lambda v: v.weights.get(v.canary) == 50)
        end = time.monotonic() + self.timeout
        while not await self.operator.alert(NAME, state.canary, "page-1"):
            if time.monotonic() > end:
                raise NotConverged(f"{self.namespace}: the alert was never accepted")
            await asyncio.sleep(0.3)
        await self.until("rolled back", lambda v: v.phase == "RolledBack" and v.weights == {stable: 100} and quiet(v))
        await self._gone(state.canary)

    async def _scale(self) -> None:
        await self._edit(lambda spec: spec["scaling"].update(min=2))
        await self.until("two replicas", lambda v: v.status.get("replicas") == 2 and quiet(v))

    async def _delete(self) -> None:
        path = f"{GROUP}/namespaces/{self.namespace}/inferenceservices/{NAME}"
        await self.api.delete(path, (await self.view()).document["metadata"]["uid"])
        end = time.monotonic() + self.timeout
        while await self.state():
            if time.monotonic() > end:
                raise NotConverged(f"{self.namespace}: left behind: {sorted(await self.state())}")
            await asyncio.sleep(0.3)

    async def _gone(self, revision: str) -> None:
        end = time.monotonic() + self.timeout
        while any(revision in name for name in await self.state()):
            if time.monotonic() > end:
                raise NotConverged(f"{self.namespace}: revision {revision} is still there")
            await asyncio.sleep(0.2)

    async def _edit(self, change: Callable[[Document], None]) -> None:
        """Make a user's edit: read, change the spec, write; again when another client wrote in between."""
        path = f"{GROUP}/namespaces/{self.namespace}/inferenceservices/{NAME}"
        while True:
            document = await self.api.get(path)
            change(document["spec"])
            try:
                await self.api.replace(path, document)
            except ApiError as error:
                if error.status != 409:
                    raise
            else:
                return


def caught_up(kind: str, document: Document) -> bool:
    """Whether the controller of a Deployment, ReplicaSet or budget has written the status of the present spec."""
    spec, status = document.get("spec") or {}, document.get("status") or {}
    current = status.get("observedGeneration") == document["metadata"].get("generation")
    match kind:
        case "Deployment" | "ReplicaSet" if SPARE_LABEL in document["metadata"]["labels"]:
            return current and status.get("replicas", 0) == spec["replicas"]  # spares that sleep are not ready
        case "Deployment" | "ReplicaSet":
            return current and status.get("readyReplicas", 0) == spec["replicas"] == status.get("replicas", 0)
        case "PodDisruptionBudget":
            return current and status.get("currentHealthy", 0) == status.get("expectedPods", 0)
        case _:
            return True


def quiet(view: View) -> bool:
    """Whether every desired replica is ready, and the status is of the present spec."""
    observed = view.status.get("observedGeneration") == view.document["metadata"]["generation"]
    revisions = view.status.get("revisions") or []
    return (
        observed
        and not view.status.get("draining")
        and all(entry.get("ready", 0) == entry.get("desired", 0) for entry in revisions)
    )
