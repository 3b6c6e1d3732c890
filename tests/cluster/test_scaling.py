"""Protects scaling on a real API server: `/scale` and `kubectl scale` as the mode has it, a pod that fits on no node
named in a condition without thrash, a quota's refusal, sleep, the wake-up by a request that a real gateway holds, and a capacity plan
beside what engines state."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from support.cluster.plane import Plane
from support.cluster.pod_engines import PAGES, PodEngines
from support.sample_service import sample

from pagefleet_local.fleet.kubectl import Document, until
from pagefleet_local.fleet.view import View
from pagefleet_operator.kube.client import ApiError

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
NAMESPACE, ADDRESS = "default", "127.100.1.1"
ANSWER_SECONDS = 15.0


def service(name: str, scaling: Document, **spec: object) -> Document:
    document = sample()
    document["metadata"] = {"name": name, "namespace": NAMESPACE}
    document["spec"] |= {"scaling": scaling, **spec}
    return document


async def view(plane: Plane, name: str) -> View:
    document = await plane.kubectl.get("isvc", name, NAMESPACE)
    assert document is not None
    return View(document)


async def settled(plane: Plane, name: str, what: str, holds: Any, timeout: float = 60) -> View:
    async def check() -> bool:
        return bool(holds(await view(plane, name)))

    await until(check, timeout=timeout, what=what, interval=0.2)
    return await view(plane, name)


async def replicas(plane: Plane, name: str, revision: str) -> int:
    deployment = await plane.kubectl.get("deployment", f"{name}-{revision}", NAMESPACE)
    assert deployment is not None
    return int(deployment["spec"]["replicas"])


def desired(state: View) -> int:
    return sum(int(entry.get("desired", 0)) for entry in state.status.get("revisions") or [])


def decisions(state: View, kind: str) -> int:
    return sum(1 for entry in state.status.get("decisions") or [] if entry["kind"] == kind)


async def test_kubectl_scale_sets_the_floor_and_external_mode_follows_it(plane: Plane) -> None:
    await plane.kubectl.apply(service("outside", {"min": 1, "max": 5, "mode": "external"}))
    state = await settled(plane, "outside", "Ready", lambda v: v.is_true("Ready"))
    scale = await plane.kubectl.run("get", "isvc", "outside", "-n", NAMESPACE, "--subresource=scale", "-o", "json")
    document = json.loads(scale.out)
    assert document["spec"]["replicas"] == 1
    assert "pagefleet.io/service=outside" in document["status"]["selector"], "what an HPA counts pods by"
    for count in (4, 2):
        await plane.kubectl.run("scale", "isvc", "outside", "-n", NAMESPACE, f"--replicas={count}")
        await settled(
            plane,
            "outside",
            f"{count} replicas",
            lambda v, count=count: v.status.get("replicas") == count == desired(v),
        )
        assert await replicas(plane, "outside", state.stable) == count
    await plane.kubectl.run("delete", "isvc", "outside", "-n", NAMESPACE)


async def test_a_pod_that_fits_on_no_node_is_named_and_asked_for_once(plane: Plane) -> None:
    resources = {"cpu": "40", "memory": "1Gi"}  # the only node has 64, and other tests have services on it
    await plane.kubectl.apply(service("large", {"min": 1, "max": 4, "mode": "external"}, resources=resources))
    await settled(plane, "large", "Ready", lambda v: v.is_true("Ready"))
    await plane.kubectl.run("scale", "isvc", "large", "-n", NAMESPACE, "--replicas=2")
    state = await settled(
        plane, "large", "the second has no node", lambda v: v.condition("Degraded")["reason"] == "Unschedulable"
    )
    assert state.is_true("Ready"), "the first one serves on"
    assert "Insufficient cpu" in state.condition("Degraded")["message"]
    assert decisions(state, "ScaledUp") == 1
    version = state.document["metadata"]["resourceVersion"]
    await asyncio.sleep(6)  # three decisions' time: nothing is written again
    assert (await view(plane, "large")).document["metadata"]["resourceVersion"] == version
    await plane.kubectl.run("delete", "isvc", "large", "-n", NAMESPACE)


async def test_a_quotas_refusal_is_named(plane: Plane) -> None:
    namespace = "tight"
    await plane.kubectl.run("create", "namespace", namespace)
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pods", "namespace": namespace},
        "spec": {"hard": {"pods": "1"}},
    }  # fmt: skip
    await plane.kubectl.apply(quota)
    document = service("bound", {"min": 1, "max": 3, "mode": "external"})
    document["metadata"]["namespace"] = namespace
    await plane.kubectl.apply(document)

    async def is_ready() -> bool:
        document = await plane.kubectl.get("isvc", "bound", namespace)
        return document is not None and View(document).is_true("Ready")

    await until(is_ready, timeout=40, what="Ready")
    await plane.kubectl.run("scale", "isvc", "bound", "-n", namespace, "--replicas=2")

    async def refused() -> bool:
        document = await plane.kubectl.get("isvc", "bound", namespace)
        return document is not None and View(document).condition("Scaling")["reason"] == "Refused"

    await until(refused, timeout=40, what="the quota is named")
    document = await plane.kubectl.get("isvc", "bound", namespace)
    assert document is not None
    assert "exceeded quota: pods" in View(document).condition("Scaling")["message"]
    await plane.kubectl.run("delete", "isvc", "bound", "-n", namespace)


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(plane: Plane, tmp_path: Path) -> AsyncIterator[str]:
    """Run the shipped gateway as a process. The operator finds it as a pod with one of this machine's addresses."""
    environment = {
        **os.environ,
        "PAGEFLEET_KUBECONFIG": str(plane.layout.kubeconfig),
        "PAGEFLEET_GATEWAY_ADDRESS": ADDRESS,
        "PAGEFLEET_GATEWAY_PORT": "18081",
        "PAGEFLEET_GATEWAY_SETTLE_SECONDS": "0",
        "PAGEFLEET_GATEWAY_DRAIN_SECONDS": "0",
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "gateway",
            "namespace": "pagefleet-system",
            "labels": {"app.kubernetes.io/name": "pagefleet-gateway"},
        },
        "spec": {"containers": [{"name": "gateway", "image": "x"}], "nodeName": "nowhere"},
    }
    path = "/api/v1/namespaces/pagefleet-system/pods"
    created = await plane.api.create(path, pod)
    created["status"] = {"phase": "Running", "podIP": ADDRESS}
    await plane.api.replace(f"{path}/gateway/status", created)
    with (tmp_path / "gateway.log").open("wb") as log:
        command = [str(Path(sys.executable).parent / "pagefleet-gateway")]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        await until(_gateway_ready, timeout=40, what="the gateway is ready")
        yield f"http://{ADDRESS}:18081"
    finally:
        process.terminate()
        process.wait(20)
        with contextlib.suppress(ApiError):
            await plane.api._request("DELETE", f"{path}/gateway", {}, {"gracePeriodSeconds": 0}, "application/json")


