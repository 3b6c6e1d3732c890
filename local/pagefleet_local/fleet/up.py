"""From a bare machine to an installed fleet: node, images, CRD, operator, gateway. Idempotent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pagefleet_local.fleet.install import Fleet, install
from pagefleet_local.fleet.kubectl import Kubectl
from pagefleet_local.images import build as images
from pagefleet_local.up import Options, up

TARGETS = ("operator", "gateway", "engine-cpu-smollm2")


async def fleet_up(say: Callable[[str], None]) -> Fleet:
    """Raises Refused, AssetError, StartFailed or KubectlError."""
    archives = await asyncio.to_thread(images.build, TARGETS)
    cluster = await asyncio.to_thread(up, Options())
    await asyncio.to_thread(images.load, cluster.layout, archives)
    return await install(Kubectl(cluster.kubeconfig), say)
