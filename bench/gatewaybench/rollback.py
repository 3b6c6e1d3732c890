"""Time from the write that removes a canary's weight to the last request that was routed to it, among 500 services.

A real etcd and kube-apiserver (the test suite's; needs root), the gateway as its container starts it with its real
watch, stub engines on pod addresses of their own. The time begins when the write is *sent* and ends when the last
request began that the canary answered. It includes the API server's work, the watch and the gateway's work.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import aiohttp
from bench.gatewaybench.systems import environment
from bench.gatewaybench.traffic import engines
from kubernetes.aio import client, config

from pagefleet_contract.names import API_VERSION, GROUP, KIND, PLURAL, REVISION_LABEL, SERVICE_LABEL, VERSION
from pagefleet_local.base.paths import control_plane_layout
from pagefleet_local.fleet.install import install_crd
from pagefleet_local.fleet.kubectl import Kubectl
from pagefleet_local.lifecycle import cleanup
from pagefleet_local.lifecycle.up import Options, up

NAMESPACE = "rollback-bench"
STABLE, CANARY = "aaaaaaaa", "bbbbbbbb"
PORT, INTERNAL = 19280, 19281
WORKERS = 8  # clients that ask again at once
QUIET_SECONDS = 1.5  # seconds after the write in which the last canary request must come


class Cluster:
    """The objects of the bench on the API server."""

    def __init__(self, api: client.ApiClient) -> None:
        self._custom, self._core = client.CustomObjectsApi(api), client.CoreV1Api(api)

    async def fill(self, services: int, served: int) -> None:
        """`services` InferenceServices, of which `served` have a stable and a canary pod."""
        await self._core.create_namespace({"metadata": {"name": NAMESPACE}})
        slots = asyncio.Semaphore(16)

        async def one(index: int) -> None:
            async with slots:
                await self._service(index)
                if index < served:
                    for kind, revision in enumerate((STABLE, CANARY)):
                        await self._pod(index, revision, f"127.110.{kind}.{index + 1}")

        await asyncio.gather(*(one(index) for index in range(services)))

    async def weigh(self, index: int, stable: int, canary: int) -> None:
        traffic = [{"revision": STABLE, "weight": stable}, {"revision": CANARY, "weight": canary}]
        await self._custom.patch_namespaced_custom_object_status(
            GROUP, VERSION, NAMESPACE, PLURAL, name(index), {"status": {"traffic": traffic}},
            _content_type="application/merge-patch+json",
        )  # fmt: skip

    async def _service(self, index: int) -> None:
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name(index)},
            "spec": {"model": {"source": "file:///models/m", "servedName": name(index)}},
        }
        await self._custom.create_namespaced_custom_object(GROUP, VERSION, NAMESPACE, PLURAL, body)
        await self.weigh(index, 100, 0)

    async def _pod(self, index: int, revision: str, address: str) -> None:
        labels = {
            "app.kubernetes.io/managed-by": "pagefleet",
            SERVICE_LABEL: name(index),
            REVISION_LABEL: revision,
        }
        pod = f"{name(index)}-{revision}"
        container = {"name": "engine", "image": "none"}
        # On no node, and no scheduler looks for one: pods of a node that does not exist are deleted after a minute.
        spec = {"containers": [container], "schedulerName": "none", "automountServiceAccountToken": False}
        await self._core.create_namespaced_pod(NAMESPACE, {"metadata": {"name": pod, "labels": labels}, "spec": spec})
        conditions = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
        await self._core.patch_namespaced_pod_status(
            pod, NAMESPACE, {"status": status}, _content_type="application/merge-patch+json"
        )


def name(index: int) -> str:
    return f"s{index:03}"


@contextmanager
def gateway(kubeconfig: Path, folder: Path) -> Iterator[None]:
    variables = {
        **environment(),
        "PAGEFLEET_KUBECONFIG": str(kubeconfig),
        "PAGEFLEET_GATEWAY_ADDRESS": "127.0.0.1",
        "PAGEFLEET_GATEWAY_PORT": str(PORT),
        "PAGEFLEET_GATEWAY_INTERNAL_PORT": str(INTERNAL),
        "PAGEFLEET_GATEWAY_SETTLE_SECONDS": "0",
    }
    command = [sys.executable, "-c", "from pagefleet_gateway.main import run; run()"]
    with (folder / "gateway.log").open("wb") as log:
        process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


class Load:
    """Clients of one service at a time; records when the canary's requests began, and the failures."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self.index, self.last, self.answered, self.failed = 0, 0.0, 0, 0

    async def run(self) -> None:
        while True:
            index, began = self.index, time.monotonic()
            url = f"http://127.0.0.1:{PORT}/{NAMESPACE}/{name(index)}/v1/completions"
            try:
                async with self._http.post(url, data=b'{"model":"m","prompt":"hi","max_tokens": 1}') as response:
                    await response.read()
                    good = response.status == 200
                    if good and response.headers.get("x-pagefleet-revision") == CANARY and index == self.index:
                        self.last = max(self.last, began)
            except aiohttp.ClientError:
                good = False
            self.answered, self.failed = self.answered + good, self.failed + (not good)


async def _measure(services: int, served: int, rounds: int, kubeconfig: Path) -> dict[str, object]:
    settings = client.Configuration()
    await config.load_kube_config(config_file=str(kubeconfig), client_configuration=settings)
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(client.ApiClient(settings))
        cluster = Cluster(api)
        await cluster.fill(services, served)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        hosts = ",".join(f"127.110.{kind}.{index + 1}" for kind in (0, 1) for index in range(served))
        stack.enter_context(engines((8000,), "--hosts", hosts))
        stack.enter_context(gateway(kubeconfig, folder))
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)))
        await _answering(http, served)
        load = Load(http)
        tasks = [asyncio.create_task(load.run()) for _ in range(WORKERS)]
        try:
            delays = [
                await _round(cluster, load, index) for index in itertools.islice(itertools.cycle(range(served)), rounds)
            ]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        ordered = sorted(delays)
        shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
        at = {
            key: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3, 1)
            for key, share in shares.items()
        }
        return {"services": services, "rollbacks": rounds, "ms": at, "answered": load.answered, "failed": load.failed}


async def _round(cluster: Cluster, load: Load, index: int) -> float:
    """Give a canary its share, roll it back, and return the seconds from the write to its last request."""
    load.index, load.last = index, 0.0
    await cluster.weigh(index, 50, 50)
    async with asyncio.timeout(20):
        while not load.last:
            await asyncio.sleep(0.01)
    sent = time.monotonic()
    await cluster.weigh(index, 100, 0)
    await asyncio.sleep(QUIET_SECONDS)
    return max(0.0, load.last - sent)


async def _answering(http: aiohttp.ClientSession, served: int) -> None:
    async with asyncio.timeout(120):
        for index in range(served):
            while True:
                try:
                    async with http.get(f"http://127.0.0.1:{PORT}/{NAMESPACE}/{name(index)}/v1/models") as response:
                        if response.status == 200:
                            break
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)


def rollback(quick: bool) -> Mapping[str, object]:
    if os.geteuid() != 0:
        return {"skipped": "the control plane needs root"}
    layout = control_plane_layout()
    plane = up(Options(layout=layout))
    try:
        asyncio.run(install_crd(Kubectl(plane.kubeconfig), lambda _: None))
        return asyncio.run(_measure(500, 8, 10 if quick else 100, plane.kubeconfig))
    finally:
        cleanup.down(layout)
