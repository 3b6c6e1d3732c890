"""Protects prefill and decode pods on a real API server: what is made is accepted, prefill pods are in no Service and count in no
budget of replicas, a gateway that watches finds both kinds and keeps them apart, a canary has its own, and all of them go with the
service."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from support.cluster.plane import Plane
from support.sample_service import sample

from pagefleet_contract.names import PREFILL_LABEL, SERVICE_LABEL
from pagefleet_gateway.cluster.state import State
from pagefleet_gateway.holding.holding import Holding
from pagefleet_gateway.measuring.metrics import Metrics
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.watching.kube import ClusterWatch
from pagefleet_local.fleet.kubectl import Document, until
from pagefleet_local.fleet.view import View

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
NAMESPACE, NAME = "default", "split"
KEY = (NAMESPACE, NAME)


def service(prefill: int, image: str = "vllm:1") -> Document:
    """Without accelerators, which the node has not: the image stands for one with the NIXL library."""
    document = sample()
    document["metadata"] = {"name": NAME, "namespace": NAMESPACE}
    engine: dict[str, Any] = {"runtime": "vllm", "image": image}
    if prefill:
        engine["disaggregation"] = {"prefill": {"replicas": prefill}, "minPromptTokens": 100}
    document["spec"] |= {
        "model": {"source": "file:///models/m", "servedName": "split"},
        "engine": engine,
        "scaling": {"min": 1, "max": 2, "mode": "external"},
    }
    document["spec"].pop("resources", None)
    return document


async def view(plane: Plane) -> View:
    document = await plane.kubectl.get("isvc", NAME, NAMESPACE)
    assert document is not None
    return View(document)


async def named(plane: Plane, label: str) -> dict[str, str]:
    """Return the revisions of the pods with this label, by their addresses, of those that are not being deleted."""
    pods = await plane.kubectl.list("pods", NAMESPACE, f"{label}={NAME}")
    return {
        pod["status"]["podIP"]: pod["metadata"]["labels"]["pagefleet.io/revision"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"] and (pod.get("status") or {}).get("podIP")
    }


async def test_both_kinds_of_pods_run_and_a_gateway_keeps_them_apart(plane: Plane) -> None:
    await plane.kubectl.apply(service(2))

    async def runs() -> bool:
        state = await view(plane)
        return state.is_true("Ready") and len(await named(plane, PREFILL_LABEL)) == 2

    await until(runs, timeout=60, what="the decode pod and two prefill pods run")
    state = await view(plane)
    assert state.status["replicas"] == 1, "prefill pods are no replicas"
    prefill, decode = await named(plane, PREFILL_LABEL), await named(plane, SERVICE_LABEL)
    assert set(prefill.values()) == set(decode.values()) == {state.stable}

    async def apart() -> bool:
        found = await plane.kubectl.get("service", f"{NAME}-{state.stable}", NAMESPACE)
        selector = ",".join(f"{name}={value}" for name, value in ((found or {})["spec"]["selector"]).items())
        served = {pod["status"]["podIP"] for pod in await plane.kubectl.list("pods", NAMESPACE, selector)}
        budgets = {}
        for name in ("", "-prefill"):
            budget = await plane.kubectl.get("poddisruptionbudget", f"{NAME}-{state.stable}{name}", NAMESPACE)
            budgets[name] = ((budget or {}).get("status") or {}).get("expectedPods")
        return (served, budgets) == (set(decode), {"": 1, "-prefill": 2})

    await until(apart, timeout=30, what="the Service selects the decode pod alone, and each kind has its budget")

    async def told() -> bool:
        scaling = next(one for one in (await view(plane)).status["conditions"] if one["type"] == "Scaling")
        return (scaling["status"], "prefill" in scaling["message"]) == ("False", False)

    await until(told, timeout=30, what="the operator has seen that all prefill pods are ready")
    assert [one["prefill"] for one in (await view(plane)).status["revisions"]] == [{"ready": 2, "desired": 2}]

    known, ledger = State(), Ledger()
    holding = Holding(Picker(known, ledger, random.Random(1)), time.monotonic, lambda _: None)
    async with ClusterWatch(known, Metrics(ledger, holding), plane.layout.kubeconfig, NAMESPACE) as watch:
        following = asyncio.create_task(watch.follow())

        async def seen() -> bool:
            known.confirm(known.pods)
            pools = known.snapshot.pods.get(KEY, {}), known.snapshot.prefill.get(KEY, {})
            return [{pod.address.partition(":")[0] for group in one.values() for pod in group} for one in pools] == [
                set(decode),
                set(prefill),
            ]

        try:
            await until(seen, timeout=30, what="the gateway knows both kinds")
            (pods,) = known.snapshot.prefill[KEY].values()
            assert {pod.engine.prefill_from for pod in pods} == {100}
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def test_a_canary_has_prefill_pods_of_its_own(plane: Plane) -> None:
    stable = (await view(plane)).stable
    await plane.kubectl.apply(service(1, image="vllm:2"))

    async def beside() -> bool:
        return (
            sorted((await named(plane, PREFILL_LABEL)).values()).count(stable) == 2
            and len(set((await named(plane, PREFILL_LABEL)).values())) == 2
        )

    await until(beside, timeout=60, what="the canary's prefill pod runs beside those of the stable revision")

    async def has_traffic() -> bool:
        state = await view(plane)
        return any(weight and revision != stable for revision, weight in state.weights.items())

    await until(has_traffic, timeout=60, what="the canary, whose prefill pod is ready, has traffic")


async def test_prefill_pods_go_with_the_service(plane: Plane) -> None:
    await plane.kubectl.run("delete", "isvc", NAME, "-n", NAMESPACE)

    async def gone() -> bool:
        return not await plane.kubectl.list("deployments", NAMESPACE, f"{PREFILL_LABEL}={NAME}") and not await named(
            plane, PREFILL_LABEL
        )

    await until(gone, timeout=60, what="their Deployments and pods are gone")
