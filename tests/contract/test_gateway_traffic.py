"""Holding, shedding, mirroring and falling back, as a client meets them: a real Envoy and the real picker."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import pytest
from support.gateway.fleet import CANARY, STABLE, Fleet, running, until

from pagefleet_contract.sketch import bucket_of
from pagefleet_gateway.cluster.service import RateLimit, Service


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with running() as fleet:
        yield fleet


async def test_requests_are_held_until_a_pod_is_there_and_given_up_with_their_clients(fleet: Fleet) -> None:
    fleet.serve((STABLE, 100), hold_seconds=30.0, hold_requests=3)
    held = [asyncio.create_task(fleet.chat()) for _ in range(2)]
    gone = asyncio.create_task(fleet.chat())
    await until(lambda: fleet.gateway.holding.held(("team", "chat")) == 3)
    status, body, headers = await fleet.chat()
    assert status == 429 and int(headers["retry-after"]) > 0
    assert isinstance(body["error"], dict) and body["error"]["code"] == "queue_full"
    gone.cancel()
    await until(lambda: fleet.gateway.holding.held(("team", "chat")) == 2, 1.0)
    url = f"http://127.0.0.1:{fleet.gateway.internal_port}"
    async with fleet.http.get(f"{url}/windows?namespace=team&service=chat") as response:
        assert (await response.json())["held"] == 2
    async with fleet.http.get(f"{url}/metrics") as response:
        text = await response.text()
    assert 'pagefleet_gateway_held{namespace="team",service="chat"} 2.0' in text
    assert 'pagefleet_gateway_wakeups_total{namespace="team",service="chat"} 1.0' in text
    await asyncio.sleep(0.5)  # the time held must not be charged to the revision
    engine = await fleet.engine(STABLE)
    assert [status for status, _, _ in await asyncio.gather(*held)] == [200, 200]
    assert len(engine.requests) == 2
    slices = await fleet.windows(requests=2)
    assert max(int(bucket) for piece in slices for bucket in piece["e2e"]) < bucket_of(0.4)  # type: ignore[attr-defined]


async def test_limits_and_full_pods_go_through_envoy_as_429(fleet: Fleet) -> None:
    engine = await fleet.engine(STABLE, first_token=0.5)
    fleet.serve((STABLE, 100), pod_limit=1, hold_seconds=10.0, limits=(RateLimit("authorization", 3, 0),))
    key = {"authorization": "Bearer k"}
    answers = await asyncio.gather(*(fleet.chat(headers=key) for _ in range(4)))
    assert sorted(status for status, _, _ in answers) == [200, 200, 200, 429]
    (limited,) = [headers for status, _, headers in answers if status == 429]
    assert 15 <= int(limited["retry-after"]) <= 20
    assert len(engine.requests) == 3  # one after the other: the pod takes one at a time


async def test_a_mirrored_request_is_answered_once_and_its_copy_thrown_away(fleet: Fleet) -> None:
    stable = await fleet.engine(STABLE)
    canary = await fleet.engine(CANARY, status=500)
    fleet.serve((STABLE, 100), mirror=(CANARY, 100.0))
    answers = [await fleet.chat() for _ in range(10)]
    assert {(status, headers["x-pagefleet-revision"]) for status, _, headers in answers} == {(200, STABLE)}
    assert len(stable.requests) == 10
    await until(lambda: len(canary.requests) >= 9)  # Envoy knows the mirrors' endpoints a moment after the engines'
    assert canary.requests[0].path == "/v1/chat/completions"
    assert sum(int(str(piece["errors"])) for piece in await fleet.windows(requests=10)) == 0
    fleet.serve((STABLE, 100))
    copied = len(canary.requests)
    assert (await fleet.chat())[0] == 200
    await canary.stop()
    fleet.serve((STABLE, 100), mirror=(CANARY, 100.0))
    assert (await fleet.chat())[0] == 200
    assert len(canary.requests) == copied


async def test_a_fallback_answers_and_says_so(fleet: Fleet) -> None:
    fleet.serve((STABLE, 100), fallback="small")
    assert (await fleet.chat())[0] == 503
    other = await fleet.engine(CANARY)
    pod = dataclasses.replace(other.pod(), uid="small", service="small")
    fleet.state.replace_pods([pod])
    fleet.state.put_service(Service("team", "small", "smol-small", ((CANARY, 100),)))
    await until(lambda: fleet.state.snapshot.pods.get(("team", "small")) is not None)
    status, _, headers = await fleet.chat(headers={"x-pagefleet-fallback": "forged"})
    assert (status, headers["x-pagefleet-fallback"], headers["x-pagefleet-revision"]) == (200, "team/small", CANARY)
    await fleet.engine(STABLE)
    status, _, headers = await fleet.chat()
    assert (status, headers["x-pagefleet-revision"]) == (200, STABLE)
    assert "x-pagefleet-fallback" not in headers
    counted = [
        (piece["revision"], piece["fellBack"]) for piece in await fleet.windows(requests=1) if "fellBack" in piece
    ]
    assert counted == [(STABLE, 1)], "at the revision that had to be answered for; a refusal is no fallback"
