"""What the gateway makes of an engine's answer: tokens counted, silences ended, attempts before the first token.

Protects, with a real Envoy: output tokens and time per token from our engine's trailer and header and from another
engine's `usage`, none where nobody says; firstTokenTimeout and nextTokenTimeout; retries that never repeat a byte;
clients that leave and pods that go.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
import pytest
from support.gateway.fleet import CANARY, HEADERS, STABLE, Engine, Fleet, running, until

from pagefleet_contract.sketch import quantile

STREAM = {"model": "smol", "stream": True, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
async def fleet(request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:
    async with running() as fleet:
        fleet.headers = getattr(request, "param", "late")
        yield fleet


each_kind_of_engine = pytest.mark.parametrize("fleet", HEADERS, indirect=True)


async def stream(fleet: Fleet, usage: bool = False) -> tuple[int, bytes, dict[str, str]]:
    """A streamed chat's status, bytes and headers; raises aiohttp.ClientError when it is cut off."""
    url = f"{fleet.url}/team/chat/v1/chat/completions"
    asked = STREAM | ({"stream_options": {"include_usage": True}} if usage else {})
    async with fleet.http.post(url, json=asked) as response:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return response.status, await response.read(), headers


@pytest.mark.parametrize("said", ["trailer", "usage"])
@each_kind_of_engine
async def test_output_tokens_and_the_time_of_each_are_measured(fleet: Fleet, said: str) -> None:
    await fleet.engine(STABLE, between=0.2, token_report=said)
    fleet.serve((STABLE, 100))
    for _ in range(2):
        status, body, headers = await stream(fleet, usage=said == "usage")
        assert status == 200 and body.endswith(b"data: [DONE]\n\n")
        assert "te" not in headers
    assert (await fleet.chat())[0] == 200
    slices = await fleet.slices(requests=3)
    assert sum(int(str(piece.get("tokens", 0))) for piece in slices) == 9  # three answers of three
    tpot: Counter[int] = Counter()
    for piece in slices:
        tpot.update({int(bucket): count for bucket, count in piece.get("tpot", {}).items()})  # type: ignore[attr-defined]
    assert tpot.total() == 2  # the answer that did not stream has no time per token
    # Two pauses for two tokens after the first; for all three it would be 0.133. On a busy machine the first one is seen late.
    assert 0.15 <= quantile(tpot, 0.5) <= 0.3
    arrivals = [piece for piece in slices if piece["revision"] == ""]
    assert sum(int(str(piece["arrivals"])) for piece in arrivals) == 3


@each_kind_of_engine
async def test_an_engine_that_says_no_tokens_is_not_measured(fleet: Fleet) -> None:
    await fleet.engine(STABLE)
    fleet.serve((STABLE, 100))
    assert (await stream(fleet))[0] == 200
    piece = await fleet.measured()
    assert "tokens" not in piece and "tpot" not in piece and piece["ttft"]


@pytest.mark.parametrize(("first", "following"), [(2.0, 1.0), (None, 2.0), (0.5, 2.0)])
@each_kind_of_engine
async def test_an_answer_that_falls_silent_is_ended(fleet: Fleet, first: float | None, following: float) -> None:
    engine = await fleet.engine(STABLE, first_token=0.3, between=1.1)
    fleet.serve((STABLE, 100), first_token_seconds=first, next_token_seconds=following, retries=0)
    assert (await stream(fleet))[0] == 200  # longer than the limit, and never silent for longer
    engine.first_token, engine.between = 0.0, 30.0
    began = time.monotonic()
    with pytest.raises(aiohttp.ClientError):
        await stream(fleet)
    assert 1.9 <= time.monotonic() - began < 4
    await until(lambda: engine.left == 1, 1.0)  # and the engine is told
    slices = await fleet.windows(requests=2)
    assert sum(int(str(piece["errors"])) for piece in slices) == 1


