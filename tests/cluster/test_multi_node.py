"""Protects replicas of several nodes on a real API server, with the schema of LeaderWorkerSet: without the kind a condition
names it and nothing is made; with it groups are owned, counted, repaired, rolled out, drained and taken away as Deployments
are; a group that a gang scheduler holds is named and nothing is written against its admission; the gateway meets leaders only."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from support.cluster.leader_worker_sets import GROUP, LABEL, PLURAL, Controller, crd
from support.cluster.plane import Plane
from support.cluster.services import NAMESPACE, audited, decided_more, service, settled
from support.cluster.status_node import NAME as STATUS_NODE

from pagefleet_gateway.cluster.state import State
from pagefleet_gateway.holding.holding import Holding
from pagefleet_gateway.measuring.metrics import Metrics
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.watching.kube import ClusterWatch
from pagefleet_local.fleet.kubectl import Document, KubectlError, until

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
NAME, QUEUED = "wide", "queued"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SETS = f"/apis/{GROUP}/v1/namespaces/{NAMESPACE}/{PLURAL}"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def controller(plane: Plane) -> AsyncIterator[None]:
    """Other tests' cluster has no such kind."""
    running = asyncio.create_task(Controller(plane.api).run())
    yield
    await plane.kubectl.run("delete", "isvc", NAME, QUEUED, "-n", NAMESPACE, "--ignore-not-found")
    await until(lambda: none(plane), timeout=90, what="the service's pods are gone")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await plane.kubectl.run("delete", "crd", f"{PLURAL}.{GROUP}", "--ignore-not-found")


def wide(number: int = 8, replicas: int = 1) -> Document:
    document = service(NAME, args=[f"--max-num-seqs={number}"], nodes=2)
    document["spec"]["model"]["quantization"] = "none"
    document["spec"]["scaling"] = {"min": replicas, "max": replicas}
    document["spec"]["rollout"] = {"steps": [{"weight": 50, "hold": "2s"}], "guard": {}}
    return document


async def sets(plane: Plane) -> dict[str, Document]:
    """Return the LeaderWorkerSets by revision."""
    listed = await plane.api.get(SETS)
    return {item["metadata"]["labels"]["pagefleet.io/revision"]: item for item in listed["items"]}


async def members(plane: Plane) -> dict[str, Document]:
    """Return the groups' pods that are not being deleted, by name."""
    listed = await plane.api.get(PODS, labelSelector=f"{LABEL}/name")
    return {i["metadata"]["name"]: i for i in listed["items"] if "deletionTimestamp" not in i["metadata"]}


async def none(plane: Plane) -> bool:
    return not await members(plane)


def condition_of(view: Any, kind: str) -> tuple[str, str]:
    """Return the status and the message of the condition `kind`, empty where it is missing."""
    condition = next((c for c in view.status.get("conditions", ()) if c["type"] == kind), {})
    return condition.get("reason", ""), condition.get("message", "")


async def test_a_cluster_without_the_kind_is_told_what_to_install(plane: Plane) -> None:
    await plane.kubectl.apply(wide())
    state = await settled(
        plane,
        NAME,
        "Degraded names the missing kind",
        lambda v: condition_of(v, "Degraded")[0] == "MultiNodeUnavailable",
    )
    assert f"{GROUP}/v1" in condition_of(state, "Ready")[1]
    events = await plane.kubectl.events(NAME, NAMESPACE, "MultiNodeUnavailable")
    assert events.count("MultiNodeUnavailable") == 1
    for kind in ("deployment", "service", "poddisruptionbudget"):
        listed = await plane.kubectl.run(
            "get", kind, "-n", NAMESPACE, "-l", f"pagefleet.io/service={NAME}", "-o", "name"
        )
        assert not listed.out.strip(), kind


