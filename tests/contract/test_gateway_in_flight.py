"""Protects that the windows know of a request before it ends, behind a real Envoy: how long it waits, its first token when that
passes, and its client that went away. The engine's headers, sent at once, are no answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.gateway.fleet import CANARY, FAILED, STABLE, Fleet, running, until

from pagefleet_contract.sketch import bucket_of

STREAM = {"model": "smol", "messages": [{"role": "user", "content": "hello"}], "stream": True}


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with running() as fleet:
        yield fleet


async def ask(fleet: Fleet, **headers: str) -> bytes:
    url = f"{fleet.url}/team/chat/v1/chat/completions"
    async with fleet.http.post(url, data=json.dumps(STREAM), headers=headers) as response:
        return await response.read()


async def shown(fleet: Fleet, name: str) -> dict[str, Any]:
    """All slices as one, once they have something of this name."""
    whole: dict[str, Any] = {}

    async def there() -> bool:
        whole.clear()
        whole.update(await fleet.measured(requests=0))
        return bool(whole.get(name))

    await until(there)
    return whole


async def leave(asking: asyncio.Task[bytes]) -> None:
    asking.cancel()
    await asyncio.wait([asking])


@pytest.mark.parametrize("headers", ["late", "first", "role"])
async def test_a_request_that_waits_is_counted_by_its_age_and_then_by_its_client_s_leaving(
    fleet: Fleet, headers: str
) -> None:
    await fleet.engine(STABLE, headers=headers, first_token=60.0)
    fleet.serve((STABLE, 100))
    asking = asyncio.create_task(ask(fleet))
    waiting = await shown(fleet, "waiting")
    (waited,) = waiting["waiting"]
    assert 0 < int(waited) <= bucket_of(5.0)
    assert not asking.done() and waiting["ttft"] == {} and waiting["started"] == 1
    await leave(asking)
    left = await shown(fleet, "leftWaiting")
    (age,) = left["leftWaiting"]
    assert int(waited) <= int(age) < bucket_of(20.0)
    assert (left["requests"], left["errors"], left["ttft"]) == (0, 0, {})


async def test_a_first_token_is_in_the_windows_while_its_stream_goes_on_and_not_again_at_its_end(fleet: Fleet) -> None:
    engine = await fleet.engine(STABLE, headers="role", first_token=0.3, between=30.0)
    fleet.serve((STABLE, 100))
    asking = asyncio.create_task(ask(fleet))
    whole = await shown(fleet, "ttft")
    (bucket,) = whole["ttft"]
    assert bucket_of(0.29) <= int(bucket) <= bucket_of(0.9)
    assert not asking.done() and whole["requests"] == 0 and "waiting" not in whole
    await shown(fleet, "running")
    await leave(asking)
    left = await shown(fleet, "leftRunning")
    assert list(left["ttft"].values()) == [1] and "leftWaiting" not in left
    engine.between = 0.0
    await ask(fleet)
    whole = await fleet.measured(requests=1)
    assert sum(whole["ttft"].values()) == 2 and sum(whole["e2e"].values()) == 1


async def test_a_request_that_its_header_has_forced_counts_in_no_verdict(fleet: Fleet) -> None:
    await fleet.engine(STABLE)
    await fleet.engine(CANARY, headers="first", first_token=0.2)
    fleet.serve((STABLE, 100), canary=CANARY, canary_headers=(("x-canary", "1"),))
    await ask(fleet, **{"x-canary": "1"})
    whole = await shown(fleet, "forced")
    assert (whole["forced"], whole["requests"], whole["started"], whole["ttft"]) == (1, 0, 0, {})


async def test_what_the_canary_alone_refuses_is_counted(fleet: Fleet) -> None:
    await fleet.engine(CANARY, status=400)
    fleet.serve((CANARY, 100))
    await ask(fleet)
    whole = await shown(fleet, "clientErrors")
    assert (whole["clientErrors"], whole["requests"], whole["errors"]) == (1, 0, 0)


async def test_a_stream_that_ends_with_an_error_event_has_failed_although_its_status_is_200(fleet: Fleet) -> None:
    """As vLLM and others report an error after the first token. Text that only quotes such an event is no error."""
    await fleet.engine(CANARY, headers="role", breaks=True, between=0.05)
    fleet.serve((CANARY, 100))
    assert b"no page left" in await ask(fleet)
    whole = await fleet.measured(requests=1)
    assert (whole["requests"], whole["errors"], whole["e2e"]) == (1, 1, {})
    assert list(whole["ttft"].values()) == [1], "its first token was felt all the same"


async def test_an_error_event_that_two_reads_divide_is_found_wherever_they_divide_it(fleet: Fleet) -> None:
    """The engine sends the second part when the client has the first, so Envoy reads the two one after the other."""
    engine = await fleet.engine(CANARY, pieces=(FAILED, b""))
    fleet.serve((CANARY, 100))
    for cut in range(1, len(FAILED)):
        engine.pieces, engine.gate = (FAILED[:cut], FAILED[cut:]), asyncio.Semaphore(0)
        url = f"{fleet.url}/team/chat/v1/chat/completions"
        async with fleet.http.post(url, data=json.dumps(STREAM)) as response:
            received = b""
            while not received.endswith(b"\n\n" + FAILED[:cut]):
                received += await response.content.readany()
            engine.gate.release()
            assert (await response.read()).startswith(FAILED[cut:])
    await until(lambda: len(fleet.lines) == len(FAILED) - 1)
    assert [cut for cut, line in enumerate(fleet.lines, 1) if line["end"] != "failed"] == []
