"""A real control plane of its own (etcd, API server, controllers, scheduler) with a status-only node. Installs meet no
object that other tests have applied."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.cluster.status_node import StatusNode, ended

from pagefleet_local.base.paths import Layout
from pagefleet_local.fleet.kubectl import Kubectl
from pagefleet_local.lifecycle import cleanup
from pagefleet_local.lifecycle.up import Cluster, Options, up
from pagefleet_operator.kube.client import Api

LAYOUT = Layout(
    state=Path("/var/lib/pagefleet-install"),
    run=Path("/run/pagefleet-install"),
    api_port=17443,
    etcd_port=24890,
    first_component_port=17350,
    bridge="pagefleet2",
    pod_cidr="10.246.0.0/24",
    node_ip="10.243.2.1",
    service_cidr="10.98.0.0/16",
    node="pagefleet-install",
    has_node=False,
)


@pytest.fixture(scope="module")
def empty_plane() -> Iterator[Cluster]:
    cluster = up(Options(layout=LAYOUT))
    yield cluster
    cleanup.down(LAYOUT)
    assert cleanup.leftovers(LAYOUT) == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kubectl(empty_plane: Cluster) -> AsyncIterator[Kubectl]:
    """Yield kubectl of the plane. The status-only node serves every installed object."""
    async with Api(str(empty_plane.kubeconfig)) as api:
        node = StatusNode(api)
        await node.register()
        serving = asyncio.create_task(node.run())
        yield Kubectl(empty_plane.kubeconfig)
        await ended(serving)
