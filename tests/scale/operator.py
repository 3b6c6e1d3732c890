"""Starts and stops the operator as it is shipped, and reads its memory, CPU and metrics."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from pagefleet_local.base.certificates import Authority
from pagefleet_local.base.paths import Layout

USER = "system:serviceaccount:pagefleet-system:pagefleet-operator"
COMMAND = str(Path(sys.executable).parent / "pagefleet-operator")
PORT = 18299
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
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PAGEFLEET_OPERATOR_PORT": str(PORT)}
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
