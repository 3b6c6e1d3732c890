"""The shipped pieces that take part in a rollback, on a real etcd and kube-apiserver: the operator under its
ClusterRole, the gateway (Envoy and picker) with its own watch, and pods on addresses of their own (node.py). Needs root."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from bench.gatewaybench.systems import ROOT
from support.cluster.plane import OPERATOR_USER, PORT, TOKEN, Operator

from pagefleet_local.base.certificates import Authority
from pagefleet_local.base.paths import control_plane_layout
from pagefleet_local.fleet.install import install_crd
from pagefleet_local.fleet.kubectl import Kubectl, until
from pagefleet_local.lifecycle import cleanup
from pagefleet_local.lifecycle.up import Cluster, Options, up
from pagefleet_operator.kube.client import Api

NAMESPACE, SYSTEM = "rollbacks", "pagefleet-system"
SERVICES = f"/apis/pagefleet.io/v1alpha1/namespaces/{NAMESPACE}/inferenceservices"
GATEWAY, GATEWAY_PORT = "127.102.0.1", 18082
SPARE_PODS = 300


@dataclass(frozen=True)
class Fleet:
    """`url` is the gateway's, with which a service's name and path are used; `alerts` is the operator's webhook."""

    api: Api
    http: aiohttp.ClientSession
    folder: Path  # logs
    url: str = f"http://{GATEWAY}:{GATEWAY_PORT}/{NAMESPACE}"
    alerts: str = f"http://127.0.0.1:{PORT}/alerts"
    token: str = TOKEN

    async def create(self, name: str, spec: Mapping[str, Any]) -> None:
        body = {"apiVersion": "pagefleet.io/v1alpha1", "kind": "InferenceService", "metadata": {"name": name}}
        await self.api.create(SERVICES, {**body, "spec": spec})

    async def status(self, name: str) -> dict[str, Any]:
        return dict((await self.api.get(f"{SERVICES}/{name}")).get("status") or {})

    async def until(self, name: str, what: str, holds: Any, timeout: float = 120.0) -> dict[str, Any]:
        """The first status that `holds`. Raises TimeoutError."""
        status: dict[str, Any] = {}

        async def check() -> bool:
            status.clear()
            status.update(await self.status(name))
            return bool(status) and bool(holds(status))

        await until(check, timeout=timeout, what=f"{name}: {what}", interval=0.15)
        return status


@asynccontextmanager
async def fleet(services: int) -> AsyncIterator[Fleet]:
    """Start all pieces without a service, and take them down in every case."""
    state, sockets = Path("/var/lib/pagefleet-bench"), Path("/run/pagefleet-bench")
    layout = replace(control_plane_layout(), state=state, run=sockets)  # not the tests' own: they clean theirs up
    plane = up(Options(layout=layout))
    try:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            kubectl = Kubectl(plane.kubeconfig)
            await install_crd(kubectl, lambda _: None)
            for manifest in ("namespace", "operator-rbac"):
                await kubectl.run("apply", "-f", str(ROOT / f"manifests/base/{manifest}.yaml"))
            await kubectl.run("create", "namespace", NAMESPACE)
            api = await stack.enter_async_context(Api(str(plane.kubeconfig)))
            stack.enter_context(_process(folder, "node", _node(plane, services), {}, waits=True))
            await _announce_gateway(api)
            stack.enter_context(_process(folder, "gateway", _script("pagefleet-gateway"), _gateway(plane)))
            operator = Operator(_operator(plane, folder), folder / "operator.log")
            await operator.start()
            stack.callback(_stop, operator.process)
            connector = aiohttp.TCPConnector(limit=0)
            session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60))
            http = await stack.enter_async_context(session)
            await until(lambda: _answers(http), timeout=60, what="the gateway is ready")
            yield Fleet(api, http, folder)
    finally:
        cleanup.down(layout)


def _script(name: str) -> list[str]:
    return [str(Path(sys.executable).parent / name)]


def _node(plane: Cluster, services: int) -> list[str]:
    return [sys.executable, "-m", "bench.rollbackbench.node", str(plane.kubeconfig), str(services + SPARE_PODS)]


def environment() -> dict[str, str]:
    parts = [ROOT, *(ROOT / name for name in ("tests", "contract", "gateway", "operator", "local"))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, parts), os.environ.get("PYTHONPATH", "")])}


def _gateway(plane: Cluster) -> dict[str, str]:
    return {
        "PAGEFLEET_KUBECONFIG": str(plane.kubeconfig),
        "PAGEFLEET_GATEWAY_ADDRESS": GATEWAY,
        "PAGEFLEET_GATEWAY_PORT": str(GATEWAY_PORT),
        "PAGEFLEET_GATEWAY_SETTLE_SECONDS": "0",
        "PAGEFLEET_GATEWAY_DRAIN_SECONDS": "0",
    }


def _operator(plane: Cluster, folder: Path) -> dict[str, str]:
    (folder / "token").write_text(TOKEN)
    authority = Authority(plane.layout.pki)
    server = f"https://127.0.0.1:{plane.layout.api_port}"
    own = authority.kubeconfig(folder / "kubeconfig", server, authority.issue("operator", OPERATOR_USER))
    return {
        **environment(),
        "KUBECONFIG": str(own),
        "PAGEFLEET_OPERATOR_PORT": str(PORT),
        "PAGEFLEET_ALERT_TOKEN_FILE": str(folder / "token"),
    }


async def _announce_gateway(api: Api) -> None:
    """The operator finds gateways as pods; this process runs this one."""
    labels = {"app.kubernetes.io/name": "pagefleet-gateway"}
    spec = {"containers": [{"name": "gateway", "image": "x"}], "nodeName": "nowhere"}
    path = f"/api/v1/namespaces/{SYSTEM}/pods"
    created = await api.create(path, {"apiVersion": "v1", "kind": "Pod",
                                      "metadata": {"name": "gateway", "labels": labels}, "spec": spec})  # fmt: skip
    created["status"] = {"phase": "Running", "podIP": GATEWAY}
    await api.replace(f"{path}/gateway/status", created)


@contextmanager
def _process(
    folder: Path, name: str, command: list[str], variables: Mapping[str, str], *, waits: bool = False
) -> Iterator[None]:
    """`waits`: until it reports that it serves. Its errors are in FOLDER/NAME.log."""
    with (folder / f"{name}.log").open("wb") as log:
        output = subprocess.PIPE if waits else subprocess.DEVNULL
        process = subprocess.Popen(command, cwd=ROOT, env={**environment(), **variables}, stdout=output, stderr=log)
    try:
        if process.stdout is not None and process.stdout.readline().strip() != b"serving":
            raise RuntimeError(f"{name} did not start: {(folder / f'{name}.log').read_text()[-600:]}")
        yield
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)


async def _answers(http: aiohttp.ClientSession) -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        async with http.get(f"http://{GATEWAY}:9002/readyz") as response:
            return response.status == 200
    return False
