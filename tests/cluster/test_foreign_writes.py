"""Protects the API server from an operator that writes for ever beside others on its objects: policies that mutate (a sidecar, a
volume, a variable, a rewritten image registry), `kubectl set env`, and a program that takes a field each time. Every actor is
real, and the writes are counted in the audit log."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from support.cluster.plane import Plane
from support.cluster.services import NAMESPACE, audited, decided_more, ready, settled, view

from pagefleet_local.base.certificates import Authority
from pagefleet_local.fleet.kubectl import until
from pagefleet_operator.domain.manifests import disputes

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
PORT, REGISTRY = 18951, "mirror.example/"
WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"


def mutations(deployment: dict[str, Any]) -> list[dict[str, Any]]:
    """A JSON patch as policies make it: it says nothing about what is right already."""
    pod = deployment["spec"]["template"]["spec"]
    where, patch = "/spec/template/spec", []
    containers = pod["containers"]
    for index, one in enumerate(containers):
        if one["name"] == "engine":
            env = one.get("env") or []
            if not any(entry["name"] == "TEAM" for entry in env):
                patch.append(
                    {"op": "add", "path": f"{where}/containers/{index}/env/-", "value": {"name": "TEAM", "value": "a"}}
                )
            if not one["image"].startswith(REGISTRY):
                patch.append(
                    {"op": "replace", "path": f"{where}/containers/{index}/image", "value": REGISTRY + one["image"]}
                )
            if "--policy" not in one["args"]:
                patch.append({"op": "add", "path": f"{where}/containers/{index}/args/-", "value": "--policy"})
    if not any(one["name"] == "mesh" for one in containers):
        patch.append({"op": "add", "path": f"{where}/containers/0", "value": {"name": "mesh", "image": "mesh:1"}})
    if not any(one["name"] == "mesh" for one in pod.get("volumes") or []):
        patch.append({"op": "add", "path": f"{where}/volumes/-", "value": {"name": "mesh", "emptyDir": {}}})
    return patch


@contextlib.asynccontextmanager
async def webhook(plane: Plane, service: str) -> AsyncIterator[Counter[str]]:
    """A mutating webhook for the Deployments of one service. Yields how many requests it got."""
    authority, asked = Authority(plane.layout.pki), Counter[str]()
    pair = authority.issue("webhook", "webhook", hosts=["127.0.0.1"])

    async def answer(request: web.Request) -> web.Response:
        review = await request.json()
        asked[review["request"]["operation"]] += 1
        patch = json.dumps(mutations(review["request"]["object"])).encode()
        response = {
            "uid": review["request"]["uid"],
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": base64.b64encode(patch).decode(),
        }
        return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", PORT, ssl_context=context).start()
    entry = {
        "name": "policies.example.com",
        "clientConfig": {
            "url": f"https://127.0.0.1:{PORT}/",
            "caBundle": base64.b64encode(authority.pair.certificate.read_bytes()).decode(),
        },
        "rules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["deployments"]}],
        "objectSelector": {"matchLabels": {"pagefleet.io/service": service}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }  # fmt: skip
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "policies"},
        "webhooks": [entry],
    }
    created = await plane.api.create(WEBHOOK, configuration)
    try:
        yield asked
    finally:
        await plane.api.delete(f"{WEBHOOK}/policies", created["metadata"]["uid"])
        await runner.cleanup()


def writes(plane: Plane, name: str) -> list[dict[str, Any]]:
    """What the operator has written to the Deployments of a service."""
    return [
        event
        for event in audited(plane)
        if event["objectRef"].get("resource") == "deployments" and event["objectRef"].get("name", "").startswith(name)
    ]


def committed(plane: Plane, name: str) -> int:
    """Those that were not refused: a write on an old view gets a conflict."""
    return sum(event["responseStatus"]["code"] < 300 for event in writes(plane, name))


async def idle_writes(plane: Plane, name: str) -> int:
    """How many writes four decisions make."""
    before = len(writes(plane, name))
    await decided_more(plane, name)
    return len(writes(plane, name)) - before


async def deployment(plane: Plane, name: str) -> dict[str, Any]:
    found = await plane.kubectl.get("deployment", f"{name}-{(await view(plane, name)).stable}", NAMESPACE)
    assert found is not None
    return found


async def events_of(plane: Plane, name: str, reason: str) -> list[str]:
    found = await plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/events")
    return [
        one["message"] for one in found["items"] if one["involvedObject"]["name"] == name and one["reason"] == reason
    ]


async def test_a_policy_that_mutates_each_write_costs_no_write_when_idle(plane: Plane) -> None:
    async with webhook(plane, "mutated") as asked:
        state = await ready(plane, "mutated")
        await settled(plane, "mutated", "nothing is left to do", lambda v: v.condition("Scaling")["status"] == "False")

        async def in_force() -> bool:
            pod = (await deployment(plane, "mutated"))["spec"]["template"]["spec"]
            if pod["containers"][0]["name"] != "mesh":  # made before the webhook was in force: let it write once more
                await plane.kubectl.run(
                    "scale", "deployment", f"mutated-{state.stable}", "-n", NAMESPACE, "--replicas=2"
                )
            return pod["containers"][0]["name"] == "mesh"

        await until(in_force, timeout=60, what="the webhook has added its sidecar", interval=1.0)
        await settled(plane, "mutated", "one replica", lambda v: v.status["replicas"] == 1)
        assert await idle_writes(plane, "mutated") == 0
        mutated = await deployment(plane, "mutated")
        engine = next(one for one in mutated["spec"]["template"]["spec"]["containers"] if one["name"] == "engine")
        assert engine["image"].startswith(REGISTRY)
        assert "--policy" in engine["args"]
        assert asked.total()
        messages = await events_of(plane, "mutated", "ChildRewritten")
        assert len(messages) == 1, messages
        assert "spec.template.spec.containers[engine].args is" in messages[0]
        assert "an admission webhook rewrites it" in messages[0]
        # A user's edit still arrives, and what others have added stays.
        replicas = {"spec": {"scaling": {"min": 2, "max": 2}}}
        path = f"/apis/pagefleet.io/v1alpha1/namespaces/{NAMESPACE}/inferenceservices/mutated"
        await plane.api.merge(path, replicas)
        await settled(plane, "mutated", "two replicas", lambda v: v.status["replicas"] == 2)
        after = await deployment(plane, "mutated")
        assert after["spec"]["template"] == mutated["spec"]["template"], "no pod was replaced"
        assert await idle_writes(plane, "mutated") == 0
        assert await events_of(plane, "mutated", "ChildRewritten") == messages


async def test_what_kubectl_adds_stays_and_costs_no_write(plane: Plane) -> None:
    state = await ready(plane, "extended")
    name = f"deployment/extended-{state.stable}"
    await plane.kubectl.run("set", "env", name, "-n", NAMESPACE, "TEAM=a")
    assert await idle_writes(plane, "extended") == 0
    [engine] = (await deployment(plane, "extended"))["spec"]["template"]["spec"]["containers"]
    assert {"name": "TEAM", "value": "a"} in engine["env"]
    # A variable of our own is written back, once.
    before = committed(plane, "extended")
    await plane.kubectl.run("set", "env", name, "-n", NAMESPACE, "OMP_NUM_THREADS=7")

    async def back() -> bool:
        [one] = (await deployment(plane, "extended"))["spec"]["template"]["spec"]["containers"]
        return {"name": "OMP_NUM_THREADS", "value": "7"} not in one["env"]

    await until(back, timeout=30, what="the variable is written back")
    assert await idle_writes(plane, "extended") == 0
    assert committed(plane, "extended") == before + 1


async def test_a_program_that_takes_a_field_each_time_is_answered_less_and_less_often(plane: Plane) -> None:
    state = await ready(plane, "disputed")
    path = f"{DEPLOYMENTS}/disputed-{state.stable}"
    taken = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": f"disputed-{state.stable}"},
             "spec": {"progressDeadlineSeconds": 123}}  # fmt: skip
    before, ended = committed(plane, "disputed"), asyncio.Event()

    async def fight() -> None:
        while not ended.is_set():
            live = await plane.api.get(path)
            if live["spec"]["progressDeadlineSeconds"] != 123:
                await plane.api.apply(path, taken, "another-controller")
            await asyncio.sleep(0.1)

    fighting = asyncio.create_task(fight())
    try:

        async def stated() -> bool:
            return bool(await events_of(plane, "disputed", "ChildDisputed"))

        await until(stated, timeout=60, what="the dispute is stated")
        assert await idle_writes(plane, "disputed") == 0
    finally:
        ended.set()
        await fighting
    assert committed(plane, "disputed") - before == disputes.FREE_REPAIRS
    [message] = await events_of(plane, "disputed", "ChildDisputed")
    assert "spec.progressDeadlineSeconds is changed by another-controller" in message