@each_kind_of_engine
async def test_a_first_token_that_does_not_come_is_looked_for_on_another_pod(fleet: Fleet) -> None:
    stuck = await fleet.engine(STABLE, first_token=30.0)
    fleet.serve((STABLE, 100), first_token_seconds=0.5)
    began = time.monotonic()
    status, body, _ = await fleet.chat(json=STREAM)
    assert (status, body["error"]["code"]) == (504, "upstream_timeout")  # type: ignore[index]
    assert len(stuck.requests) == 3 and 1.4 < time.monotonic() - began < 5
    well = await fleet.engine(STABLE)
    for _ in range(4):
        status, answer, _ = await stream(fleet)
        assert status == 200 and answer.count(b"chat.completion.chunk") == 3
    assert len(well.requests) == 4
    await until(lambda: stuck.left == len(stuck.requests), 1.0)


@each_kind_of_engine
async def test_a_pod_that_dies_before_its_first_token_costs_nobody_an_error(fleet: Fleet) -> None:
    engines = [await fleet.engine(STABLE, first_token=0.4) for _ in range(3)]
    fleet.serve((STABLE, 100))
    asked = [asyncio.create_task(stream(fleet)) for _ in range(9)]
    await until(lambda: sum(len(engine.requests) for engine in engines) == 9)
    *dying, survivor = engines
    for engine in dying:
        engine.die()
    answers = await asyncio.gather(*asked)
    assert {status for status, _, _ in answers} == {200}
    assert all(body.count(b"chat.completion.chunk") == 3 for _, body, _ in answers)
    assert len(survivor.requests) == 9


@each_kind_of_engine
async def test_a_begun_answer_is_never_repeated(fleet: Fleet) -> None:
    await fleet.engine(STABLE, between=0.3)
    await fleet.engine(STABLE, between=0.3)
    fleet.serve((STABLE, 100))
    engines: list[Engine] = []
    url = f"{fleet.url}/team/chat/v1/chat/completions"
    async with fleet.http.post(url, json=STREAM) as response:
        got = await response.content.readany()
        engines += [engine for engine in fleet.engines if engine.requests]
        engines[0].die()
        with pytest.raises(aiohttp.ClientError):
            while part := await response.content.readany():
                got += part
    assert got.count(b"chat.completion.chunk") <= 2
    assert sum(len(engine.requests) for engine in fleet.engines) == 1


@pytest.mark.parametrize("begun", [False, True])
@each_kind_of_engine
async def test_a_client_that_leaves_ends_its_request_in_the_engine_within_a_second(fleet: Fleet, begun: bool) -> None:
    engine = await fleet.engine(STABLE, first_token=0.0 if begun else 30.0, between=30.0)
    fleet.serve((STABLE, 100))
    url = f"{fleet.url}/team/chat/v1/chat/completions"
    asked = asyncio.create_task(fleet.http.post(url, json=STREAM))
    await until(lambda: len(engine.requests) == 1)
    if begun:
        response = await asked
        await response.content.readany()
        response.close()
    else:
        asked.cancel()
    await until(lambda: engine.left == 1, 1.0)
    await until(lambda: len(fleet.gateway.ledger) == 0, 1.0)


@each_kind_of_engine
async def test_a_pod_that_goes_ends_its_streams_and_gets_no_new_one(fleet: Fleet) -> None:
    old = await fleet.engine(STABLE, between=0.3)
    fleet.serve((STABLE, 100))
    open_streams = [asyncio.create_task(stream(fleet)) for _ in range(3)]
    await until(lambda: len(old.requests) == 3)
    new = await fleet.engine(CANARY)
    fleet.serve((CANARY, 100))
    fleet.state.put_pod(old.pod(ready=False))  # terminating
    assert {(await stream(fleet))[2]["x-pagefleet-revision"] for _ in range(5)} == {CANARY}
    fleet.state.remove_pod(old.pod().uid)  # and its object is deleted while its last streams run
    assert (await stream(fleet))[0] == 200
    answers = await asyncio.gather(*open_streams)
    assert all(status == 200 and body.count(b"chat.completion.chunk") == 3 for status, body, _ in answers)
    assert (len(old.requests), len(new.requests)) == (3, 6)