@pytest_asyncio.fixture(loop_scope="session")
async def engines(plane: Plane) -> AsyncIterator[PodEngines]:
    """Engines that answer for the pods that live, with metrics."""
    made = PodEngines(measured=True)
    await plane.node.serve_with(made)
    yield made
    await plane.node.serve_no_more()


async def _gateway_ready() -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        async with aiohttp.ClientSession() as session, session.get(f"http://{ADDRESS}:9002/readyz") as response:
            return response.status == 200
    return False


async def _held(
    session: aiohttp.ClientSession, plane: Plane, url: str, body: dict[str, Any]
) -> tuple[float, asyncio.Task[Any]]:
    """Send requests until the gateway holds one. Return that request and the time at which it was sent."""
    sent: list[tuple[float, asyncio.Task[Any]]] = []

    async def waits() -> bool:
        if not sent or sent[-1][1].done():
            sent.append((time.monotonic(), asyncio.create_task(session.post(url, json=body))))
        async with session.get(f"http://{ADDRESS}:9002/held") as response:
            held = (await response.json())["held"].get(f"{NAMESPACE}/sleeper", 0)
        return bool(held) or desired(await view(plane, "sleeper")) == 1

    await until(waits, timeout=60, what="the gateway holds a request", interval=0.1)
    return sent[-1]


