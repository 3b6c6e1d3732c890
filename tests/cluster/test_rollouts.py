"""Protects rollouts on a real API server: actions by annotation, undo with capacity first, the load test's Job, what
`kubectl wait` says, refusals by the CRD's own rules; and the invariants on the recording of all of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.cluster.plane import Plane
from support.cluster.services import NAMESPACE, ready, service, settled, view

from pagefleet_local.demo.stage import View
from pagefleet_local.fleet.kubectl import Document

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
NAME = "rolled"


def wanted(number: int, steps: list[dict[str, Any]], **rollout: Any) -> Document:
    """No gateway runs here, so nothing is measured: without a guard each step passes by its time."""
    document = service(NAME, args=[f"--max-num-seqs={number}"])
    document["spec"]["rollout"] = {"steps": steps, "alerts": {"matchLabels": {"severity": "page"}}, **rollout}
    return document


async def act(plane: Plane, action: str, **more: str) -> View:
    """Annotate as the command line does, and wait for the answer."""
    asked = {"id": f"{action}-{len(more)}-{asyncio.get_running_loop().time()}", "action": action, **more}
    patch = {"metadata": {"annotations": {"pagefleet.io/action": json.dumps(asked)}}}
    await plane.kubectl.run("patch", "isvc", NAME, "-n", NAMESPACE, "--type=merge", "-p", json.dumps(patch))
    return await settled(
        plane, NAME, f"{action} is answered", lambda v: v.status.get("action", {}).get("id") == asked["id"]
    )


async def test_actions_are_done_once_each_and_answered(plane: Plane) -> None:
    await plane.kubectl.apply(wanted(1, []))
    first = (await settled(plane, NAME, "it serves", lambda v: v.is_true("Ready"))).stable
    assert (await act(plane, "promote")).status["action"]["outcome"] == "Refused"
    await plane.kubectl.apply(wanted(2, [{"weight": 10}, {"pause": {}}, {"weight": 50, "hold": "1h"}]))
    paused = await settled(plane, NAME, "it is paused", lambda v: v.phase == "Paused")
    canary = paused.canary
    assert paused.weights == {first: 90, canary: 10}
    assert (await act(plane, "resume", by="anna")).status["action"]["outcome"] == "Done"
    await settled(plane, NAME, "the last step", lambda v: v.weights.get(canary) == 50)
    await act(plane, "pause")
    held = await view(plane, NAME)
    assert held.condition("Progressing")["reason"] == "Paused"
    await act(plane, "resume")
    await act(plane, "promote")
    await settled(plane, NAME, "it is promoted", lambda v: v.stable == canary and not v.canary)
    for condition in ("Progressing=False", "Ready", "RolledBack=False"):
        await plane.kubectl.run(
            "wait", f"--for=condition={condition}", f"isvc/{NAME}", "-n", NAMESPACE, "--timeout=30s"
        )


async def test_undo_goes_back_with_capacity_first(plane: Plane) -> None:
    before = await view(plane, NAME)
    bad = before.stable
    good = before.status["previous"]["revision"]

    async def gone() -> bool:
        return await plane.kubectl.get("deployment", f"{NAME}-{good}", NAMESPACE) is None

    await settled(plane, NAME, "nothing drains", lambda v: not v.status.get("draining"))
    assert await gone(), "the stable is at zero"
    assert (await act(plane, "undo")).status["action"]["outcome"] == "Done"
    back = await settled(plane, NAME, "it is back", lambda v: v.phase == "RolledBack")
    assert (back.stable, back.weights) == (good, {good: 100})
    assert back.condition("RolledBack")["reason"] == "Undone"
    assert [entry["hash"] for entry in back.status["rejected"]] == [bad]
    assert (await act(plane, "retry")).status["action"]["outcome"] == "Done"
    await settled(plane, NAME, "tried again", lambda v: v.canary == bad or v.stable == bad)
    assert (await act(plane, "abort")).status["action"]["outcome"] == "Done"
    await settled(plane, NAME, "aborted", lambda v: v.phase == "RolledBack")


async def test_a_load_test_is_a_job_that_may_run_anywhere(plane: Plane) -> None:
    profile = {"requests": 5, "rate": 2, "timeout": "5m"}
    await plane.kubectl.apply(wanted(3, [{"loadTest": profile}, {"weight": 50}]))
    seen = await settled(plane, NAME, "the load test", lambda v: v.phase == "LoadTest")

    async def jobs() -> list[Document]:
        listed = await plane.kubectl.run(
            "get", "jobs", "-n", NAMESPACE, "-l", f"pagefleet.io/load-test={NAME}-{seen.canary}", "-o", "json"
        )
        return list(json.loads(listed.out)["items"])

    (job,) = await jobs()
    assert job["metadata"]["ownerReferences"][0]["name"] == NAME
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert f"http://{NAME}-{seen.canary}.{NAMESPACE}.svc:80" in arguments
    assert json.loads(arguments[arguments.index("--profile") + 1]) == {"requests": 5, "rate": 2}
    await act(plane, "abort")
    await settled(plane, NAME, "aborted", lambda v: v.phase == "RolledBack")


@pytest.mark.parametrize(
    ("name", "steps", "words"),
    [
        ("no-header", [{"preview": {}}], "preview needs spec.rollout.route.header"),
        ("pause-hold", [{"pause": {}, "hold": "5s"}], "hold belongs to a step"),
        ("mirror-min", [{"mirror": "1%", "minRequests": 5}], "minRequests belongs to a step"),
    ],
)
async def test_impossible_steps_are_refused(plane: Plane, name: str, steps: list[dict[str, Any]], words: str) -> None:
    """By the CRD's own rules where the API server knows such (1.25), else by a condition."""
    document = {**wanted(9, steps), "metadata": {"name": name, "namespace": NAMESPACE}}
    applied = await plane.kubectl.apply(document, check=False)
    if await plane.kubectl.server_minor() >= 25:
        assert applied.code != 0
        assert words in applied.text
    else:
        refused = await settled(plane, name, words, lambda v: v.condition("Degraded")["status"] == "True")
        assert words in refused.condition("Degraded")["message"]


async def test_the_recording_keeps_the_invariants(plane: Plane) -> None:
    """Runs last in this file. Every version is there: the plane's recording is a watch."""
    await ready(plane, "after")
    assert len(plane.recording.versions[NAMESPACE, NAME]) > 15
    assert [line for line in plane.recording.violations() if line.startswith(f"{NAMESPACE}/{NAME} ")] == []
