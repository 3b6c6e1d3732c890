"""Protects the condition that tells how far a model is, end to end: a real API server with the operator as it is shipped, and a pod whose
fetching container serves its page. The operator needs no right that it did not have."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from support.cluster.plane import Plane
from support.cluster.services import NAMESPACE, removed, service, settled
from support.cluster.status_node import OWN_STATUS
from support.loopback import own_address

from pagefleet_contract.names import ENGINE_PORT
from pagefleet_fetch.progress import Meter
from pagefleet_local.fleet.kubectl import until

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
NAME, GB = "fetching", 1_000_000_000
TOLD = '{"field": "spec.model.source", "message": "hf://example/tiny: the hub has no such model or revision (404)"}'


async def write(plane: Plane, pod: str, container: dict[str, Any]) -> None:
    """The status that a kubelet writes of the pod while its first container does that."""
    status = {
        "phase": "Pending",
        "podIP": own_address(),
        "podIPs": [{"ip": own_address()}],
        "initContainerStatuses": [
            {"name": "fetch", "image": "x", "imageID": "", "ready": False, "restartCount": 0, **container}
        ],
    }
    await plane.api.merge(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/status", {"status": status})


async def test_people_read_how_far_a_model_is_and_what_is_wrong_with_it(plane: Plane) -> None:
    done, meter = [0], Meter()
    meter.begin(140 * GB, lambda: done[0])

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=meter.page())

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, own_address(), ENGINE_PORT).start()
        meter.tick(0.0)
        done[0] = 42 * GB
        meter.tick(150.0)
        document = service(NAME)
        document["spec"]["model"] = {"source": "hf://example/tiny"}
        document["spec"]["pod"] = {"labels": {OWN_STATUS: "true"}}
        await plane.kubectl.apply(document)

        async def pods() -> list[str]:
            listed = await plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")
            names = [str(one["metadata"]["name"]) for one in listed["items"]]
            return [name for name in names if name.startswith(f"{NAME}-")]

        async def made() -> bool:
            return bool(await pods())

        await until(made, timeout=40, what="the service has a pod")
        [pod] = await pods()
        await write(plane, pod, {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}})
        state = await settled(plane, NAME, "it is fetched", lambda v: v.condition("ModelFetched").get("reason") == "Fetching"
                              and "GB" in v.condition("ModelFetched")["message"])  # fmt: skip
        told = state.condition("ModelFetched")
        assert told["status"] == "False"
        assert told["message"].endswith(": 42 of 140 GB, about 6 minutes left")
        ended = {"exitCode": 78, "message": TOLD, "reason": "Error", "startedAt": "2026-01-01T00:00:00Z",
                 "finishedAt": "2026-01-01T00:00:01Z"}  # fmt: skip
        await write(
            plane, pod, {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}}
        )
        state = await settled(plane, NAME, "it is degraded", lambda v: v.is_true("Degraded"))
        degraded = state.condition("Degraded")
        assert degraded["reason"] == "ModelNotFound"
        assert "spec.model.source: hf://example/tiny: the hub has no such model" in degraded["message"]
    finally:
        await runner.cleanup()
        await removed(plane, NAME)
