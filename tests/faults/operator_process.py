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


@dataclass
class Operator:
    """`async with Operator(layout, folder, namespace, port)`: looks after one namespace through a proxy of its own."""

    layout: Layout
    folder: Path
    namespace: str
    port: int
    script: Script = never
    lease: str = ""
    code: Path | None = None  # another source root than this checkout's
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
            client=authority.issue("operator", USER),
            port=self.port + 1000,
            kill=self.kill,
            script=self.script,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the process as it is now. Raises RuntimeError before the first."""
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
        """SIGKILL: no clean-up, no last word."""
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """A signal to the process as it is now."""
        if self._process is not None:
            self._process.send_signal(number)

    def retire(self) -> None:
        """SIGTERM, and nobody starts it again."""
        if self._supervisor is not None:
            self._supervisor.cancel()
        self.send(signal.SIGTERM)

    async def leads(self) -> bool:
        """Whether it says on /metrics that it holds the Lease."""
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
        """Post a firing page as Alertmanager would; whether it was taken. Alertmanager tries again until it is."""
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
        authority = Authority(self.layout.pki)
        pair = authority.issue("operator", USER)
        server = f"https://127.0.0.1:{self.proxy.port}"
        kubeconfig = authority.kubeconfig(self.folder / f"{self.namespace}-{self.port}.kubeconfig", server, pair)
        (self.folder / "token").write_text(TOKEN)
        environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "PAGEFLEET_NAMESPACES": self.namespace,
            "PAGEFLEET_LEASE": self.lease,
            "PAGEFLEET_OPERATOR_PORT": str(self.port),
            "PAGEFLEET_ALERT_TOKEN_FILE": str(self.folder / "token"),
        }
        command = [COMMAND]
        if self.code is not None:
            environment["PYTHONPATH"] = f"{self.code}:{os.environ.get('PYTHONPATH', '')}"
            command = [sys.executable, "-c", "from pagefleet_operator.main import run; run()"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    async def _supervise(self) -> None:
        """As a Deployment would: what has ended is started again."""
        while True:
            await asyncio.sleep(0.1)
            if self._process is not None and self._process.poll() is not None:
                self.deaths += 1
                self._start()
