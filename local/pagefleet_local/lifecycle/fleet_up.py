"""From a bare machine to an installed fleet: node, images, CRD, operator, gateway. Idempotent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pagefleet_local.base import paths
from pagefleet_local.base.console import stage
from pagefleet_local.base.preflight import Refused
from pagefleet_local.base.threads import in_thread
from pagefleet_local.fleet.install import Fleet, install
from pagefleet_local.fleet.kubectl import Kubectl
from pagefleet_local.images import build as images
from pagefleet_local.lifecycle import cleanup
from pagefleet_local.lifecycle.up import Options, check, healthy, up

TARGETS = ("operator", "gateway", "engine-cpu-smollm2")


async def fleet_up(say: Callable[[str], None]) -> Fleet:
    """Raises Refused, AssetError, StartFailed or KubectlError."""
    archives = await in_thread(partial(images.build, TARGETS))
    cluster = await in_thread(partial(up, Options()))
    await in_thread(partial(images.load, cluster.layout, archives))
    return await install(Kubectl(cluster.kubeconfig), say)


class LocalNode:
    """A fleet on the one-node Kubernetes of this machine: a Ground of the demo."""

    title = "A real one-node Kubernetes, our images, CRD, operator and gateway"

    def __init__(self, *, keep: bool = False) -> None:
        self._keep = keep

    def check(self, scenes: list[str]) -> None:
        """Raises Refused, also where the end of the demo would take down a fleet that ran before it."""
        check(paths.layout())
        if not self._keep and healthy(Options()):
            raise Refused(
                "a fleet runs here already, and the demo would delete its services and take it down: run `make down` first, or play on it "
                "and leave it with `pagefleet-local demo --keep`"
            )

    async def up(self, say: Callable[[str], None]) -> Fleet:
        return await fleet_up(say)

    async def down(self) -> None:
        with stage("taking everything down"):  # minutes on a slow disk, also after an interrupt
            await in_thread(partial(cleanup.down, paths.layout()))

    def leftovers(self) -> list[str]:
        return cleanup.leftovers(paths.layout())
