"""Longer lives of a service than `Story`'s, which `stories.py` kills at every write.

- actions: a preview that a person ends, a mirror, a pause, a promotion and an undo by hand, a canary that a person aborts.
- replicas: a warm spare, external scaling up, to zero and back.
- evidence: engines answer, requests go through a real gateway, and the guard's own evidence on errors promotes one canary and
  rolls another back.
- groups: each replica is a group of two pods, made from a LeaderWorkerSet.
- routes: a Gateway API gateway splits the traffic, and its answers hold back what is deleted.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from faults.outages import Traffic
from faults.story import GROUP, KINDS, NAME, Document, Story, quiet
from support.cluster import leader_worker_sets
from support.cluster.gateway_api_kinds import GATEWAY
from support.cluster.pod_engines import PodEngines
from support.sample_service import sample

from pagefleet_local.fleet.view import View


class LongerStory(Story):
    """A story whose service has `scaling` and `rollout` of its own."""

    scaling: ClassVar[Document] = {"min": 1, "max": 3}
    rollout: ClassVar[Document] = {"steps": [], "guard": {}}

    def spec(self) -> Document:
        return {"scaling": dict(self.scaling), "rollout": dict(self.rollout)}

    async def _begin(self, sequences: int, **rollout: Any) -> None:
        """Edit the engine, which begins a rollout."""

        def change(spec: Document) -> None:
            spec["engine"]["args"] = [f"--max-num-seqs={sequences}"]
            spec["rollout"].update(rollout)

        await self._edit(change)

    async def _act(self, action: str) -> None:
        """Annotate as the command line does, and wait until it is done."""
        name, path = f"{self.chapter}-{action}", f"{GROUP}/namespaces/{self.namespace}/inferenceservices/{NAME}"
        text = f'{{"id": "{name}", "action": "{action}", "by": "anna"}}'
        await self.api.merge(path, {"metadata": {"annotations": {"pagefleet.io/action": text}}})
        await self.until(f"{action} is done", lambda v: _answered(v.status, name))


def _answered(status: Document, name: str) -> bool:
    action = status.get("action") or {}
    return bool(action.get("id") == name and action.get("outcome") == "Done")


class Actions(LongerStory):
    chapters = ("create", "preview", "mirror", "promote", "undo", "abort", "delete")
    rollout: ClassVar[Document] = {
        "steps": [{"preview": {}}, {"mirror": "10%", "hold": "2s"}, {"weight": 50}, {"pause": {}}],
        "route": {"header": {"x-canary": "always"}},
        "guard": {},
    }

    async def _preview(self) -> None:
        await self._begin(4)
        await self.until("a preview", lambda v: v.phase == "Preview" and quiet(v))

    async def _mirror(self) -> None:
        await self._act("resume")
        await self.until("mirrored, and then paused", lambda v: v.phase == "Paused" and v.weights.get(v.canary) == 50)

    async def _promote(self) -> None:
        old = (await self.view()).stable
        await self._act("promote")
        await self.until("promoted", lambda v: v.stable not in ("", old) and v.phase == "Idle" and quiet(v))
        await self._gone(old)

    async def _undo(self) -> None:
        new = (await self.view()).stable
        await self._act("undo")
        await self.until("back", lambda v: v.stable not in ("", new) and v.phase == "RolledBack" and quiet(v))
        await self._gone(new)

    async def _abort(self) -> None:
        stable = (await self.view()).stable
        await self._begin(2, steps=[{"weight": 50, "hold": "1h"}])
        canary = (await self.until("its weight", lambda v: v.weights.get(v.canary) == 50)).canary
        await self._act("abort")
        await self.until("aborted", lambda v: v.phase == "RolledBack" and v.weights == {stable: 100} and quiet(v))
        await self._gone(canary)


class Replicas(LongerStory):
    chapters = ("create", "grow", "sleep", "wake", "delete")
    scaling: ClassVar[Document] = {"min": 1, "max": 4, "mode": "external", "warmSpares": 1}

    async def _grow(self) -> None:
        await self._replicas(3)

    async def _sleep(self) -> None:
        await self._replicas(0)

    async def _wake(self) -> None:
        await self._replicas(2)

    async def _replicas(self, count: int) -> None:
        await self._edit(lambda spec: spec["scaling"].update(min=count))
        await self.until(f"{count} replicas", lambda v: v.status.get("replicas") == count and quiet(v))


class Evidence(LongerStory):
    """`engines` are those of the ground's node. Its requests are sent in `run`, as long as it serves."""

    chapters = ("create", "promote", "rollback", "delete")
    rollout: ClassVar[Document] = {
        "steps": [{"weight": 50, "minRequests": 20}],
        "guard": {"latency": [], "errors": {"maxRate": "20%"}, "warmupRequests": 0},
        "watch": {},
    }
    engines: ClassVar[PodEngines]

    async def run(self) -> None:
        traffic = Traffic([self])
        asking = asyncio.create_task(traffic.run())
        try:
            await super().run()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _promote(self) -> None:
        old = (await self.view()).stable
        await self._begin(4)
        await self.until("promoted", lambda v: v.stable not in ("", old) and v.phase == "Idle" and quiet(v))
        await self._gone(old)

    async def _rollback(self) -> None:
        stable = (await self.view()).stable
        await self._begin(2, steps=[{"weight": 50, "hold": "1h"}])
        canary = (await self.until("a canary", lambda v: v.canary)).canary
        self.engines.broken.add((self.namespace, canary))
        back = await self.until("back", lambda v: v.phase == "RolledBack" and v.weights == {stable: 100} and quiet(v))
        assert [entry["reason"] for entry in back.status["rejected"]] == ["ErrorRate"], back.status["rejected"]
        await self._gone(canary)


class Groups(Story):
    """The first story's life with replicas of two pods each."""

    kinds: ClassVar = {
        **KINDS,
        "LeaderWorkerSet": f"/apis/{leader_worker_sets.GROUP}/v1/namespaces/{{}}/{leader_worker_sets.PLURAL}",
    }

    def spec(self) -> Document:
        plain = sample()["spec"]
        wide = {"model": plain["model"] | {"quantization": "none"}, "engine": plain["engine"] | {"nodes": 2}}
        return super().spec() | wide


class Routes(Story):
    """The first story's life with an HTTPRoute in place of our own gateway's weights."""

    kinds: ClassVar = {**KINDS, "HTTPRoute": f"/apis/{GATEWAY}/v1/namespaces/{{}}/httproutes"}

    def spec(self) -> Document:
        spec = super().spec()
        spec["traffic"] = {"provider": "GatewayAPI", "gatewayAPI": {"parentRefs": [{"name": "edge"}]}}
        spec["rollout"]["route"] = {"header": {"x-canary": "always"}}
        return spec

    def settled(self, view: View) -> bool:
        return super().settled(view) and view.is_true("RouteAccepted")

    async def state(self) -> dict[str, Document]:
        """Say of each route whether the gateway has accepted its present generation. How many generations there were depends on
        how fast one state of a rollout followed another."""
        documents = await super().state()
        for name, document in documents.items():
            if name.startswith("HTTPRoute/"):
                generation = document["metadata"].pop("generation")
                for parent in (document.get("status") or {}).get("parents") or ():
                    for condition in parent["conditions"]:
                        condition["observedGeneration"] = condition["observedGeneration"] == generation
        return documents
