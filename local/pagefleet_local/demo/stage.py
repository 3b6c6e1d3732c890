"""The stage of every scene: the fleet, the narrator, the load, and the service as last read."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from pagefleet_local.demo.load import Load
from pagefleet_local.demo.narration import Narrator, SceneFailed
from pagefleet_local.fleet.install import CHECKOUT, Fleet
from pagefleet_local.fleet.kubectl import Document, Kubectl
from pagefleet_local.fleet.view import View

NAMESPACE, NAME = "team-a", "chat"
DIFFERS = 1  # the exit status of `kubectl diff`; an error has a higher one
SAMPLE = CHECKOUT / "manifests/samples/chat.yaml"


@dataclass
class Stage:
    narrator: Narrator
    fleet: Fleet
    load: Load
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def kubectl(self) -> Kubectl:
        return self.fleet.kubectl

    @property
    def url(self) -> str:
        return f"{self.fleet.gateway}/{NAMESPACE}/{NAME}/v1"

    async def view(self, name: str = NAME) -> View:
        document = await self.kubectl.get("inferenceservice", name, NAMESPACE)
        if document is None:
            raise SceneFailed(f"inferenceservice {NAMESPACE}/{name} does not exist")
        return View(document)

    async def watch(self, done: Callable[[View], bool], *, timeout: float, what: str, name: str = NAME) -> View:
        """Read the service each second, show it, until `done`. Raises SceneFailed after `timeout` seconds."""
        end = self.narrator.elapsed + timeout
        while True:
            view = await self.view(name)
            self.narrator.live(view.line())
            if done(view):
                self.narrator.quiet()
                return view
            if self.narrator.elapsed > end:
                self.narrator.output(view.report(), limit=60)
                raise SceneFailed(f"not within {timeout:.0f} s: {what}")
            await asyncio.sleep(1.0)

    async def edit(
        self, *, most: int | None = None, first: int | None = None, errors: bool = True, **changes: object
    ) -> Document:
        """Apply the sample with `engine.<key>` fields (and scaling.max, and the first step's weight) changed, as a user who edits
        the YAML and applies it again. `errors` False: its guard does not judge failed and refused requests."""
        document = sample()
        document["spec"]["engine"].update(copy.deepcopy(changes))
        if most is not None:
            document["spec"]["scaling"]["max"] = most
        if first is not None:
            document["spec"]["rollout"]["steps"][0]["weight"] = first
        if not errors:
            document["spec"]["rollout"]["guard"]["errors"] = {}
        if changes:
            self.narrator.yaml(yaml.safe_dump({"spec": {"engine": changes}}, sort_keys=False))
        await self.apply(document)
        return document

    async def apply(self, document: Document) -> None:
        self.narrator.command("kubectl apply -f chat.yaml")
        self.narrator.output((await self.kubectl.apply(document)).text)

    async def restore(self, before: Document) -> None:
        """Apply the spec that the service had before, as its user would, and wait until no rollout is under way."""
        names = {key: before["metadata"][key] for key in ("name", "namespace")}
        own = {key: before[key] for key in ("apiVersion", "kind", "spec")}
        await self.apply({**own, "metadata": names})
        await self.watch(lambda v: v.phase == "Idle" and v.is_true("Ready"), timeout=60, what="the rollout has ended")


def sample() -> Document:
    """manifests/samples/chat.yaml."""
    document: Document = yaml.safe_load(SAMPLE.read_text())
    return document


async def own(kubectl: Kubectl) -> bool:
    """Whether the service exists and applying the sample would change it: somebody has edited it."""
    if await kubectl.get("inferenceservice", NAME, NAMESPACE) is None:
        return False
    return (await kubectl.run("diff", "-f", str(SAMPLE), check=False)).code == DIFFERS
