"""Protects rollouts on a real API server: actions by annotation, undo with capacity first, the load test's Job,
`kubectl wait`, refusals by the CRD's own rules, and the invariants on the recording. Each test has a service of its own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.cluster.plane import Plane
from support.cluster.services import NAMESPACE, service, settled, view

from pagefleet_local.fleet.kubectl import Document
from pagefleet_local.fleet.view import View

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
ALERTS = {"matchLabels": {"severity": "page"}}


def revision(name: str, number: int, steps: list[dict[str, Any]]) -> Document:
    """The service `name` with one revision for each number. No gateway runs here, so nothing is measured: without a guard
    each step passes by its time."""
    document = service(name, args=[f"--max-num-seqs={number}"])
    document["spec"]["rollout"] = {"steps": steps, "guard": {}, "alerts": ALERTS}
    return document


async def serving(plane: Plane, name: str) -> str:
    """Apply revision 1 of a new service and return its hash when the service is Ready."""
    await plane.kubectl.apply(revision(name, 1, []))
    return (await settled(plane, name, "it serves", lambda v: v.is_true("Ready"))).stable


async def promoted(plane: Plane, name: str) -> tuple[str, str]:
    """A new service after one rollout: the hashes of the previous revision and of the stable one."""
    first = await serving(plane, name)
    await plane.kubectl.apply(revision(name, 2, [{"weight": 10}, {"pause": {}}]))
    await settled(plane, name, "it is paused", lambda v: v.phase == "Paused")
    await act(plane, name, "promote")
    view = await settled(plane, name, "it is promoted", lambda v: v.stable not in ("", first) and not v.canary)
    return first, view.stable


async def act(plane: Plane, name: str, action: str, **more: str) -> View:
    """Annotate as the command line does, and wait for the answer."""
    asked = {"id": f"{action}-{len(more)}-{asyncio.get_running_loop().time()}", "action": action, **more}
    patch = {"metadata": {"annotations": {"pagefleet.io/action": json.dumps(asked)}}}
    await plane.kubectl.run("patch", "isvc", name, "-n", NAMESPACE, "--type=merge", "-p", json.dumps(patch))
    return await settled(
        plane, name, f"{action} is answered", lambda v: v.status.get("action", {}).get("id") == asked["id"]
    )


async def test_actions_are_done_once_each_and_answered(plane: Plane) -> None:
    name = "rollout-actions"
    first = await serving(plane, name)
    assert (await act(plane, name, "promote")).status["action"]["outcome"] == "Refused"
    await plane.kubectl.apply(revision(name, 2, [{"weight": 10}, {"pause": {}}, {"weight": 50, "hold": "1h"}]))
    paused = await settled(plane, name, "it is paused", lambda v: v.phase == "Paused")
    canary = paused.canary
    assert paused.weights == {first: 90, canary: 10}
    assert (await act(plane, name, "resume", by="anna")).status["action"]["outcome"] == "Done"
    await settled(plane, name, "the last step", lambda v: v.weights.get(canary) == 50)
    await act(plane, name, "pause")
    held = await view(plane, name)
    assert held.condition("Progressing")["reason"] == "Paused"
    await act(plane, name, "resume")
    await act(plane, name, "promote")
    await settled(plane, name, "it is promoted", lambda v: v.stable == canary and not v.canary)
    for condition in ("Progressing=False", "Ready", "RolledBack=False"):
        await plane.kubectl.run(
            "wait", f"--for=condition={condition}", f"isvc/{name}", "-n", NAMESPACE, "--timeout=30s"
        )


async def test_undo_goes_back_with_capacity_first(plane: Plane) -> None:
    name = "rollout-undo"
    good, bad = await promoted(plane, name)
    assert (await view(plane, name)).status["previous"]["revision"] == good

    async def gone() -> bool:
        return await plane.kubectl.get("deployment", f"{name}-{good}", NAMESPACE) is None

    await settled(plane, name, "nothing drains", lambda v: not v.status.get("draining"))
    assert await gone(), "the stable is at zero"
    assert (await act(plane, name, "undo")).status["action"]["outcome"] == "Done"
    back = await settled(plane, name, "it is back", lambda v: v.phase == "RolledBack")
    assert (back.stable, back.weights) == (good, {good: 100})
    assert back.condition("RolledBack")["reason"] == "Undone"
    assert [entry["hash"] for entry in back.status["rejected"]] == [bad]
    assert (await act(plane, name, "retry")).status["action"]["outcome"] == "Done"
    await settled(plane, name, "tried again", lambda v: v.canary == bad or v.stable == bad)
    assert (await act(plane, name, "abort")).status["action"]["outcome"] == "Done"
    await settled(plane, name, "aborted", lambda v: v.phase == "RolledBack")


async def test_a_load_test_is_a_job_that_may_run_anywhere(plane: Plane) -> None:
    name = "rollout-load-test"
    await serving(plane, name)
    profile = {"requests": 5, "rate": 2, "endpoints": ["/v1/models", "/v1/chat/completions"]}
    await plane.kubectl.apply(revision(name, 2, [{"loadTest": {**profile, "timeout": "5m"}}, {"weight": 50}]))
    tested = await settled(plane, name, "the load test", lambda v: v.phase == "LoadTest")

    async def jobs() -> list[Document]:
        listed = await plane.kubectl.run(
            "get", "jobs", "-n", NAMESPACE, "-l", f"pagefleet.io/load-test={name}-{tested.canary}", "-o", "json"
        )
        return list(json.loads(listed.out)["items"])

    (job,) = await jobs()
    assert job["metadata"]["ownerReferences"][0]["name"] == name
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert f"http://{name}-{tested.canary}.{NAMESPACE}.svc:80" in arguments
    assert json.loads(arguments[arguments.index("--profile") + 1]) == profile
    await act(plane, name, "abort")
    await settled(plane, name, "aborted", lambda v: v.phase == "RolledBack")


@pytest.mark.parametrize(
    ("name", "steps", "words"),
    [
        ("no-header", [{"preview": {}}], "preview needs spec.rollout.route.header"),
        ("pause-hold", [{"pause": {}, "hold": "5s"}], "hold belongs to a step"),
        ("mirror-min", [{"mirror": "1%", "minRequests": 5}], "minRequests belongs to a step"),
    ],
)
async def test_impossible_steps_are_refused(plane: Plane, name: str, steps: list[dict[str, Any]], words: str) -> None:
    """By the CRD's own rules where the API server evaluates them (from 1.25), else by a condition."""
    document = revision(name, 1, steps)
    applied = await plane.kubectl.apply(document, check=False)
    if await plane.kubectl.server_minor() >= 25:
        assert applied.code != 0
        assert words in applied.text
    else:
        refused = await settled(plane, name, words, lambda v: v.condition("Degraded")["status"] == "True")
        assert words in refused.condition("Degraded")["message"]


async def test_a_recorded_rollout_keeps_the_invariants(plane: Plane) -> None:
    """The plane's recording is a watch: it has every version of this service, and of those of the tests before."""
    name = "rollout-recorded"
    first = await serving(plane, name)
    await plane.kubectl.apply(revision(name, 2, [{"weight": 10}, {"pause": {}}, {"weight": 50}]))
    await settled(plane, name, "it is paused", lambda v: v.phase == "Paused")
    await act(plane, name, "resume")
    await settled(plane, name, "it is promoted", lambda v: v.stable not in ("", first) and not v.canary)
    assert len(plane.recording.versions[NAMESPACE, name]) > 8
    assert plane.recording.violations() == []
