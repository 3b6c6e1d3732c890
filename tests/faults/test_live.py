"""Protects a service on a real control plane from what reaches it from outside: a storm of alerts with kills (row 20 of the
reliability table) and any value in any field of its spec (row 9). PAGEFLEET_FLOOD_SECONDS and PAGEFLEET_LIVE_MUTATIONS set
their sizes; `make campaign`'s programs `faults.flood` and `faults.mutations` are the same, larger."""

from __future__ import annotations

import os

import pytest
from faults import flood, mutations
from faults.runs import Ground

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
SECONDS, RATE = float(os.environ.get("PAGEFLEET_FLOOD_SECONDS", "2")), 1000.0
MUTATIONS = int(os.environ.get("PAGEFLEET_LIVE_MUTATIONS", "30"))
# A refused Deployment once left its revision's Service and budget behind; a character beyond 16 bits could not be applied.
ALWAYS = (
    mutations.Mutation(("placement", "nodeSelector", "no label"), "x"),
    mutations.Mutation(("engine", "args", 0), "🦙"),
)
SEED = int(os.environ.get("PAGEFLEET_FAULT_SEED", "1"))


async def namespace(ground: Ground, name: str) -> None:
    await ground.api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


async def test_a_flood_of_alerts_rolls_each_canary_back_once(ground: Ground) -> None:
    await namespace(ground, flood.NAMESPACE)
    state, storm = await flood.flood(ground, SECONDS, RATE, SEED)
    assert state.problems == []
    assert state.alerts == {f"{canary}-{number}" for canary in state.writes for number in range(4)}
    assert storm.answers[200] > 50 and state.operator.deaths == 4


async def test_a_changed_field_is_refused_or_decided_and_put_back_restores(ground: Ground) -> None:
    await namespace(ground, mutations.NAMESPACE)
    live = await mutations.mutated(ground, [*ALWAYS, *mutations.chosen(MUTATIONS, SEED)])
    assert live.problems == []
    assert live.outcomes.total() == MUTATIONS + len(ALWAYS)
    assert live.outcomes["refused"] > 0 and live.outcomes["Ready"] > 0, live.outcomes
    events = (await ground.api.get(f"/api/v1/namespaces/{mutations.NAMESPACE}/events"))["items"]
    refused = {event["message"] for event in events if event["reason"] == "ChildRefused"}
    assert any("spec.template.spec.nodeSelector" in message for message in refused)
    assert not any("Unicode" in message for message in refused)
