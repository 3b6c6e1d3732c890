"""Three more lives of a service, killed at every write like the first one (row 2 of the reliability table):
`PYTHONPATH=tests python -m faults.stories [--kind NAME] [--every 1]`.

- actions: a preview that a person ends, a mirror, a pause, a promotion and an undo by hand, a canary that a person aborts.
- replicas: a warm spare, external scaling up, to zero and back.
- evidence: engines answer, requests go through a real gateway, and the guard's own evidence on errors promotes one canary and
  rolls another back.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from faults.cases import Case, at_write
from faults.outages import Traffic, announced, gateway
from faults.proxy import Fault
from faults.report import store
from faults.runs import Ground, StoryResult, run_all
from faults.story import GROUP, NAME, Document, Story, quiet
from rich.console import Console
from support.cluster.own_plane import own_plane
from support.cluster.pod_engines import PodEngines
from support.private import alone
from support.sample_service import sample

AT_ONCE = 3
console = Console(highlight=False)


class LongerStory(Story):
    """A story whose service has `scaling` and `rollout` of its own."""

    scaling: ClassVar[Document] = {"min": 1, "max": 3}
    rollout: ClassVar[Document] = {"steps": [], "guard": {}}

    async def _create(self) -> None:
        document = sample()
        document["metadata"] = {"name": NAME, "namespace": self.namespace}
        document["spec"] |= {"scaling": dict(self.scaling), "rollout": dict(self.rollout)}
        await self.api.create(f"{GROUP}/namespaces/{self.namespace}/inferenceservices", document)
        await self.until("Ready", lambda v: v.is_true("Ready") and quiet(v))

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


KINDS: dict[str, type[LongerStory]] = {"actions": Actions, "replicas": Replicas, "evidence": Evidence}


def main(
    kind: Annotated[list[str] | None, typer.Option(help="only this story; may be given again")] = None,
    every: Annotated[int, typer.Option(help="strike at every so-manieth write")] = 1,
    private: Annotated[str, typer.Option(help="the name of its folders")] = "stories",
) -> None:
    """Kill the operator at the writes of three stories."""
    alone(private)
    results = asyncio.run(_play(kind or list(KINDS), every))
    failed = [one for one in results if one.problems or not one.struck]
    for one in failed:
        console.print(f"[red]{one.name}[/red]: {'; '.join(one.problems[:3]) or 'the fault never struck'}")
    kinds = ", ".join(kind or KINDS)
    store("stories", not failed, f"{len(results)} stories ({kinds}), {len(failed)} failed")
    raise typer.Exit(1 if failed or not results else 0)


async def _play(kinds: list[str], every: int) -> list[StoryResult]:
    results = []
    with tempfile.TemporaryDirectory() as folder:
        async with own_plane() as plane:
            for name in kinds:
                ground = Ground(plane.api, plane.layout, plane.node, Path(folder), kind=KINDS[name])
                async with _world(ground, name):
                    results += await _killed(ground, name, every)
    return results


@contextlib.asynccontextmanager
async def _world(ground: Ground, name: str) -> AsyncIterator[None]:
    """Run a gateway that the operator reads, and engines, where the story needs them."""
    if name != "evidence":
        yield
        return
    Evidence.engines = PodEngines()
    async with announced(ground), gateway(ground, Evidence.engines):
        yield


async def _killed(ground: Ground, name: str, every: int) -> list[StoryResult]:
    """Run a story without faults, and one for each write before and after which the operator is killed."""
    calm = await ground.calm()
    console.print(f"{name}: {calm.certain} certain of {calm.writes} writes, {calm.durations}")
    cases = [
        Case(2, f"{name}-{what}-write-{number}", at_write(number, fault))
        for number in range(1, calm.certain + 1, every)
        for what, fault in (("before", Fault(kill_before=True)), ("after", Fault(kill_after=True)))
    ]
    return await run_all(ground, cases, calm, AT_ONCE, lambda one: console.print(f"{one.name}: {one.problems or 'ok'}"))


if __name__ == "__main__":
    typer.run(main)
