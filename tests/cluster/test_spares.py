"""Protects warm spares on a real API server: a Deployment of their own that the replicas' budget leaves out, never Ready
until the operator opens their gate, woken for a replica that is missing, gone with the field. A first spare of vLLM, with
its sidecar, changes no replica and no revision. (Real engines asleep and awake: test_e2e_fleet.py.)"""

from __future__ import annotations

from typing import Any

import pytest
from support.cluster.plane import Plane
from support.sample_service import sample

from pagefleet_local.fleet.kubectl import Document, until
from pagefleet_local.fleet.view import View

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
NAMESPACE, NAME = "default", "spared"
# No other test may have a service of this name: records outlive their service, and would bring its stable revision back.
VLLM = "spared-by-vllm"


def service(replicas: int, spares: int) -> Document:
    document = sample()
    document["metadata"] = {"name": NAME, "namespace": NAMESPACE}
    document["spec"]["scaling"] = {"min": replicas, "max": 4, "mode": "external", "warmSpares": spares}
    return document


async def pods(plane: Plane, *, spare: bool) -> list[Document]:
    """Return the pods that are not being deleted."""
    selector = f"pagefleet.io/service={NAME},{'' if spare else '!'}pagefleet.io/spare"
    return [
        pod
        for pod in await plane.kubectl.list("pods", NAMESPACE, selector)
        if "deletionTimestamp" not in pod["metadata"]
    ]


def is_ready(pod: Document) -> bool:
    conditions: list[Any] = (pod.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


async def view(plane: Plane) -> View:
    document = await plane.kubectl.get("isvc", NAME, NAMESPACE)
    assert document is not None
    return View(document)


async def test_a_spare_stands_in_for_a_replica_that_is_not_ready(plane: Plane) -> None:
    await plane.kubectl.apply(service(1, 1))

    async def spare_runs() -> bool:
        spares = await pods(plane, spare=True)
        return len(spares) == 1 and bool((spares[0].get("status") or {}).get("podIP"))

    await until(spare_runs, timeout=60, what="a spare runs")
    state = await view(plane)
    assert state.is_true("Ready")
    assert state.status["spares"]["desired"] == 1
    assert state.status["replicas"] == 1, "a spare does not serve"
    (own,) = await pods(plane, spare=False)
    (spare,) = await pods(plane, spare=True)
    assert (is_ready(own), is_ready(spare)) == (True, False)

    async def budgeted() -> bool:
        budget = await plane.kubectl.get("poddisruptionbudget", f"{NAME}-{state.stable}", NAMESPACE)
        status = (budget or {}).get("status") or {}
        return (status.get("expectedPods"), status.get("disruptionsAllowed")) == (1, 1)

    await until(budgeted, timeout=30, what="the budget counts the replica alone, and lets it be moved")
    plane.node.hold.add(state.stable)
    try:
        await plane.kubectl.run("delete", "pod", "-n", NAMESPACE, own["metadata"]["name"], "--wait=false")

        async def stood_in() -> bool:
            return [is_ready(pod) for pod in await pods(plane, spare=True)] == [True]

        await until(stood_in, timeout=30, what="the spare is ready")
        state = await view(plane)
        assert state.is_true("Ready"), "the service stayed Ready"
    finally:
        plane.node.hold.discard(state.stable)

    async def rests() -> bool:
        spares = [is_ready(pod) for pod in await pods(plane, spare=True)]
        return spares == [False] and [is_ready(pod) for pod in await pods(plane, spare=False)] == [True]

    await until(rests, timeout=90, what="the replica serves and the spare rests")
    kinds = [entry["kind"] for entry in (await view(plane)).status["decisions"]]
    assert kinds.count("SpareWoken") == kinds.count("SpareReleased") == 1


async def test_spares_go_with_the_field(plane: Plane) -> None:
    await plane.kubectl.apply(service(1, 0))

    async def gone() -> bool:
        return await plane.kubectl.list("deployments", NAMESPACE, "pagefleet.io/spare") == []

    await until(gone, timeout=40, what="the spares' Deployment is gone")
    state = await view(plane)
    assert "spares" not in state.status
    assert state.is_true("Ready")
    assert len(await pods(plane, spare=False)) == 1
    await plane.kubectl.run("delete", "isvc", NAME, "-n", NAMESPACE)


async def test_a_spare_of_vllm_changes_no_replica(plane: Plane) -> None:
    def changed(spares: int) -> Document:
        document = service(1, spares)
        document["metadata"]["name"] = VLLM
        document["spec"]["engine"] = {"runtime": "vllm", "image": "registry.example/vllm:1"}
        document["spec"]["model"] = {"source": "file:///models/m"}
        document["spec"]["resources"] = {"accelerator": {"name": "nvidia.com/gpu"}}
        return document

    async def workloads() -> list[Document]:
        return await plane.kubectl.list("deployments", NAMESPACE, f"pagefleet.io/service={VLLM}")

    async def made(number: int) -> bool:
        return len(await workloads()) == number

    await plane.kubectl.apply(changed(0))
    await until(lambda: made(1), timeout=60, what="the replicas' Deployment is there")
    (before,) = await workloads()
    await plane.kubectl.apply(changed(1))
    await until(lambda: made(2), timeout=60, what="the spares' Deployment is there")
    replicas, spare = sorted(await workloads(), key=lambda one: len(one["metadata"]["name"]))
    assert replicas["spec"]["template"] == before["spec"]["template"]
    assert replicas["metadata"]["name"] == before["metadata"]["name"]
    engine, sidecar = spare["spec"]["template"]["spec"]["containers"]
    assert "--host=127.0.0.1" in engine["args"] and "ports" not in engine
    assert [port["name"] for port in sidecar["ports"]] == ["http"]
    await plane.kubectl.run("delete", "isvc", VLLM, "-n", NAMESPACE)
