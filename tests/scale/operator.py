"""Starts and stops the operator as it is shipped, and reads its memory, CPU and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from pagefleet_local.base.certificates import Authority
from pagefleet_local.base.paths import Layout

USER = "system:serviceaccount:pagefleet-system:pagefleet-operator"
COMMAND = str(Path(sys.executable).parent / "pagefleet-operator")
PORT, TOKEN = 18299, "a-test-token"
READ_AT_ONCE = 32  # pages of services
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Operator:
    layout: Layout
    folder: Path
    process: subprocess.Popen[bytes] = field(init=False)
    started: float = 0.0  # time.monotonic()

    def start(self) -> None:
        authority = Authority(self.layout.pki)
        server = f"https://127.0.0.1:{self.layout.api_port}"
        kubeconfig = authority.kubeconfig(self.folder / "kubeconfig", server, authority.issue("operator", USER))
        token = self.folder / "token"
        token.write_text(TOKEN)
        environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "PAGEFLEET_OPERATOR_PORT": str(PORT),
            "PAGEFLEET_STATUS_PAGE_TOKEN_FILE": str(token),
        }
        with (self.folder / "operator.log").open("wb" if not self.started else "ab") as log:
            self.process = subprocess.Popen([COMMAND], env=environment, stdout=log, stderr=log)
        self.started = time.monotonic()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)

    def memory(self) -> tuple[float, float]:
        """Return the MiB resident now, and the most so far."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        now, most = (re.search(rf"^{name}:\s+(\d+) kB", text, re.M) for name in ("VmRSS", "VmHWM"))
        if now is None or most is None:
            raise ValueError("the operator is gone")
        return int(now[1]) / 1024, int(most[1]) / 1024

    def cpu(self) -> float:
        """Return the seconds of CPU used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    async def metric(self, name: str) -> float:
        """Return the value of a series without labels; 0 while nothing answers."""
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            timeout = aiohttp.ClientTimeout(total=5)
            url = f"http://127.0.0.1:{PORT}/metrics"
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
                match = re.search(rf"^{name} (\S+)$", await response.text(), re.M)
                return float(match[1]) if match else 0.0
        return 0.0

    async def decided(self, namespace: str, names: Collection[str]) -> set[str]:
        """Return those of the services about which this process has decided, by its status page."""
        headers, found = {"Authorization": f"Bearer {TOKEN}"}, set()
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            timeout, connector = aiohttp.ClientTimeout(total=60), aiohttp.TCPConnector(limit=READ_AT_ONCE)
            async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
                found.update(await asyncio.gather(*(_if_decided(session, namespace, name) for name in names)))
        return found - {""}


async def _if_decided(session: aiohttp.ClientSession, namespace: str, name: str) -> str:
    """Return the name of a service about which this process has decided, else ""."""
    async with session.get(f"http://127.0.0.1:{PORT}/ui/api/services/{namespace}/{name}") as response:
        return name if response.status == 200 and (await response.json())["read"] is not None else ""
