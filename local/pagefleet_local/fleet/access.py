"""How programs on this machine reach a fleet: by the addresses of Services and pods, or through ports of a node."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Protocol

from pagefleet_contract.names import GATEWAY, OPERATOR, SYSTEM_NAMESPACE
from pagefleet_local.fleet.kubectl import Document, Kubectl

PROXY_SECONDS = 30.0


class Access(Protocol):
    """`address` is a URL of a Service of pagefleet-system; `metrics` the host and path under which a pod's port is
    scraped."""

    async def address(self, kubectl: Kubectl, service: str) -> str: ...

    async def open(self, kubectl: Kubectl) -> None: ...

    def metrics(self, pod: Document, port: int) -> tuple[str, str]: ...


class Direct:
    """The machine is the cluster's node: kube-proxy's rules and the pods' links are here."""

    async def address(self, kubectl: Kubectl, service: str) -> str:
        document = await kubectl.get("service", service, SYSTEM_NAMESPACE)
        if document is None:
            raise RuntimeError(f"service {SYSTEM_NAMESPACE}/{service} does not exist: manifests/ did not apply")
        port = next(port["port"] for port in document["spec"]["ports"] if port["name"] == "http")
        return f"http://{document['spec']['clusterIP']}:{port}"

    async def open(self, kubectl: Kubectl) -> None:
        return

    def metrics(self, pod: Document, port: int) -> tuple[str, str]:
        return f"{pod['status']['podIP']}:{port}", "/metrics"


class NodePorts:
    """The cluster is elsewhere (in containers, in machines): two mapped ports for Services, and `kubectl proxy` for single
    pods."""

    def __init__(self, host: str, *, gateway: int, operator: int) -> None:
        self._addresses = {
            GATEWAY: f"http://{host}:{gateway}",
            OPERATOR: f"http://{host}:{operator}",
        }
        self._process: asyncio.subprocess.Process | None = None
        self.proxy = ""

    async def address(self, kubectl: Kubectl, service: str) -> str:
        return self._addresses[service]

    async def open(self, kubectl: Kubectl) -> None:
        """Start the proxy. Raises TimeoutError or RuntimeError with its message."""
        self._process = await asyncio.create_subprocess_exec(
            str(kubectl.binary), "--kubeconfig", str(kubectl.kubeconfig), "proxy", "--port=0",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        if self._process.stdout is None:
            raise RuntimeError("the process has no pipe for its output")
        line = (await asyncio.wait_for(self._process.stdout.readline(), PROXY_SECONDS)).decode()
        match = re.search(r"127\.0\.0\.1:\d+", line)
        if match is None:
            raise RuntimeError(f"kubectl proxy: {line.strip()}")
        self.proxy = match.group()

    def metrics(self, pod: Document, port: int) -> tuple[str, str]:
        metadata = pod["metadata"]
        return self.proxy, f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}:{port}/proxy/metrics"

    async def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            await self._process.wait()
