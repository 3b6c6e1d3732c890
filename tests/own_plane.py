"""A control plane for one program alone: started, given our CRD and Roles and a node that only claims to run pods, and taken
down again whatever happens. (Tests share one: tests/cluster, tests/faults.)"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from statusnode import StatusNode

from pagefleet_local import cleanup
from pagefleet_local.fleet.install import CHECKOUT, install_crd
from pagefleet_local.fleet.kubectl import Kubectl
from pagefleet_local.paths import Layout, control_plane_layout
from pagefleet_local.up import Options, up
from pagefleet_operator.cluster.api import Api


@dataclass(frozen=True)
class OwnPlane:
    api: Api
    kubectl: Kubectl
    layout: Layout


@asynccontextmanager
async def own_plane(
    namespace: str = "", *, crd: bool = True, most_pods: int = 500, pause: float = 0.2, prefix: str = "127.100"
) -> AsyncIterator[OwnPlane]:
    """`namespace` is created. `most_pods`, `pause` and `prefix` are StatusNode's."""
    layout = control_plane_layout()
    cluster = up(Options(layout=layout, node=False))
    try:
        kubectl = Kubectl(cluster.kubeconfig)
        if crd:
            await install_crd(kubectl, print)
        for manifest in ("namespace", "operator-rbac"):
            await kubectl.run("apply", "-f", str(CHECKOUT / f"manifests/base/{manifest}.yaml"))
        if namespace:
            await kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        async with Api(str(cluster.kubeconfig)) as api:
            node = StatusNode(api, most_pods, pause, prefix)
            await node.register()
            serving = asyncio.create_task(node.run())
            try:
                yield OwnPlane(api, kubectl, layout)
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
    finally:
        cleanup.down(layout)
