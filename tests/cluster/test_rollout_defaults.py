"""Protects the defaults of the rollout block on a real API server: an empty guard and empty steps stay as they are written,
through client-side and server-side apply, a guard with a setting only is no empty one, and applying the same manifest again
changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from support.cluster.plane import Plane
from support.cluster.services import NAMESPACE, service, settled

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
SERVER_SIDE = ("--server-side", "--field-manager=gitops")


@pytest.mark.parametrize("flags", [(), SERVER_SIDE], ids=["client", "server"])
@pytest.mark.parametrize(
    ("name", "block", "guarded", "reason"),
    [
        ("unguarded", {"guard": {}}, "False", "NoGuard"),
        ("stepless", {"steps": []}, "False", "NoSteps"),
        ("unjudged", {"guard": {"latency": [], "errors": {}}}, "False", "NoGuard"),
        ("partial", {"guard": {"deadline": "9m"}}, "True", "Guarded"),
        ("alerted", {"alerts": {"matchLabels": {"severity": "page"}}}, "True", "Guarded"),
    ],
)
async def test_a_block_stays_as_it_is_written(
    plane: Plane, flags: tuple[str, ...], name: str, block: dict[str, Any], guarded: str, reason: str
) -> None:
    name = f"{name}-{'server' if flags else 'client'}"
    document = service(name)
    document["spec"]["rollout"] = block
    await plane.kubectl.apply(document, *flags)
    state = await settled(plane, name, "it is judged", lambda v: v.condition("Guarded").get("status") == guarded)
    assert state.condition("Guarded")["reason"] == reason
    await plane.kubectl.apply(document, *flags)
    stored = await plane.kubectl.get("isvc", name, NAMESPACE)
    assert stored is not None
    for field, value in block.items():
        written = stored["spec"]["rollout"][field]
        assert written == ({**value, "onAlert": "rollback"} if field == "alerts" else value)
    assert set(stored["spec"]["rollout"]) == {*block, "historyLimit"}
    assert stored["metadata"]["generation"] == 1, "the same manifest again is no change"
    table = (await plane.kubectl.run("get", "isvc", name, "-n", NAMESPACE)).out.splitlines()
    assert guarded in table[1][table[0].index("GUARDED") :]
    await plane.kubectl.run("delete", "isvc", name, "-n", NAMESPACE, "--wait=false")
