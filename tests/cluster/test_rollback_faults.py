"""Protects rollbacks when something else has failed: a Prometheus that accepts and never answers, a gateway that is
killed and comes back, an operator that dies right after it took the alert; and what `kubectl wait` says of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from support.cluster.plane import Operator, Plane
from support.cluster.pod_engines import PodEngines
from support.cluster.services import NAMESPACE, alert, post, ready, service, settled, view

from pagefleet_local.fleet.kubectl import until
from pagefleet_local.fleet.view import View
from pagefleet_operator.kube.client import ApiError

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
ADDRESS, PORT = "127.100.2.1", 18085
PODS = "/api/v1/namespaces/pagefleet-system/pods"


async def canary_of(plane: Plane, name: str, weight: int = 10, **guard: Any) -> View:
    """Apply a service whose canary has `weight` percent of the traffic and holds there."""
    await ready(plane, name)
    document = service(name, args=["--max-num-seqs=7"])
    alerts = {"matchLabels": {"severity": "page"}}
    document["spec"]["rollout"] = {"steps": [{"weight": weight, "hold": "1h"}], "guard": guard, "alerts": alerts}
    await plane.kubectl.apply(document)
    return await settled(plane, name, "the canary has traffic", lambda v: v.weights.get(v.canary) == weight)


async def rolled_back(plane: Plane, name: str, before: View) -> None:
    after = await settled(plane, name, "rolled back", lambda v: v.phase == "RolledBack")
    assert after.weights == {before.stable: 100}
    assert [(one["hash"], one["reason"]) for one in after.status["rejected"]] == [(before.canary, "Alert")]
    for condition in ("Ready", "Progressing=False", "RolledBack"):
        await plane.kubectl.run(
            "wait", f"--for=condition={condition}", f"isvc/{name}", "-n", NAMESPACE, "--timeout=30s"
        )


@pytest_asyncio.fixture(loop_scope="session")
async def silent_prometheus() -> AsyncIterator[str]:
    """Run a server that accepts connections and never answers."""
    held: list[asyncio.StreamWriter] = []

    def taken(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    server = await asyncio.start_server(taken, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    for writer in held:
        writer.close()


@contextlib.asynccontextmanager
async def restarted(plane: Plane, **variables: str) -> AsyncIterator[None]:
    """Run the operator with other settings, and afterwards with its own again."""
    operator: Operator = plane.operator
    before: Mapping[str, str] = operator.environment
    operator.kill()
    operator.environment = {**before, **variables}
    try:
        await operator.start()
        yield
    finally:
        operator.kill()
        operator.environment = before
        await operator.start()


async def test_with_a_prometheus_that_never_answers(plane: Plane, silent_prometheus: str) -> None:
    gate = {"name": "gate", "query": "up", "max": 1, "interval": "5s"}
    async with restarted(plane, PAGEFLEET_PROMETHEUS_URL=silent_prometheus):
        before = await canary_of(plane, "unmeasured", promql=[gate])
        held = await settled(plane, "unmeasured", "judged", lambda v: v.verdict.get("outcome") == "Inconclusive")
        assert "does not answer" in held.verdict["message"]
        began = time.monotonic()
        assert await post(plane, alert("unmeasured", before.canary)) == 200
        await rolled_back(plane, "unmeasured", before)
        assert time.monotonic() - began < 20


async def test_with_an_operator_that_dies_after_it_took_the_alert(plane: Plane) -> None:
    before = await canary_of(plane, "orphaned")
    assert await post(plane, alert("orphaned", before.canary)) == 200
    plane.operator.kill()
    stored = await view(plane, "orphaned")
    assert [one["fingerprint"] for one in stored.status["alerts"]] == ["f-orphaned"], "stored before the answer"
    await plane.operator.start()
    await rolled_back(plane, "orphaned", before)


async def test_with_an_operator_that_has_just_started(plane: Plane) -> None:
    """Alertmanager sends again what was not answered: the first process that is ready takes it."""
    before = await canary_of(plane, "fresh")
    plane.operator.kill()
    with pytest.raises(aiohttp.ClientError):
        await post(plane, alert("fresh", before.canary))
    await plane.operator.start()
    assert await post(plane, alert("fresh", before.canary)) == 200
    await rolled_back(plane, "fresh", before)


class Gateway:
    """The shipped gateway as a process. The operator finds it as a pod with one of this machine's addresses."""

    def __init__(self, plane: Plane, folder: Path) -> None:
        self._plane, self._folder = plane, folder
        self._process: subprocess.Popen[bytes] | None = None

    async def announce(self) -> None:
        labels = {"app.kubernetes.io/name": "pagefleet-gateway"}
        metadata = {"name": "gateway-2", "namespace": "pagefleet-system", "labels": labels}
        spec = {"containers": [{"name": "gateway", "image": "x"}], "nodeName": "nowhere"}
        created = await self._plane.api.create(
            PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        )
        created["status"] = {"phase": "Running", "podIP": ADDRESS}
        await self._plane.api.replace(f"{PODS}/gateway-2/status", created)

    async def start(self) -> None:
        variables = {
            "PAGEFLEET_KUBECONFIG": str(self._plane.layout.kubeconfig),
            "PAGEFLEET_GATEWAY_ADDRESS": ADDRESS,
            "PAGEFLEET_GATEWAY_PORT": str(PORT),
            "PAGEFLEET_GATEWAY_SETTLE_SECONDS": "0",
            "PAGEFLEET_GATEWAY_DRAIN_SECONDS": "0",
        }
        with (self._folder / "gateway.log").open("ab") as log:
            command = [str(Path(sys.executable).parent / "pagefleet-gateway")]
            self._process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=log, stderr=log)
        await until(self._ready, timeout=60, what="the gateway is ready")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)

    async def revisions(self, name: str, requests: int) -> set[str]:
        """Send this many requests, and return the revisions that answer them."""
        url, hashes = f"http://{ADDRESS}:{PORT}/{NAMESPACE}/{name}/v1/completions", set[str]()
        async with aiohttp.ClientSession() as session:
            for _ in range(requests):
                async with session.post(url, json={"model": "smollm2", "prompt": "Hello"}) as response:
                    assert response.status == 200, await response.text()
                    hashes.add(response.headers["x-pagefleet-revision"])
        return hashes

    async def _ready(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            async with aiohttp.ClientSession() as session, session.get(f"http://{ADDRESS}:9002/readyz") as response:
                return response.status == 200
        return False


@pytest_asyncio.fixture(loop_scope="session")
async def engines(plane: Plane) -> AsyncIterator[None]:
    """Run a server at the address of every pod that lives."""
    await plane.node.serve_with(PodEngines())
    yield
    await plane.node.serve_no_more()


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(plane: Plane, tmp_path: Path, engines: None) -> AsyncIterator[Gateway]:
    gateway = Gateway(plane, tmp_path)
    await gateway.announce()
    await gateway.start()
    yield gateway
    gateway.stop()
    with contextlib.suppress(ApiError):
        await plane.api._request("DELETE", f"{PODS}/gateway-2", {}, {"gracePeriodSeconds": 0}, "application/json")


async def test_with_a_gateway_that_restarts(plane: Plane, gateway: Gateway) -> None:
    """Killed before the alert and back after the rollback: from its first answer on it knows."""
    before = await canary_of(plane, "returning", weight=50)
    assert await gateway.revisions("returning", 60) == {before.stable, before.canary}
    gateway.stop()
    assert await post(plane, alert("returning", before.canary)) == 200
    await rolled_back(plane, "returning", before)
    await gateway.start()
    assert await gateway.revisions("returning", 60) == {before.stable}
