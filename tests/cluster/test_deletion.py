"""Protects the end of a service on a real API server: deleted in any way, also while the operator is dead, nothing of it
is left after 30 s and nothing hangs; what was orphaned on purpose stays as it is until a service of that name takes it
back. Row 14 of the reliability table."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.cluster.plane import Plane
from support.sample_service import sample

from pagefleet_local.fleet.kubectl import Document, until
from pagefleet_local.fleet.view import View

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
GONE_SECONDS = 30
KINDS = "isvc,deploy,rs,svc,pdb,pods"


@pytest_asyncio.fixture(loop_scope="session")
async def alive(plane: Plane) -> AsyncIterator[Plane]:
    """Yield a plane whose operator a test may kill. Afterwards the operator runs again."""
    yield plane
    if plane.operator.process.poll() is not None:
        await plane.operator.start()


def service(name: str, namespace: str) -> Document:
    document = sample()
    document["metadata"] = {"name": name, "namespace": namespace}
    return document


async def started(plane: Plane, name: str, namespace: str) -> str:
    """Apply a service, wait until it is Ready with everything it owns, and return its stable revision."""
    await plane.kubectl.run("create", "namespace", namespace, check=False)
    await plane.kubectl.apply(service(name, namespace))
    return await ready(plane, name, namespace)


async def ready(plane: Plane, name: str, namespace: str) -> str:
    async def is_ready() -> bool:
        document = await plane.kubectl.get("isvc", name, namespace)
        return document is not None and View(document).is_true("Ready")

    await until(is_ready, timeout=40, what=f"{name} is Ready", interval=0.3)
    document = await plane.kubectl.get("isvc", name, namespace)
    assert document is not None
    assert len(await names(plane, namespace)) == 6  # itself, Deployment, ReplicaSet, Service, PDB, pod
    return View(document).stable


async def names(plane: Plane, namespace: str) -> list[str]:
    document = await plane.kubectl.run("get", KINDS, "-n", namespace, "-o", "name")
    return [name for name in document.out.split() if name != "service/kubernetes"]


async def gone(plane: Plane, namespace: str) -> None:
    async def empty() -> bool:
        return await names(plane, namespace) == []

    try:
        await until(empty, timeout=GONE_SECONDS, what=f"nothing is left in {namespace}")
    except TimeoutError as error:
        raise AssertionError(f"left after {GONE_SECONDS} s: {await names(plane, namespace)}") from error


@pytest.mark.parametrize("dead", [False, True], ids=["operator-alive", "operator-dead"])
@pytest.mark.parametrize("cascade", ["foreground", "background"])
async def test_a_deleted_service_leaves_nothing(alive: Plane, cascade: str, dead: bool) -> None:
    namespace = f"gone-{cascade}-{'dead' if dead else 'alive'}"
    await started(alive, "chat", namespace)
    if dead:
        alive.operator.kill()
    await alive.kubectl.run("delete", "isvc", "chat", "-n", namespace, f"--cascade={cascade}", "--wait=false")
    await gone(alive, namespace)


@pytest.mark.parametrize("dead", [False, True], ids=["operator-alive", "operator-dead"])
async def test_a_deleted_namespace_takes_its_services_along(alive: Plane, dead: bool) -> None:
    namespace = f"whole-{'dead' if dead else 'alive'}"
    await started(alive, "chat", namespace)
    if dead:
        alive.operator.kill()
    await alive.kubectl.run("delete", "namespace", namespace, "--wait=false")

    async def away() -> bool:
        document = await alive.kubectl.run("get", "namespace", namespace, "--ignore-not-found", "-o", "name")
        return not document.out.strip()

    await until(away, timeout=GONE_SECONDS, what=f"namespace {namespace} is gone")


async def test_a_service_deleted_in_the_middle_of_a_rollout_leaves_nothing(alive: Plane) -> None:
    await started(alive, "chat", "gone-rollout")
    changed = service("chat", "gone-rollout")
    changed["spec"]["engine"]["args"] = ["--max-num-seqs=4"]
    await alive.kubectl.apply(changed)

    async def split() -> bool:
        document = await alive.kubectl.get("isvc", "chat", "gone-rollout")
        return document is not None and View(document).weights.get(View(document).canary) == 10

    await until(split, timeout=40, what="the canary has traffic", interval=0.3)
    await alive.kubectl.run("delete", "isvc", "chat", "-n", "gone-rollout", "--wait=false")
    await gone(alive, "gone-rollout")


async def test_orphans_stay_and_are_taken_back(alive: Plane) -> None:
    """Not one pod is started or stopped on the way: it is how a service is moved between owners."""
    namespace = "orphans"
    stable = await started(alive, "chat", namespace)
    before = await pods(alive, namespace)
    await alive.kubectl.run("delete", "isvc", "chat", "-n", namespace, "--cascade=orphan", "--wait=true")

    async def unowned() -> bool:
        document = await alive.kubectl.get("deployment", f"chat-{stable}", namespace)
        return document is not None and not document["metadata"].get("ownerReferences")

    await until(unowned, timeout=GONE_SECONDS, what="the Deployment has no owner any more")
    assert await pods(alive, namespace) == before
    assert await started(alive, "chat", namespace) == stable
    assert await pods(alive, namespace) == before
    deployment = await alive.kubectl.get("deployment", f"chat-{stable}", namespace)
    assert deployment is not None
    assert [owner["name"] for owner in deployment["metadata"]["ownerReferences"]] == ["chat"]
    await alive.kubectl.run("delete", "isvc", "chat", "-n", namespace, "--wait=false")
    await gone(alive, namespace)


async def pods(plane: Plane, namespace: str) -> set[str]:
    """Return the pods by uid."""
    return {item["metadata"]["uid"] for item in await plane.kubectl.list("pods", namespace)}