async def test_a_group_is_made_owned_and_ready_when_its_leader_is(plane: Plane) -> None:
    await plane.api.create(CRDS, crd())
    state = await settled(plane, NAME, "it is Ready", lambda v: v.is_true("Ready"))
    assert condition_of(state, "Degraded")[0] == "AsExpected"
    live = (await sets(plane))[state.stable]
    assert live["metadata"]["name"] == f"{NAME}-{state.stable}"
    owner = live["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("InferenceService", NAME, True)
    pods = await members(plane)
    leader = f"{NAME}-{state.stable}-0"
    assert set(pods) == {leader, f"{leader}-1"}
    (worker,) = pods[f"{leader}-1"]["spec"]["containers"]
    assert "--node-rank=$(LWS_WORKER_INDEX)" in worker["args"]
    assert worker["env"][0] == {"name": "LWS_LEADER_ADDRESS", "value": f"{leader}.{leader}.{NAMESPACE}"}
    assert state.status["replicas"] == 1
    assert await plane.kubectl.get("deployment", f"{NAME}-{state.stable}", NAMESPACE) is None


async def test_groups_are_counted_scaled_and_repaired(plane: Plane) -> None:
    await plane.kubectl.apply(wide(replicas=2))
    state = await settled(plane, NAME, "two groups serve", lambda v: v.status.get("replicas") == 2)
    assert len(await members(plane)) == 4
    path = f"{SETS}/{NAME}-{state.stable}"
    live = await plane.api.get(path)
    live["spec"]["replicas"] = 5
    await plane.api.replace(path, live)

    async def repaired() -> bool:
        return bool((await plane.api.get(path))["spec"]["replicas"] == 2)

    await until(repaired, timeout=30, what="the replicas are ours again")
    await plane.kubectl.apply(wide(replicas=1))
    await settled(plane, NAME, "one group serves", lambda v: v.status.get("replicas") == 1)

    async def one() -> bool:
        return set(await members(plane)) == {f"{NAME}-{state.stable}-0", f"{NAME}-{state.stable}-0-1"}

    await until(one, timeout=30, what="the last group is gone")


async def test_the_gateway_meets_leaders_only(plane: Plane) -> None:
    state, ledger = State(), Ledger()
    holding = Holding(Picker(state, ledger, random.Random(1)), time.monotonic, lambda _: None)
    async with ClusterWatch(state, Metrics(ledger, holding), plane.layout.kubeconfig, NAMESPACE) as watch:
        following = asyncio.create_task(watch.follow())

        def known() -> set[str]:
            return {pod.name for pod in state.pods if NAME in pod.name and pod.ready}

        async def any_known() -> bool:
            return bool(known())

        try:
            await until(any_known, timeout=20, what="the gateway sees pods")
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    (leader,) = known()  # one list brings all pods there are, workers too if they were asked for
    assert leader.endswith("-0")
    assert f"{leader}-1" in await members(plane)


async def test_a_canary_of_groups_takes_over_and_the_old_ones_drain(plane: Plane) -> None:
    before = (await settled(plane, NAME, "it is still", lambda v: not v.canary)).stable
    await plane.kubectl.apply(wide(number=4))
    state = await settled(plane, NAME, "the canary has traffic", lambda v: v.weights.get(v.canary) == 50)
    assert set(await sets(plane)) == {before, state.canary}
    after = await settled(plane, NAME, "it is promoted", lambda v: v.stable != before and not v.canary)
    assert after.weights == {after.stable: 100}

    async def drained() -> bool:
        return set(await sets(plane)) == {after.stable}

    await until(drained, timeout=60, what="the old LeaderWorkerSet is gone")
    last = [e["objectRef"]["resource"] for e in audited(plane, ("delete",)) if before in e["objectRef"].get("name", "")]
    assert last[-1] == PLURAL, "the kind by which the operator knows of remaining objects goes last"


def queued() -> Document:
    """A service whose groups Kueue admits. Its pods are of a scheduler that is not there, so that only an admission gives them nodes."""
    document = wide()
    document["metadata"]["name"] = QUEUED
    document["spec"]["pod"] = {
        "labels": {"kueue.x-k8s.io/queue-name": "serving"},
        "annotations": {"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"},
        "schedulerName": "nobody",
    }
    return document


async def group(plane: Plane) -> dict[str, Document]:
    return {name: item for name, item in (await members(plane)).items() if name.startswith(f"{QUEUED}-")}


async def gate(plane: Plane, pod: Document) -> None:
    """Write what the API server writes of a pod with scheduling gates (servers before 1.26 have none)."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}
    pod["status"]["conditions"] = [condition]
    await plane.api.replace(f"{PODS}/{pod['metadata']['name']}/status", pod)


async def admit(plane: Plane, pod: Document) -> None:
    """Remove the gate as Kueue does, and bind the pod as a scheduler does."""
    path = f"{PODS}/{pod['metadata']['name']}"
    if pod["spec"].pop("schedulingGates", None):
        await plane.api.replace(path, pod)
    target = {"apiVersion": "v1", "kind": "Node", "name": STATUS_NODE}
    name = {"name": pod["metadata"]["name"]}
    await plane.api.create(
        f"{path}/binding", {"apiVersion": "v1", "kind": "Binding", "metadata": name, "target": target}
    )


async def test_a_name_that_kueue_has_no_room_for_is_refused(plane: Plane) -> None:
    """By the API server where it knows CEL, and by the operator everywhere."""
    document = queued()
    document["metadata"]["name"] = name = "n" * 31
    try:
        await plane.kubectl.apply(document)
    except KubectlError as error:
        assert "metadata.name: must have at most 30 characters" in str(error)
        return

    async def told() -> bool:
        found = await plane.kubectl.get("isvc", name, NAMESPACE)
        conditions = ((found or {}).get("status") or {}).get("conditions") or ()
        return any(
            one["type"] == "Degraded" and "metadata.name: must have at most 30" in one["message"] for one in conditions
        )

    await until(told, timeout=30, what="a condition names the limit")
    assert not await plane.kubectl.list("pods", NAMESPACE, f"pagefleet.io/service={name}")
    await plane.kubectl.run("delete", "isvc", name, "-n", NAMESPACE)


async def test_a_group_that_waits_for_its_admission_is_named_and_serves_when_it_is_admitted(plane: Plane) -> None:
    await plane.kubectl.apply(queued())

    async def made() -> bool:
        return len(await group(plane)) == 2

    await until(made, timeout=40, what="leader and worker are made")
    for pod in (await group(plane)).values():
        await gate(plane, pod)
    state = await settled(plane, QUEUED, "it is told", lambda v: condition_of(v, "Degraded")[0] == "SchedulingGated")
    assert "waits for its admission: " in condition_of(state, "Degraded")[1]

    (live,) = [one for one in (await plane.api.get(SETS))["items"] if one["metadata"]["name"].startswith(f"{QUEUED}-")]
    template = live["spec"]["leaderWorkerTemplate"]
    both = [template[f"{role}Template"] for role in ("leader", "worker")]
    for metadata in (live["metadata"], *(one["metadata"] for one in both)):
        assert queued()["spec"]["pod"]["labels"].items() <= metadata["labels"].items()
        assert queued()["spec"]["pod"]["annotations"].items() <= metadata["annotations"].items()
    # What gang schedulers read of it: how many pods are a group, and that none waits for another to be Ready.
    assert (template["size"], live["spec"]["startupPolicy"]) == (2, "LeaderCreated")

    for one in both:  # as Kueue's webhook has it
        one["metadata"]["annotations"]["kueue.x-k8s.io/pod-suspending-parent"] = (
            "leaderworkerset.x-k8s.io/leaderworkerset"
        )
        one["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-serving"] = "true"
    await plane.api.replace(f"{SETS}/{live['metadata']['name']}", live)

    def writes() -> int:
        return sum(event["objectRef"].get("name") == live["metadata"]["name"] for event in audited(plane))

    before = writes()
    await decided_more(plane, QUEUED)
    assert writes() == before

    for pod in (await group(plane)).values():
        await admit(plane, pod)
    state = await settled(plane, QUEUED, "it is Ready", lambda v: v.is_true("Ready"))
    assert condition_of(state, "Degraded")[0] == "AsExpected"
    await plane.kubectl.run("delete", "isvc", QUEUED, "-n", NAMESPACE)


async def test_groups_go_with_their_service(plane: Plane) -> None:
    await plane.kubectl.run("delete", "isvc", NAME, "-n", NAMESPACE)

    async def gone() -> bool:
        return not await sets(plane)

    await until(gone, timeout=90, what="the LeaderWorkerSets are collected")