async def test_a_sleeping_service_wakes_for_the_first_request_and_answers_it(
    plane: Plane, gateway: str, engines: PodEngines
) -> None:
    document = service("sleeper", {"min": 0, "max": 2, "mode": "external"})
    await plane.kubectl.apply(document)
    state = await settled(plane, "sleeper", "zero replicas", lambda v: v.condition("Ready")["reason"] == "Idle")
    assert state.weights == {state.stable: 100}
    assert state.is_true("Ready")
    document["spec"]["scaling"] = {"min": 0, "max": 2, "idleToZero": "10m"}
    await plane.kubectl.apply(document)
    still = await settled(plane, "sleeper", "decided on again", lambda v: v.is_true("Ready"))
    assert desired(still) == 0, "nobody waits: it sleeps on"
    body = {"model": "smollm2", "prompt": "Hello", "max_tokens": 4}
    async with aiohttp.ClientSession() as session:
        # Until the gateway has heard that the service may sleep, it holds nobody back.
        began, request = await _held(session, plane, f"{gateway}/{NAMESPACE}/sleeper/v1/completions", body)
        await settled(plane, "sleeper", "woken", lambda v: desired(v) == 1)
        woken = time.monotonic() - began
        async with asyncio.timeout(ANSWER_SECONDS), await request as answer:
            assert answer.status == 200, await answer.text()
    assert woken < 4, "asked twice a second, and a decision takes well under a second"
    awake = await settled(plane, "sleeper", "serving", lambda v: v.condition("Ready")["reason"] == "Serving")
    assert decisions(awake, "Woken") == 1
    assert dict(engines.answers) == {awake.stable: 1}
    await plane.kubectl.run("delete", "isvc", "sleeper", "-n", NAMESPACE)


async def test_an_idle_service_goes_to_zero_and_comes_back_with_an_answer(
    plane: Plane, gateway: str, engines: PodEngines
) -> None:
    await plane.kubectl.apply(service("napper", {"min": 0, "max": 2, "idleToZero": "4s"}))
    body, url = {"model": "smollm2", "prompt": "Hello", "max_tokens": 4}, f"{gateway}/{NAMESPACE}/napper/v1/completions"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS)) as session:

        async def answered() -> bool:
            async with session.post(url, json=body) as answer:
                return answer.status == 200

        await until(answered, timeout=40, what="its first answer", interval=0.3)
        asleep = await settled(plane, "napper", "asleep", lambda v: v.condition("Ready")["reason"] == "Idle")
        assert await replicas(plane, "napper", asleep.stable) == 0
        async with session.post(url, json=body) as answer:
            assert answer.status == 200, await answer.text()
    again = await settled(plane, "napper", "told that it was woken", lambda v: decisions(v, "Woken") > 0)
    assert (decisions(again, "Woken"), engines.answers[again.stable]) == (1, 2)
    await plane.kubectl.run("delete", "isvc", "napper", "-n", NAMESPACE)


async def test_a_capacity_plan_is_compared_with_what_the_engines_state(plane: Plane, engines: PodEngines) -> None:
    """A first look at the plan says something of the cache and, with no load, nothing of the throughput."""
    await plane.kubectl.apply(service("planned", {"min": 1, "max": 1}))
    state = await settled(plane, "planned", "Ready", lambda v: v.is_true("Ready"))
    each = {"concurrency": 8, "outputTokensPerSecond": 200, "kvCacheTokens": 2 * PAGES * 16}
    patch = json.dumps({"spec": {"capacityPlan": {"perReplica": each}}})
    await plane.kubectl.run("patch", "isvc", "planned", "-n", NAMESPACE, "--type=merge", f"--patch={patch}")
    compared = await settled(plane, "planned", "compared", lambda v: "capacityPlan" in v.status)
    record = compared.status["capacityPlan"]
    assert record["tolerance"] == 0.15
    speed, cache = record["assumptions"]
    assert (speed["name"], speed["revision"], speed["planned"]) == (
        "perReplica.outputTokensPerSecond", state.stable, 200,
    )  # fmt: skip
    assert "pending" not in speed
    assert (cache["name"], cache["planned"], cache["pending"]) == ("perReplica.kvCacheTokens", 3584, "BelowPlan")
    assert "finding" not in cache, "it takes a second look"
    condition = compared.condition("CapacityAsPlanned")
    assert (condition["status"], condition["reason"]) == ("Unknown", "TooLittleData")
    refused = json.dumps({"spec": {"capacityPlan": {"perReplica": {"kvCacheTokens": 0}}}})
    answer = await plane.kubectl.run(
        "patch", "isvc", "planned", "-n", NAMESPACE, "--type=merge", f"--patch={refused}", check=False
    )
    assert answer.code != 0
    assert "kvCacheTokens" in answer.text
    await plane.kubectl.run("delete", "isvc", "planned", "-n", NAMESPACE)
