"""A control plane without a node: started, and taken down again whatever happens. tests/cluster and tests/faults share one
each; a program alone also has our CRD and Roles and a node that only claims to run pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from support.cluster.status_node import StatusNode, ended

from pagefleet_local.base.paths import Layout, control_plane_layout
from pagefleet_local.fleet.install import CHECKOUT, install_crd
from pagefleet_local.fleet.kubectl import Kubectl
from pagefleet_local.lifecycle import cleanup
from pagefleet_local.lifecycle.up import Cluster, Options, up
from pagefleet_operator.kube.client import Api


@dataclass(frozen=True)
class OwnPlane:
    api: Api
    kubectl: Kubectl
    layout: Layout
    node: StatusNode


@contextmanager
def control_plane() -> Iterator[Cluster]:
    """Run etcd, API server, controllers and scheduler, and remove everything of them at the end."""
    layout = control_plane_layout()
    cluster = up(Options(layout=layout))
    try:
        yield cluster
    finally:
        cleanup.down(layout)
    assert cleanup.leftovers(layout) == []


@asynccontextmanager
async def own_plane(
    namespace: str = "", *, crd: bool = True, max_pods: int = 500, pause: float = 0.2, prefix: str = "127.100"
) -> AsyncIterator[OwnPlane]:
    """Run a control plane with our CRD, `namespace` and a StatusNode, whose arguments are `max_pods`, `pause` and `prefix`."""
    with control_plane() as cluster:
        kubectl = Kubectl(cluster.kubeconfig)
        if crd:
            await install_crd(kubectl, print)
        for manifest in ("namespace", "operator-rbac"):
            await kubectl.run("apply", "-f", str(CHECKOUT / f"manifests/base/{manifest}.yaml"))
        if namespace:
            await kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        async with Api(str(cluster.kubeconfig)) as api:
            node = StatusNode(api, max_pods, pause, prefix)
            await node.register()
            serving = asyncio.create_task(node.run())
            try:
                yield OwnPlane(api, kubectl, cluster.layout, node)
            finally:
                await ended(serving)
