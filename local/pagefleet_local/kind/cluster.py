"""Makes, fills and removes the kind cluster, by the commands of plan.py."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pagefleet_local.assets.debian import AssetError
from pagefleet_local.assets.monitoring import to_be_had
from pagefleet_local.base import paths
from pagefleet_local.base.console import stage
from pagefleet_local.base.preflight import Refused
from pagefleet_local.base.threads import in_thread
from pagefleet_local.fleet.access import NodePorts
from pagefleet_local.fleet.install import Fleet, install
from pagefleet_local.fleet.kubectl import Kubectl
from pagefleet_local.images import build as images
from pagefleet_local.kind import plan
from pagefleet_local.lifecycle.fleet_up import TARGETS


class Kind:
    """A fleet on a kind cluster: a Ground of the demo."""

    title = "A Kubernetes cluster by kind, our images, CRD, operator and gateway"

    def __init__(self) -> None:
        self.kubeconfig = paths.cache() / "kind.kubeconfig"
        self._access = NodePorts("127.0.0.1", gateway=plan.GATEWAY[1], operator=plan.OPERATOR[1])

    def check(self, scenes: list[str]) -> None:
        """Raises Refused with everything that is missing."""
        programs = {name: shutil.which(name) is not None for name in ("docker", "kind")}
        daemon = programs["docker"] and _succeeds(["docker", "info"])
        alerts = "alert" not in scenes or to_be_had()
        missing = plan.lacking(programs, daemon=daemon, version=sys.version_info[:2], alerts=alerts)
        if missing:
            raise Refused("; ".join(missing))

    async def up(self, say: Callable[[str], None]) -> Fleet:
        """Raises AssetError or KubectlError. What is there already is used."""
        await in_thread(self._images)
        await in_thread(self._cluster)
        kubectl = Kubectl(self.kubeconfig)
        await kubectl.run(*plan.advertise())
        return await install(kubectl, say, overlay="kind", access=self._access)

    async def down(self) -> None:
        await self._access.close()
        with stage("kind delete cluster"):
            await in_thread(partial(_run, plan.delete(self.kubeconfig)))
        self.kubeconfig.unlink(missing_ok=True)

    def leftovers(self) -> list[str]:
        return [f"kind cluster {name}" for name in _clusters() if name == plan.CLUSTER]

    def _images(self) -> None:
        with tempfile.TemporaryDirectory(dir=paths.cache(), prefix="context-") as name:
            images.context(Path(name), TARGETS)
            for target in TARGETS:
                with stage(f"docker build {target}"):
                    _run(plan.build(target, Path(name)))

    def _cluster(self) -> None:
        if plan.CLUSTER not in _clusters():
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file, stage("kind create cluster"):
                json.dump(plan.configuration(), file)
                file.flush()
                _run(plan.create(Path(file.name), self.kubeconfig))
        with stage("kind load docker-image"):
            _run(plan.load(TARGETS))


def _clusters() -> list[str]:
    done = subprocess.run(["kind", "get", "clusters"], capture_output=True, text=True, check=False)
    return done.stdout.split()


def _succeeds(command: plan.Command) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(command: plan.Command) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssetError(f"{' '.join(command[:3])}: {(done.stdout + done.stderr).strip()[-1500:]}")
