"""Protects error budgets end to end: with a real Envoy, what clients met is what the operator's own reader counts: late first tokens,
requests that waited in the gateway's queue, errors, requests that the gateway shed, clients that left, each in its priority."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.gateway.fleet import STABLE, Fleet, running, until

from pagefleet_contract.slo import Objective
from pagefleet_operator.domain.slo.attainment import Attainment
from pagefleet_operator.domain.status.gateway_slices import slices

CHAT, UP = Objective("chat", "ttft", 0.05, 1.0), Objective("up", "errors", 0.01)
LIVE = Objective("live", "ttft", 0.05, 1.0, "live")
CLASSES = {"priorities": ((("x-tier", "live"),),), "priority_names": ("live",)}


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with running() as fleet:
        yield fleet


async def counts(fleet: Fleet) -> dict[str, tuple[int, int]]:
    """Return the requests and misses by objective, as the operator adds them up."""
    url = f"http://127.0.0.1:{fleet.gateway.internal_port}/windows?namespace=team&service=chat"
    async with fleet.http.get(url) as response:
        document = await response.json()
    attainment = Attainment()
    attainment.add(slices(document))
    reading = attainment.reading(document["now"])
    return {} if reading is None else {key: one.recent for key, one in reading.counts.items()}


async def counted(fleet: Fleet, expected: dict[str, tuple[int, int]]) -> None:
    """Wait until every request is counted. More can then not come: each slice counts once."""

    async def whole() -> bool:
        found = await counts(fleet)
        return sum(requests for requests, _ in found.values()) >= sum(requests for requests, _ in expected.values())

    await until(whole)
    assert await counts(fleet) == expected


async def stream(fleet: Fleet, **headers: str) -> int:
    """Send a request for a stream and read it whole. Return its status."""
    body = {"model": "smol", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    async with fleet.http.post(f"{fleet.url}/team/chat/v1/chat/completions", json=body, headers=headers) as response:
        await response.read()
        return response.status


async def test_late_first_tokens_and_the_time_in_the_queue_break_a_promise(fleet: Fleet) -> None:
    fleet.serve((STABLE, 100), objectives=(CHAT, LIVE, UP), hold_seconds=30.0, hold_requests=3, **CLASSES)
    held = asyncio.create_task(stream(fleet, **{"x-tier": "live"}))
    await until(lambda: fleet.gateway.holding.held(("team", "chat")) == 1)
    await asyncio.sleep(1.1)  # it waits for longer than promised, before any pod is there
    engine = await fleet.engine(STABLE)
    assert await held == 200
    assert [await stream(fleet) for _ in range(3)] == [200] * 3
    engine.first_token = 1.2
    assert await stream(fleet) == 200
    await counted(fleet, {CHAT.key: (5, 2), LIVE.key: (1, 1), UP.key: (5, 0)})


async def test_a_client_that_leaves_the_queue_after_the_bound_was_kept_waiting_for_too_long(fleet: Fleet) -> None:
    fleet.serve((STABLE, 100), objectives=(CHAT, LIVE, UP), hold_seconds=30.0, **CLASSES)
    waiting = [asyncio.create_task(stream(fleet, **tier)) for tier in ({"x-tier": "live"}, {}, {})]
    await until(lambda: fleet.gateway.holding.held(("team", "chat")) == 3)
    waiting.pop().cancel()
    await until(lambda: fleet.gateway.holding.held(("team", "chat")) == 2)
    await asyncio.sleep(1.1)  # the others wait for longer than promised
    for one in waiting:
        one.cancel()
    await counted(fleet, {CHAT.key: (2, 2), LIVE.key: (1, 1)})


async def test_errors_and_shed_requests_miss_and_limits_and_bad_requests_do_not_count(fleet: Fleet) -> None:
    fleet.serve((STABLE, 100), objectives=(UP,), retries=0)
    assert (await fleet.chat())[0] == 503, "no pod is there"
    engine = await fleet.engine(STABLE)
    assert (await fleet.chat())[0] == 200
    for status in (500, 400):
        engine.status = status
        assert (await fleet.chat())[0] == status
    await counted(fleet, {UP.key: (3, 2)})
