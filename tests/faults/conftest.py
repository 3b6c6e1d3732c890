"""One real control plane with a status-only node; every story brings an operator of its own for its own namespace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from faults.runs import Ground
from support.cluster.own_plane import control_plane
from support.cluster.status_node import StatusNode, ended

from pagefleet_local.fleet.install import CHECKOUT, install_crd
from pagefleet_local.fleet.kubectl import Kubectl
from pagefleet_local.lifecycle.up import Cluster
from pagefleet_operator.kube.client import Api


@pytest.fixture(scope="session", name="control_plane")
def shared_control_plane() -> Iterator[Cluster]:
    with control_plane() as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ground(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    kubectl = Kubectl(control_plane.kubeconfig)
    await install_crd(kubectl, print)
    for name in ("namespace", "operator-rbac"):
        await kubectl.run("apply", "-f", str(CHECKOUT / f"manifests/base/{name}.yaml"))
    async with Api(str(control_plane.kubeconfig)) as api:
        node = StatusNode(api)
        await node.register()
        serving = asyncio.create_task(node.run())
        yield Ground(api, control_plane.layout, node, tmp_path_factory.mktemp("faults"))
        await ended(serving)
