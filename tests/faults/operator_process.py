"""The operator as it is shipped (the console script), started again whenever it dies, behind the fault proxy."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from faults.proxy import FaultProxy, Script, never

from pagefleet_local.base.certificates import Authority
from pagefleet_local.base.paths import Layout

USER = "system:serviceaccount:pagefleet-system:pagefleet-operator"
TOKEN = "a-test-token"
COMMAND = str(Path(sys.executable).parent / "pagefleet-operator")
# The folder where every client library expects a pod's token, in a mount namespace of the process' own.
ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"
MOUNTED = f'mount -t tmpfs tmpfs /run && mkdir -p {ACCOUNT} && mount --bind "$0" {ACCOUNT} && exec "$@"'


@dataclass
class Operator:
    """`async with Operator(layout, folder, namespace, port)`: an operator of one namespace behind a proxy of its own. With
    `account`, a folder with token and ca.crt, it runs as in a pod; otherwise a client certificate speaks for it."""

    layout: Layout
    folder: Path
    namespace: str
    port: int
    script: Script = never
    lease: str = ""
    code: Path | None = None  # another source root than this checkout's
    account: Path | None = None
    deaths: int = 0
    proxy: FaultProxy = field(init=False)
    _process: subprocess.Popen[bytes] | None = None
    _supervisor: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        authority = Authority(self.layout.pki)
        serving = authority.issue("fault-proxy", "fault-proxy", hosts=["127.0.0.1"])
        self.proxy = FaultProxy(
            upstream=f"https://127.0.0.1:{self.layout.api_port}",
            authority=str(authority.pair.certificate),
            serving=serving,
            client=authority.issue("operator", USER) if self.account is None else None,
            port=self.port + 1000,
            kill=self.kill,
            script=self.script,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Return the id of the present process. Raises RuntimeError before the first."""
        if self._process is None:
            raise RuntimeError("the operator does not run")
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.folder / f"{self.namespace}-{self.port}.log"

    async def __aenter__(self) -> Operator:
        await self.proxy.__aenter__()
        self._start()
        self._supervisor = asyncio.create_task(self._supervise())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
        await self.proxy.__aexit__()

    def kill(self) -> None:
        """Send SIGKILL: the process cannot clean up."""
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the present process."""
        if self._process is not None:
            self._process.send_signal(number)

    def retire(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal, and do not start the operator again."""
        if self._supervisor is not None:
            self._supervisor.cancel()
        self.send(number)

    async def leads(self) -> bool:
        """Whether the operator reports on /metrics that it holds the Lease."""
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            timeout = aiohttp.ClientTimeout(total=1)
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(f"{self.url}/metrics") as response,
            ):
                return "pagefleet_operator_leader 1.0" in await response.text()
        return False

    async def ready(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with aiohttp.ClientSession() as session, session.get(f"{self.url}/readyz") as response:
                return response.status == 200
        return False

    async def alert(self, service: str, revision: str, fingerprint: str) -> bool:
        """Post a firing alert of severity page, as Alertmanager would. Return whether it was accepted; Alertmanager repeats it
        until it is."""
        labels = {"alertname": "Bad", "severity": "page", "namespace": self.namespace, "service": service,
                  "revision": revision}  # fmt: skip
        entry = {
            "status": "firing",
            "labels": labels,
            "startsAt": "2026-01-01T00:00:00Z",
            "fingerprint": fingerprint,
        }
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{self.url}/alerts", json={"version": "4", "alerts": [entry]}, headers=headers) as answer,
            ):
                return answer.status == 200
        return False

    def _start(self) -> None:
        (self.folder / "token").write_text(TOKEN)
        environment = {
            **os.environ,
            **self._server(),
            "PAGEFLEET_NAMESPACES": self.namespace,
            "PAGEFLEET_LEASE": self.lease,
            "PAGEFLEET_OPERATOR_PORT": str(self.port),
            "PAGEFLEET_ALERT_TOKEN_FILE": str(self.folder / "token"),
            "TMPDIR": str(self.folder),  # a killed operator leaves its kubeconfig's key in temporary files
        }
        command = [COMMAND]
        if self.code is not None:
            environment["PYTHONPATH"] = f"{self.code}:{os.environ.get('PYTHONPATH', '')}"
            command = [sys.executable, "-c", "from pagefleet_operator.main import run; run()"]
        if self.account is not None:
            command = ["unshare", "--mount", "sh", "-c", MOUNTED, str(self.account), *command]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def _server(self) -> dict[str, str]:
        """Return the variables by which the operator finds the API server."""
        if self.account is not None:
            return {
                "KUBECONFIG": "",
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(self.proxy.port),
            }
        authority, server = Authority(self.layout.pki), f"https://127.0.0.1:{self.proxy.port}"
        pair = authority.issue("operator", USER)
        path = authority.kubeconfig(self.folder / f"{self.namespace}-{self.port}.kubeconfig", server, pair)
        return {"KUBECONFIG": str(path)}

    async def _supervise(self) -> None:
        """Start the operator again whenever its process has ended, as its Deployment would."""
        while True:
            await asyncio.sleep(0.1)
            if self._process is not None and self._process.poll() is not None:
                self.deaths += 1
                self._start()
