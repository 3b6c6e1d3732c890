"""Protects the verdicts that people adopt Pagefleet for, on the real node with real engines and a real load: the scenes of
`make demo`, in its order on one service, each ending as it must. A good revision is promoted with every request answered. A
slow one, one with errors, one that an alert accuses and one that becomes slow after its promotion are rolled back, each for
its own reason. `make demo HOGS=6` plays the same scenes beside six busy loops."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from pagefleet_local.commands.demo import SCENES
from pagefleet_local.demo.load import Load
from pagefleet_local.demo.narration import Narrator
from pagefleet_local.demo.stage import NAME, NAMESPACE, Stage
from pagefleet_local.fleet.install import Fleet

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]
# The reasons of the rejected revisions after each scene: nothing else is ever rejected, and nothing is forgiven.
REASONS = {
    "serve": (),
    "mistakes": (),
    "canary": (),
    "promoted": ("LatencyRegression",),
    "errors": ("LatencyRegression", "ErrorRate"),
    "regression": ("LatencyRegression", "ErrorRate", "LatencyRegression"),
    "alert": ("LatencyRegression", "ErrorRate", "LatencyRegression", "Alert"),
    "burst": ("LatencyRegression", "ErrorRate", "LatencyRegression", "Alert"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(fleet: Fleet, narrator: Narrator) -> AsyncIterator[Stage]:
    await fleet.kubectl.run("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true", "--timeout=180s")
    async with Load(f"{fleet.gateway}/{NAMESPACE}/{NAME}/v1") as load:
        yield Stage(narrator, fleet, load)
    await fleet.kubectl.run("delete", "namespace", NAMESPACE, "--wait=true", "--timeout=180s")


@pytest.mark.parametrize("name", SCENES)
async def test_a_scene_ends_as_it_must(stage: Stage, name: str) -> None:
    await SCENES[name].play(stage)
    status = (await stage.view()).status
    assert tuple(entry["reason"] for entry in status.get("rejected", ())) == REASONS[name]
    assert status["traffic"] == [{"revision": status["stable"], "weight": 100}]
