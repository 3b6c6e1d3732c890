"""Protects a picker under its shipped Role on a real API server: it follows the InferencePools that name it, of its own
namespace, InferenceServices beside them, and InferenceObjectives while the cluster serves that kind."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from support.cluster.gateway_api_install import install, uninstall
from support.cluster.gateway_api_kinds import OBJECTIVES
from support.cluster.plane import CHECKOUT, Plane
from support.cluster.services import NAMESPACE, service

from pagefleet_gateway.cluster.state import State
from pagefleet_gateway.holding.holding import Holding
from pagefleet_gateway.measuring.metrics import Metrics
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.watching.kube import ClusterWatch
from pagefleet_gateway.watching.pools import Pools
from pagefleet_local.base.certificates import Authority
from pagefleet_local.fleet.kubectl import until

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
PICKER = "pagefleet-gateway"
POOL = {
    "apiVersion": "inference.networking.k8s.io/v1",
    "kind": "InferencePool",
    "metadata": {"name": "other", "namespace": NAMESPACE},
    "spec": {
        "selector": {"matchLabels": {"app": "other"}},
        "targetPorts": [{"number": 9100}],
        "endpointPickerRef": {"name": PICKER, "port": {"number": 9003}},
    },
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "other-1", "namespace": NAMESPACE, "labels": {"app": "other"}},
    "spec": {"containers": [{"name": "engine", "image": "other.example/engine:1"}]},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def clean(plane: Plane) -> AsyncIterator[None]:
    """Other tests' cluster has none of these kinds."""
    yield
    await uninstall(plane)


@asynccontextmanager
async def following(kubeconfig: Path, state: State) -> AsyncIterator[ClusterWatch]:
    """Run a picker's watch of its namespace, which fills `state`."""
    ledger = Ledger()
    holding = Holding(Picker(state, ledger, random.Random(1)), time.monotonic, lambda _: None)
    pools = Pools(state, PICKER)
    async with ClusterWatch(state, Metrics(ledger, holding), kubeconfig, NAMESPACE, pools) as watch:
        task = asyncio.create_task(watch.follow())
        try:
            yield watch
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def meets(state: State, name: str, ports: set[str]) -> None:
    """Wait until the service `name` has ready pods on exactly these ports. Without ports, wait until it is unknown."""

    async def check() -> bool:
        ready = {p.address.rpartition(":")[2] for p in state.pods if p.service == name and p.ready}
        return ready == ports and ((NAMESPACE, name) in state.snapshot.services) == bool(ports)

    await until(check, timeout=40, what=f"{name} has ports {ports}", interval=0.1)


async def meets_priorities(state: State, expected: dict[str, tuple[tuple[str, int], ...]]) -> None:
    """Wait until exactly these services have these priorities of requests, by InferenceObjective."""

    async def check() -> bool:
        services = state.snapshot.services.values()
        return {one.name: one.request_priorities for one in services if one.request_priorities} == expected

    await until(check, timeout=40, what=f"services have the priorities {expected}", interval=0.1)


def objective(name: str, pool: str, **spec: object) -> dict[str, object]:
    return {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
        "kind": "InferenceObjective",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"poolRef": {"name": pool}, **spec},
    }


async def shipped_account(plane: Plane, folder: Path) -> Path:
    """Apply the shipped account and Role, and return a kubeconfig of that account."""
    printed = (await plane.kubectl.run("kustomize", str(CHECKOUT / "manifests/picker"))).out
    for document in yaml.safe_load_all(printed.replace("namespace: pagefleet-system", f"namespace: {NAMESPACE}")):
        if document["kind"] in ("ServiceAccount", "Role", "RoleBinding"):
            await plane.kubectl.apply(document)
    authority = Authority(plane.layout.pki)
    account = authority.issue("picker", f"system:serviceaccount:{NAMESPACE}:{PICKER}")
    return authority.kubeconfig(folder / "kubeconfig", f"https://127.0.0.1:{plane.layout.api_port}", account)


async def test_a_picker_with_its_shipped_role_follows_the_pools_of_its_namespace(plane: Plane, tmp_path: Path) -> None:
    await install(plane.api, "inferencepools")
    own = await shipped_account(plane, tmp_path)
    state = State()
    async with following(own, state) as watch:
        await plane.kubectl.apply(POD)
        await plane.kubectl.apply(POOL)
        await meets(state, "~other", {"9100"})
        await meets(state, "bystander", set())
        await plane.kubectl.apply(service("bystander"))
        await meets(state, "bystander", {"8000"})
        assert watch.unsynced_reason() == ""
        await plane.kubectl.run("delete", "inferencepool", "other", "-n", NAMESPACE)
        await meets(state, "~other", set())
    await plane.kubectl.run("delete", "pod", "other-1", "-n", NAMESPACE, "--wait=false")


async def test_objectives_come_change_and_go_and_so_does_their_kind(plane: Plane, tmp_path: Path) -> None:
    await install(plane.api, "inferencepools")
    own = await shipped_account(plane, tmp_path)
    await plane.kubectl.apply(POOL)
    await plane.kubectl.apply(service("bystander"))
    await plane.kubectl.apply(
        {
            **POOL,
            "metadata": {"name": "bystander", "namespace": NAMESPACE},
            "spec": {**POOL["spec"], "selector": {"matchLabels": {"pagefleet.io/service": "bystander"}}},
        }
    )
    state = State()
    async with following(own, state) as watch:

        async def known() -> bool:
            return watch.unsynced_reason() == "" and len(state.snapshot.services) >= 2

        await until(known, timeout=40, what="a picker is ready in a cluster without InferenceObjectives", interval=0.1)
        role = json.loads((await plane.kubectl.run("get", "role", PICKER, "-n", NAMESPACE, "-o", "json")).out)
        known_to_older = [rule for rule in role["rules"] if "inferenceobjectives" not in rule["resources"]]
        assert len(known_to_older) == len(role["rules"]) - 1
        older = {
            "apiVersion": role["apiVersion"],
            "kind": "Role",
            "metadata": {"name": PICKER, "namespace": NAMESPACE},
        }
        await plane.kubectl.apply({**older, "rules": known_to_older})
        async with following(own, State()) as with_older_role:

            async def ready() -> bool:
                return with_older_role.unsynced_reason() == ""

            await until(ready, timeout=40, what="a picker is ready with a Role that lacks the kind", interval=0.1)
        await plane.kubectl.apply({**older, "rules": role["rules"]})
        for _ in range(2):  # the kind comes, goes and comes again
            await install(plane.api, "inferenceobjectives")
            await plane.kubectl.apply(objective("live", "bystander", priority=10))
            await plane.kubectl.apply(objective("batch", "other", priority=-1))
            await plane.kubectl.apply(objective("unset", "other"))
            await plane.kubectl.apply(objective("stray", "no-such-pool", priority=7))
            await meets_priorities(state, {"bystander": (("live", 10),), "~other": (("batch", -1), ("unset", 0))})
            await plane.kubectl.apply(objective("live", "bystander", priority=3))
            await plane.kubectl.run("delete", "inferenceobjective", "batch", "-n", NAMESPACE)
            await meets_priorities(state, {"bystander": (("live", 3),), "~other": (("unset", 0),)})
            await plane.kubectl.run("delete", "crd", f"inferenceobjectives.{OBJECTIVES}")
            await meets_priorities(state, {})
            assert {"bystander", "~other"} <= {one.name for one in state.snapshot.services.values()}
    await plane.kubectl.run("delete", "inferencepool", "other", "bystander", "-n", NAMESPACE)
