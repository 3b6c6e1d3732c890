"""Protects the Lease: one of two operators writes; when it dies or is frozen the other takes over in time, and a frozen
one that wakes up writes nothing more (row 12 of the reliability table)."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from faults.cases import once
from faults.operator_process import Operator
from faults.proxy import Fault
from faults.runs import Ground
from faults.story import GROUP, Story

from pagefleet_local.fleet.kubectl import until
from pagefleet_operator.kube.lease import LEASE_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
SYSTEM, NAME = "pagefleet-system", "pagefleet-operator"
TAKEOVER_SECONDS = LEASE_SECONDS + 5.0


@pytest_asyncio.fixture(loop_scope="session")
async def pair(ground: Ground, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Operator, Operator]]:
    """Two operators of one namespace; the first one leads."""
    number = abs(hash(request.node.name)) % 10_000
    made = [Operator(ground.layout, ground.folder, f"lease-{number}", 18900 + i, lease=NAME) for i in range(2)]
    async with made[0]:
        await until(made[0].leads, timeout=60, what="the first operator leads")
        async with made[1]:
            await until(made[1].ready, timeout=60, what="the second operator watches")
            yield made[0], made[1]
    lease = await ground.api.find(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{NAME}")
    if lease is not None:
        await ground.api.delete(
            f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{NAME}", lease["metadata"]["uid"]
        )


async def serving(ground: Ground, operator: Operator) -> Story:
    story = Story(ground.api, operator)
    await ground.api.create(
        "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": operator.namespace}}
    )
    await story._create()
    return story


async def edited(ground: Ground, story: Story, replicas: int) -> None:
    """Make an edit, and wait until the leader has carried it out, within the time of a takeover."""
    story.timeout = TAKEOVER_SECONDS + 5
    await story._edit(lambda spec: spec["scaling"].update(min=replicas))
    await story.until(f"{replicas} replicas", lambda v: v.status.get("replicas") == replicas)


async def test_the_leader_alone_writes_and_is_succeeded_when_it_dies(
    ground: Ground, pair: tuple[Operator, Operator]
) -> None:
    first, second = pair
    story = await serving(ground, first)
    assert [call for call in second.proxy.committed if GROUP in call.path] == []
    began = time.monotonic()
    first.retire(signal.SIGKILL)  # a process started in its place is as good a successor: it might win the race
    await until(second.leads, timeout=TAKEOVER_SECONDS + 1, what="the second operator takes over", interval=0.2)
    assert time.monotonic() - began <= TAKEOVER_SECONDS
    await edited(ground, story, 2)
    await story._delete()


async def test_a_leader_that_freezes_within_a_decision_writes_nothing_after_it_wakes(
    ground: Ground, pair: tuple[Operator, Operator]
) -> None:
    """It freezes while the first write of a canary's start is on its way, with the others of that decision still to come."""
    first, second = pair
    story = await serving(ground, first)
    stable = (await story.view()).stable

    async def freeze() -> None:
        first.send(signal.SIGSTOP)

    first.proxy.script = once(Fault(wait=freeze), lambda call: call.write > 0 and "/leases" not in call.path)
    await story._edit(lambda spec: spec["engine"].update(args=["--max-num-seqs=4"]))
    await until(lambda: happened(first.proxy.struck), timeout=10, what="the first write of the decision", interval=0.05)
    began = time.monotonic()
    await until(second.leads, timeout=TAKEOVER_SECONDS + 1, what="the second operator takes over", interval=0.2)
    # A stopped process sends nothing. A write that it sent just before may be committed after SIGSTOP, but long before now.
    frozen = len(first.proxy.committed)
    await story.until("the successor promotes the canary", lambda v: v.stable not in ("", stable) and v.phase == "Idle")
    await asyncio.sleep(max(0.0, 2 * LEASE_SECONDS - (time.monotonic() - began)))  # row 12: frozen for two leases
    first.send(signal.SIGCONT)
    await until(lambda: happened(first.deaths), timeout=20, what="the first operator ends: it is not the leader")
    await edited(ground, story, 3)
    assert first.proxy.committed[frozen:] == []
    assert len([call for call in second.proxy.committed if "/deployments" in call.path]) > 0
    await story._delete()


async def happened(what: object) -> bool:
    return bool(what)


async def test_a_leader_that_gets_sigterm_hands_over_at_once(ground: Ground, pair: tuple[Operator, Operator]) -> None:
    first, second = pair
    first.retire()  # otherwise it might be back, and hold the Lease again, before the other operator reads it
    began = time.monotonic()
    await until(second.leads, timeout=TAKEOVER_SECONDS, what="the second operator takes over", interval=0.2)
    assert time.monotonic() - began < LEASE_SECONDS - 5.0
