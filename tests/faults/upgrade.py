"""An old operator's objects under this one, and this one's under the old: `PYTHONPATH=tests python -m faults.upgrade
[--from COMMIT]`. The old operator is real: its code and CRD come out of git.

The old one brings a service up, and another to the middle of a rollout. This one takes over, with its CRD, ends that
rollout and begins the next. Then the old one is back, with its CRD, on the objects that this one has left (downgrade).
Prints the differences. The exit status is 1 when a service was not Ready in any version of it, a weight moved by itself, the upgrade replaced an
engine pod, or an invariant was broken. (An old operator that comes back writes its own defaults into all pods.)
"""

from __future__ import annotations

import asyncio
import io
import shutil
import subprocess
import tarfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from faults.operator_process import Operator
from faults.report import store
from faults.story import GROUP
from rich.console import Console
from support.cluster.own_plane import own_plane
from support.private import alone
from support.recording import Recording

from pagefleet_local.base.paths import Layout
from pagefleet_local.fleet.install import CHECKOUT, install_crd
from pagefleet_local.fleet.kubectl import Kubectl, until
from pagefleet_local.fleet.view import View
from pagefleet_operator.kube.client import Api

FIRST = "0398a06"  # the first state of the repository whose demo and tests passed
NAMESPACE, PORT = "upgrade", 18270
LOGS = CHECKOUT / "build/upgrade"  # and the old code
STILL_SECONDS, TIMEOUT_SECONDS = 12.0, 180.0
Document = dict[str, Any]
console = Console(highlight=False)


@dataclass
class World:
    api: Api
    layout: Layout
    folder: Path
    problems: list[str] = field(default_factory=list)
    measured: dict[str, object] = field(default_factory=dict)

    def operator(self, code: Path | None) -> Operator:
        return Operator(self.layout, self.folder, NAMESPACE, PORT + (code is None), code=code)

    async def view(self, name: str) -> View:
        return View(await self.api.get(f"{GROUP}/namespaces/{NAMESPACE}/inferenceservices/{name}"))

    async def until(self, name: str, what: str, holds: Any) -> None:
        async def reached() -> bool:
            return bool(holds(await self.view(name)))

        await until(reached, timeout=TIMEOUT_SECONDS, what=f"{name}: {what}")

    async def create(self, name: str) -> None:
        spec = {
            "model": {"source": "file:///model"},
            "engine": {"args": ["--max-num-seqs=8"]},
            "resources": {"cpu": "10m", "memory": "16Mi"},
            "scaling": {"min": 2, "max": 2},
            "rollout": {"steps": [{"weight": 50, "hold": "1h"}], "guard": {"latency": []}},
        }
        document = {
            "apiVersion": "pagefleet.io/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": name},
            "spec": spec,
        }
        await self.api.create(f"{GROUP}/namespaces/{NAMESPACE}/inferenceservices", document)

    async def edit(self, name: str, change: Document) -> None:
        await self.api.merge(f"{GROUP}/namespaces/{NAMESPACE}/inferenceservices/{name}", {"spec": change})

    async def pods(self) -> dict[str, str]:
        """Return the uids of the pods that are not being deleted, with their service."""
        listed = await self.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")
        return {
            item["metadata"]["uid"]: item["metadata"]["labels"].get("pagefleet.io/service", "")
            for item in listed["items"]
            if "deletionTimestamp" not in item["metadata"]
        }

    async def taken_over(self, what: str, code: Path | None) -> Operator:
        """Start the next operator, wait until it writes nothing more, and note its changes. The caller ends it."""
        weights = {name: (await self.view(name)).weights for name in ("idle", "rolling")}
        before = await self.pods()
        operator = self.operator(code)
        await operator.__aenter__()
        await until(operator.ready, timeout=TIMEOUT_SECONDS, what="the operator is ready")
        await self._still(operator)
        after = await self.pods()
        self.measured[f"{what}: writes"] = len(operator.proxy.committed)
        replaced = len(set(before) - set(after))
        self.measured[f"{what}: pods replaced"] = replaced
        if replaced and code is None:
            self.problems.append(f"{what}: {replaced} engine pods were replaced")
        for name, were in weights.items():
            view = await self.view(name)
            if not view.is_true("Ready"):
                self.problems.append(f"{what}: {name} is not Ready: {view.condition('Ready')}")
            if view.weights != were:
                self.problems.append(f"{what}: {name}'s weights went from {were} to {view.weights}")
        return operator

    async def _still(self, operator: Operator) -> None:
        end, last, since = time.monotonic() + TIMEOUT_SECONDS, -1, time.monotonic()
        while time.monotonic() - since < STILL_SECONDS:
            # The timer of a step is written every ten seconds: writes of a status do not count.
            now = sum(not call.path.endswith("/status") for call in operator.proxy.committed)
            if now != last:
                last, since = now, time.monotonic()
            if time.monotonic() > end:
                self.problems.append("the operator never stopped writing")
                return
            await asyncio.sleep(0.5)


