"""Protects what `kubectl drain` of a node leaves running, on a real API server with its eviction API: a service's replicas
go one at a time, the next one only when the one before is replaced; so there is always one that serves. (Streams that
end on real engines while their node is drained: bench/scaling_cluster.py, part node.)"""

from __future__ import annotations

import asyncio

import pytest
from support.cluster.plane import Plane
from support.cluster.status_node import NAME as NODE
from support.sample_service import sample

from pagefleet_local.fleet.kubectl import Document, until
from pagefleet_local.fleet.view import View

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
NAMESPACE, NAME = "default", "moved"
SELECTOR = f"pagefleet.io/service={NAME}"


async def ready(plane: Plane) -> set[str]:
    """Return the pods that serve, by uid."""

    def serves(pod: Document) -> bool:
        conditions = (pod.get("status") or {}).get("conditions") or []
        is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        return is_ready and "deletionTimestamp" not in pod["metadata"]

    return {
        pod["metadata"]["uid"] for pod in await plane.kubectl.list("pods", NAMESPACE, SELECTOR) if serves(pod)
    }  # fmt: skip


async def test_a_drained_node_gives_up_one_replica_at_a_time(plane: Plane) -> None:
    document = sample()
    document["metadata"] = {"name": NAME, "namespace": NAMESPACE}
    document["spec"]["scaling"] = {"min": 2, "max": 2, "mode": "external"}
    await plane.kubectl.apply(document)

    async def both() -> bool:
        return len(await ready(plane)) == 2

    await until(both, timeout=60, what="two replicas")
    first = await ready(plane)
    drain = asyncio.create_task(
        plane.kubectl.run(
            "drain", NODE, f"--pod-selector={SELECTOR}", "--delete-emptydir-data", "--ignore-daemonsets", "--timeout=90s"
        )
    )  # fmt: skip
    try:

        async def one_is_gone() -> bool:
            return len(await ready(plane)) == 1

        await until(one_is_gone, timeout=30, what="the first is evicted", interval=0.2)
        # Its replacement has no node. As long as that is so the budget keeps the second: several tries of kubectl.
        for _ in range(12):
            assert len(await ready(plane)) == 1
            assert not drain.done()
            await asyncio.sleep(1)
        document = await plane.kubectl.get("isvc", NAME, NAMESPACE)
        assert document is not None
        assert View(document).is_true("Ready")
    finally:
        await plane.kubectl.run("uncordon", NODE)
    fewest = 2
    while not drain.done():
        fewest = min(fewest, len(await ready(plane)))
        await asyncio.sleep(0.2)
    await drain
    await until(both, timeout=60, what="two replicas again")
    assert fewest >= 1
    assert not first & await ready(plane), "both were moved"
    await plane.kubectl.run("delete", "isvc", NAME, "-n", NAMESPACE)
