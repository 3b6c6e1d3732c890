"""Protects the operator on a real API server: children and their owner, silence when idle, repair of drift, a canary,
rollback by alert, refusal of what it must refuse, and no revision from an edit that changes only the writing."""

from __future__ import annotations

import pytest
from support.cluster.plane import Plane
from support.cluster.services import NAMESPACE, alert, audited, decided_more, post, ready, service, settled, view

from pagefleet_local.fleet.kubectl import until

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]


async def test_a_service_gets_its_children_and_they_go_with_it(plane: Plane) -> None:
    state = await ready(plane, "whole")
    assert state.weights == {state.stable: 100}
    for kind in ("deployment", "service", "poddisruptionbudget"):
        child = await plane.kubectl.get(kind, f"whole-{state.stable}", NAMESPACE)
        assert child is not None, kind
        owner = child["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("InferenceService", "whole", True)
        assert child["metadata"]["labels"]["pagefleet.io/revision"] == state.stable
    await plane.kubectl.run("delete", "isvc", "whole", "-n", NAMESPACE)

    async def gone() -> bool:
        output = await plane.kubectl.run(
            "get", "deploy,svc,pdb,pods", "-n", NAMESPACE, "-l", "pagefleet.io/service=whole", "-o", "name"
        )
        return not output.out.strip()

    # The garbage collector looks for new kinds, such as ours, every 30 s; this test may be the first of the plane.
    await until(gone, timeout=120, what="the children are garbage-collected")


async def test_an_idle_service_is_never_written(plane: Plane) -> None:
    await ready(plane, "idle")
    state = await settled(plane, "idle", "nothing is left to do", lambda v: v.condition("Scaling")["status"] == "False")
    before = [e for e in audited(plane) if e["objectRef"].get("name", "").startswith("idle")]
    await decided_more(plane, "idle", 3)
    after = [e for e in audited(plane) if e["objectRef"].get("name", "").startswith("idle")]
    assert after[len(before) :] == []
    assert (await view(plane, "idle")).document["metadata"]["resourceVersion"] == state.document["metadata"][
        "resourceVersion"
    ]


async def test_drift_is_repaired(plane: Plane) -> None:
    state = await ready(plane, "drift")
    name = f"drift-{state.stable}"
    await plane.kubectl.run("scale", "deployment", name, "-n", NAMESPACE, "--replicas=3")
    await plane.kubectl.run("delete", "service", name, "-n", NAMESPACE)

    async def repaired() -> bool:
        deployment = await plane.kubectl.get("deployment", name, NAMESPACE)
        child = await plane.kubectl.get("service", name, NAMESPACE)
        return deployment is not None and deployment["spec"]["replicas"] == 1 and child is not None

    await until(repaired, timeout=30, what="replicas and Service are as they were")


async def test_an_alert_rolls_the_canary_back_and_only_a_true_one(plane: Plane) -> None:
    stable = (await ready(plane, "alerted")).stable
    await plane.kubectl.apply(service("alerted", args=["--max-num-seqs=4"]))
    state = await settled(plane, "alerted", "the canary has traffic", lambda v: v.weights.get(v.canary) == 10)
    canary = state.canary
    assert state.weights == {stable: 90, canary: 10}
    assert await post(plane, alert("alerted", canary), token="wrong") == 401
    assert await post(plane, {"version": "4", "alerts": [{"status": "firing"}]}) == 400
    assert await post(plane, alert("nobody", canary)) == 200
    assert await post(plane, alert("alerted", stable)) == 200
    # A path in place of a name, sent as another namespace's alert, must not reach this service's object.
    stray = alert(f"../../{NAMESPACE}/inferenceservices/alerted", canary)
    stray["alerts"][0]["labels"]["namespace"] = "default"  # type: ignore[index]
    assert await post(plane, stray) == 200
    await decided_more(plane, "alerted", 2)  # the second of them began after these alerts
    quiet = await view(plane, "alerted")
    assert [entry["revision"] for entry in quiet.status["alerts"]] == [stable]
    assert (quiet.canary, quiet.weights) == (canary, {stable: 90, canary: 10})
    payload = alert("alerted", canary)
    payload["alerts"][0]["fingerprint"] = "second"  # type: ignore[index]
    assert await post(plane, payload) == 200
    # Persisted before the answer: the alert is in the object now, whatever the operator does next.
    stored = (await view(plane, "alerted")).status["alerts"]
    assert [entry["fingerprint"] for entry in stored].count("second") == 1
    assert await post(plane, payload) == 200
    rolled = await settled(plane, "alerted", "rolled back", lambda v: v.phase == "RolledBack")
    assert rolled.weights == {stable: 100}
    assert [(r["hash"], r["reason"]) for r in rolled.status["rejected"]] == [(canary, "Alert")]
    await plane.kubectl.apply(service("alerted", args=["--max-num-seqs=4"]))
    await plane.kubectl.run("annotate", "isvc", "alerted", "-n", NAMESPACE, "again=true")
    await decided_more(plane, "alerted", 2)
    again = await view(plane, "alerted")
    assert (again.phase, again.canary, again.weights) == ("RolledBack", "", {stable: 100})


async def test_an_invalid_spec_keeps_what_runs_and_names_the_field(plane: Plane) -> None:
    await ready(plane, "neighbour")
    neighbour = await settled(plane, "neighbour", "idle", lambda v: v.condition("Scaling")["status"] == "False")
    state = await ready(plane, "invalid")
    broken = service("invalid", args=["--model=other"])
    await plane.kubectl.apply(broken)
    degraded = await settled(plane, "invalid", "Degraded", lambda v: v.condition("Degraded")["status"] == "True")
    assert "spec.engine.args[0]" in degraded.condition("Degraded")["message"]
    assert degraded.is_true("Ready")
    assert degraded.weights == {state.stable: 100}
    await plane.kubectl.events("invalid", NAMESPACE, "InvalidSpec")
    assert (await view(plane, "neighbour")).document["status"] == neighbour.document["status"]
    await plane.kubectl.apply(service("invalid"))
    fixed = await settled(plane, "invalid", "mended", lambda v: v.condition("Degraded")["status"] == "False")
    assert fixed.stable == state.stable


async def test_a_users_labels_survive(plane: Plane) -> None:
    state = await ready(plane, "shared")
    name = f"shared-{state.stable}"
    await plane.kubectl.run("label", "deployment", name, "-n", NAMESPACE, "team=a")
    await plane.kubectl.run("scale", "deployment", name, "-n", NAMESPACE, "--replicas=2")

    async def repaired() -> bool:
        deployment = await plane.kubectl.get("deployment", name, NAMESPACE)
        return deployment is not None and deployment["spec"]["replicas"] == 1

    await until(repaired, timeout=30, what="replicas are repaired")
    deployment = await plane.kubectl.get("deployment", name, NAMESPACE)
    assert deployment is not None
    assert deployment["metadata"]["labels"]["team"] == "a"


async def test_an_edit_of_the_writing_alone_makes_no_revision(plane: Plane) -> None:
    """250m is 0.25, 2Gi is 2048Mi, and an empty list is none: the Deployment is not even written."""
    state = await ready(plane, "written")
    name = f"written-{state.stable}"
    before = await plane.kubectl.get("deployment", name, NAMESPACE)
    document = service("written", env=[])
    document["spec"]["resources"] |= {"cpu": "0.25", "memory": "2048Mi"}
    await plane.kubectl.apply(document)
    edited = await settled(
        plane,
        "written",
        "the edit is decided on",
        lambda v: v.status["observedGeneration"] == v.document["metadata"]["generation"] > 1,
    )
    assert edited.document["spec"]["resources"]["memory"] == "2048Mi"
    assert (edited.stable, edited.canary, edited.weights) == (state.stable, "", {state.stable: 100})
    after = await plane.kubectl.get("deployment", name, NAMESPACE)
    assert before is not None
    assert after is not None
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