def main(
    old: Annotated[str, typer.Option("--from", help="the commit of the old operator")] = FIRST,
    private: Annotated[str, typer.Option(help="the name of its folders")] = "upgrade",
) -> None:
    """Upgrade and downgrade the operator."""
    alone(private)
    archive = subprocess.run(
        ["git", "-C", str(CHECKOUT), "archive", old, "operator", "crds"], check=False, capture_output=True
    )
    if archive.returncode:
        console.print(f"there is no commit {old} here: {archive.stderr.decode().strip()}")
        raise typer.Exit(2)
    shutil.rmtree(LOGS, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(LOGS / "old", filter="data")
    world = asyncio.run(_play(LOGS))
    for what, value in world.measured.items():
        console.print(f"{what}: {value}")
    for problem in world.problems:
        console.print(f"[red]{problem}[/red]")
    store("upgrade", not world.problems, "; ".join(f"{what} {value}" for what, value in world.measured.items()))
    raise typer.Exit(1 if world.problems else 0)


async def _play(folder: Path) -> World:
    async with own_plane(NAMESPACE, crd=False) as plane:
        await plane.kubectl.run("apply", "--validate=false", "-f", str(folder / "old/crds"))
        world = World(plane.api, plane.layout, folder)
        await _hands(world, plane.kubectl, folder / "old/operator")
        return world


async def _hands(world: World, kubectl: Kubectl, old: Path) -> None:
    async with world.operator(old) as operator:
        await until(operator.ready, timeout=TIMEOUT_SECONDS, what="the old operator is ready")

        async def served() -> bool:
            return (await kubectl.run("get", "inferenceservices", "-A", check=False)).code == 0

        await until(served, timeout=30, what="the API server serves inferenceservices")
        for name in ("idle", "rolling"):
            await world.create(name)
            await world.until(name, "Ready", lambda v: v.is_true("Ready") and v.status.get("replicas", 2) == 2)
        await world.edit("rolling", {"engine": {"args": ["--max-num-seqs=4"]}})
        await world.until("rolling", "its canary has half", lambda v: 50 in v.weights.values())
    await install_crd(kubectl, console.print)
    recording = Recording(world.api, NAMESPACE)
    watching = asyncio.create_task(recording.run())
    newer = await world.taken_over("upgrade", None)
    try:
        # To this operator the guard has an error signal, which nothing measures here: no step would pass.
        await world.edit("rolling", {"rollout": {"steps": []}})
        await world.until("rolling", "promoted", lambda v: not v.canary and len(v.weights) == 1)
        await world.edit(
            "rolling",
            {"engine": {"args": ["--max-num-seqs=2"]}, "rollout": {"steps": [{"weight": 50, "hold": "1h"}]}},
        )
        await world.until("rolling", "the next canary has half", lambda v: 50 in v.weights.values())
        await world.until("rolling", "nothing drains", lambda v: not v.status.get("draining"))
    finally:
        await newer.__aexit__()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    world.problems += [*recording.violations(), *_unready(recording)]
    # With its CRD: with the new one left in place an older operator did not act on edits.
    await kubectl.run("apply", "--validate=false", "-f", str(old.parent / "crds"))
    older = await world.taken_over("downgrade", old)
    try:
        await world.edit("idle", {"scaling": {"min": 3, "max": 3}})

        async def grown() -> bool:
            return Counter((await world.pods()).values())["idle"] == 3

        try:
            await until(grown, timeout=TIMEOUT_SECONDS, what="the old operator decides again: idle has three pods")
        except TimeoutError as error:
            world.problems.append(f"{error}; {(await world.view('idle')).status.get('conditions')}")
    finally:
        await older.__aexit__()


def _unready(recording: Recording) -> list[str]:
    """Return the services that were not Ready in any version of theirs: each was Ready when the recording began."""
    return [
        f"upgrade: {name} was not Ready at {document['metadata']['resourceVersion']}: {View(document).condition('Ready')}"
        for (_, name), versions in sorted(recording.versions.items())
        for document in versions
        if View(document).condition("Ready").get("status") != "True"
    ]


if __name__ == "__main__":
    typer.run(main)
