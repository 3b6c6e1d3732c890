"""The control plane of tests/cluster, as its tests use it: kubectl, and the operator as it is shipped."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from support.cluster.status_node import StatusNode
from support.recording import Recording

from pagefleet_local.base.paths import Layout
from pagefleet_local.fleet.kubectl import Kubectl, until
from pagefleet_operator.kube.client import Api

CHECKOUT = Path(__file__).resolve().parents[3]
OPERATOR_USER = "system:serviceaccount:pagefleet-system:pagefleet-operator"
PORT = 18099
TOKEN = "a-test-token"


@dataclass
class Operator:
    """The console script, with its output in `log`."""

    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)

    async def start(self) -> None:
        """Start the operator, and return when it is ready."""
        with self.log.open("ab") as log:
            command = [str(Path(sys.executable).parent / "pagefleet-operator")]
            # A killed operator leaves its kubeconfig's key in temporary files: they are in the test's folder.
            environment = {**self.environment, "TMPDIR": str(self.log.parent)}
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        await until(_ready, timeout=60, what="the operator is ready")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)


@dataclass(frozen=True)
class Plane:
    """The running control plane with the operator on it."""

    kubectl: Kubectl
    api: Api
    node: StatusNode
    layout: Layout
    operator: Operator
    recording: Recording
    operator_url: str = f"http://127.0.0.1:{PORT}"


async def _ready() -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{PORT}/readyz") as response:
            return response.status == 200
    return False
