"""The time to the first token is what the client felt, whatever the engine: a real Envoy and engines that send their headers
late, at once, with an event that names the role, or with comments before the token.

Protects what stands on that time: `/windows`, `traffic.firstTokenTimeout`, and that a stream whose engine dies before its
first token is answered by another pod.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest
from support.gateway.fleet import CANARY, HEADERS, STABLE, TOKENS, Engine, Fleet, running, until

from pagefleet_contract import sketch
from pagefleet_contract.sketch import bucket_of
from pagefleet_gateway.measuring.first_tokens import FirstToken, StreamError
from pagefleet_gateway.picking.expected import MIN_MEASUREMENTS, Load

STREAM = {"model": "smol", "messages": [{"role": "user", "content": "hello"}], "stream": True}
SECONDS = 0.6  # from a request to the first token of its engine


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with running() as fleet:
        yield fleet


async def stream(fleet: Fleet) -> tuple[int, float | None, str]:
    """Ask for a stream. Return its status, the seconds to its first token by the client's own clock, and its text."""
    begun, first, text = time.monotonic(), None, ""
    async with fleet.http.post(f"{fleet.url}/team/chat/v1/chat/completions", json=STREAM) as response:
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[len("data: ") :]).get("choices", ()):
                token = choice["delta"].get("content", "")
                first = first or (time.monotonic() - begun if token else None)
                text += token
        return response.status, first, text


@pytest.mark.parametrize("headers", HEADERS)
async def test_the_window_s_time_to_first_token_is_the_client_s(fleet: Fleet, headers: str) -> None:
    await fleet.engine(STABLE, headers=headers, first_token=SECONDS)
    fleet.serve((STABLE, 100))
    status, felt, text = await stream(fleet)
    assert (status, text) == (200, "".join(TOKENS)) and felt is not None
    (bucket,) = (int(one) for one in (await fleet.measured())["ttft"])
    # The client reads a token late where the machine is busy, and the engine never sends it early.
    assert bucket_of(SECONDS * 0.98) <= bucket <= bucket_of(felt * 1.05)
    (line,) = fleet.lines
    assert SECONDS * 0.98 <= float(str(line["ttft_us"])) / 1e6 <= felt * 1.05


@pytest.mark.parametrize("headers", HEADERS)
async def test_a_first_token_is_reported_when_it_passes_and_not_at_the_stream_s_end(fleet: Fleet, headers: str) -> None:
    engine = await fleet.engine(STABLE, headers=headers, first_token=0.4, between=0.4)
    fleet.serve((STABLE, 100))
    reported: list[FirstToken | StreamError] = []
    fleet.gateway.proxy.first_tokens._on_report = reported.append
    asking = asyncio.create_task(stream(fleet))
    await until(lambda: len(reported) == 1)
    assert not asking.done()
    (token,) = reported
    assert isinstance(token, FirstToken)
    status, felt, _ = await asking
    assert (status, token.upstream) == (200, engine.pod().address) and felt is not None
    # The client reads a token late where the machine is busy, and the engine never sends it early.
    assert 0.4 * 0.98 <= token.seconds <= felt * 1.05
    await until(lambda: len(fleet.lines) == 1)
    assert [token.request_id] == [line["request_id"] for line in fleet.lines]


async def test_a_canary_s_first_tokens_are_compared_with_what_the_stable_revision_would_take(fleet: Fleet) -> None:
    """The stable revision teaches, one request after the other. The canary then takes four times as long."""
    stable = await fleet.engine(STABLE, first_token=0.05)
    await fleet.engine(CANARY, first_token=0.2)
    fleet.serve((STABLE, 100), canary=CANARY)
    for _ in range(MIN_MEASUREMENTS):
        await stream(fleet)
    times = fleet.gateway.ledger.expected_times
    await until(lambda: times.seconds(("team", "chat"), Load(10.0, 0.0)) is not None)
    for _ in range(5):
        await stream(fleet)
    fleet.serve((CANARY, 100), canary=CANARY)
    for _ in range(5):
        await stream(fleet)
    pieces = await fleet.adjusted(requests=MIN_MEASUREMENTS + 10)
    relative = {
        revision: sketch.merged(
            [one.relative for piece in pieces if piece.revision == revision for one in piece.load.values()]
        )
        for revision in (STABLE, CANARY)
    }
    assert [sketch.total(relative[revision]) for revision in (STABLE, CANARY)] == [5, 5]
    ratio = (sketch.quantile(relative[CANARY], 0.5) or 0.0) / (sketch.quantile(relative[STABLE], 0.5) or 1.0)
    assert 1.5 < ratio < 8.0
    assert {name for piece in pieces for name in piece.pods} == {stable.pod().name}


@pytest.mark.parametrize("headers", HEADERS)
async def test_a_pod_that_is_slow_to_its_first_token_gives_way_to_another(fleet: Fleet, headers: str) -> None:
    slow = await fleet.engine(STABLE, headers=headers, first_token=30.0)
    fleet.serve((STABLE, 100), first_token_seconds=0.4)
    quick = await fleet.engine(STABLE, headers=headers)
    begun = time.monotonic()
    answers = [await stream(fleet) for _ in range(4)]
    assert [(status, text) for status, _, text in answers] == [(200, "".join(TOKENS))] * 4
    assert slow.requests and quick.requests
    assert time.monotonic() - begun < 10.0
    await until(lambda: slow.left == len(slow.requests))  # its connections are closed: it computes no more


@pytest.mark.parametrize("headers", HEADERS)
async def test_a_stream_without_a_first_token_in_time_is_a_504(fleet: Fleet, headers: str) -> None:
    await fleet.engine(STABLE, headers=headers, first_token=30.0)
    fleet.serve((STABLE, 100), first_token_seconds=0.3)
    begun = time.monotonic()
    status, felt, _ = await stream(fleet)
    assert (status, felt) == (504, None)
    assert time.monotonic() - begun < 5.0


def has_lines(fleet: Fleet, count: int) -> bool:
    return len(fleet.lines) == count


@pytest.mark.parametrize("headers", HEADERS)
async def test_no_stream_is_lost_when_engines_die_before_their_first_token(fleet: Fleet, headers: str) -> None:
    engines = [await fleet.engine(STABLE, headers=headers, first_token=0.1) for _ in range(3)]
    fleet.serve((STABLE, 100))
    for ended in range(8, 41, 8):
        engines[0].deaths, engines[1].deaths = 2, 2
        answers = await asyncio.gather(*(stream(fleet) for _ in range(8)))
        assert [(status, text) for status, _, text in answers] == [(200, "".join(TOKENS))] * 8
        # The prompt is forgiven the deaths when the gateway has read that it was answered.
        await until(partial(has_lines, fleet, ended))
    assert sum(int(str(line["attempts"])) - 1 for line in fleet.lines) >= 2  # engines did die


async def test_an_error_as_the_first_event_is_tried_again_and_at_last_a_503(fleet: Fleet) -> None:
    failing = await fleet.engine(STABLE, headers="error")
    fleet.serve((STABLE, 100))
    async with fleet.http.post(f"{fleet.url}/team/chat/v1/chat/completions", json=STREAM) as response:
        assert (response.status, response.content_type) == (503, "application/json")
        assert (await response.json())["error"]["message"] == "no page left"
        assert response.headers.get("retry-after") == "1"
    await fleet.engine(STABLE)
    answers = [await stream(fleet) for _ in range(4)]
    assert [(status, text) for status, _, text in answers] == [(200, "".join(TOKENS))] * 4
    assert len(failing.requests) > 1


async def test_a_slow_upload_is_no_part_of_the_time_to_first_token(fleet: Fleet) -> None:
    await fleet.engine(STABLE, headers="first", first_token=0.2)
    fleet.serve((STABLE, 100))

    async def body() -> AsyncIterator[bytes]:
        text = json.dumps(STREAM).encode()
        yield text[:10]
        await asyncio.sleep(0.8)
        yield text[10:]

    url = f"{fleet.url}/team/chat/v1/chat/completions"
    async with fleet.http.post(url, data=body(), headers={"content-type": "application/json"}) as response:
        assert response.status == 200 and b"[DONE]" in await response.read()
    await until(lambda: len(fleet.lines) == 1)
    assert 0.2 <= float(str(fleet.lines[0]["ttft_us"])) / 1e6 < 0.5
    measured = await fleet.measured()
    assert max(int(bucket) for name in ("ttft", "e2e") for bucket in measured[name]) < bucket_of(0.6)


async def test_a_client_that_leaves_before_the_first_token_ends_the_engine_s_work(fleet: Fleet) -> None:
    engine = await fleet.engine(STABLE, headers="role", first_token=30.0)
    fleet.serve((STABLE, 100))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await stream(fleet)
    await until(lambda: engine.left == 1)


async def test_the_first_token_of_a_mirrored_copy_is_not_reported(fleet: Fleet) -> None:
    await fleet.engine(STABLE, headers="first", first_token=0.3)
    copy: Engine = await fleet.engine(CANARY, headers="first")
    fleet.serve((STABLE, 100), mirror=(CANARY, 100.0))
    reported: list[FirstToken | StreamError] = []
    fleet.gateway.proxy.first_tokens._on_report = reported.append
    await until(lambda: _asked_copy(fleet, copy), 10.0)
    assert all(token.upstream != copy.pod().address for token in reported) and reported


async def _asked_copy(fleet: Fleet, copy: Engine) -> bool:
    assert (await stream(fleet))[0] == 200
    return bool(copy.requests)


async def test_a_gateway_that_reads_no_reports_loses_no_answer(fleet: Fleet) -> None:
    await fleet.engine(STABLE, headers="first")
    fleet.serve((STABLE, 100))
    fleet.gateway.proxy.first_tokens.close()
    assert [(await stream(fleet))[0] for _ in range(3)] == [200] * 3


async def test_a_stream_whose_engines_all_die_before_a_token_is_a_503(fleet: Fleet) -> None:
    await fleet.engine(STABLE, headers="role", first_token=0.1, deaths=9)
    fleet.serve((STABLE, 100))
    async with fleet.http.post(f"{fleet.url}/team/chat/v1/chat/completions", json=STREAM) as response:
        assert (response.status, response.content_type) == (503, "application/json")
        assert (await response.json())["error"]["code"] == "upstream_unavailable"
        assert response.headers["retry-after"] == "1"


async def test_a_first_token_of_another_revision_is_no_time_of_the_picked_one(fleet: Fleet) -> None:
    """The canary's only engine dies, and the stable revision answers."""
    await fleet.engine(STABLE, headers="first", first_token=0.2)
    await fleet.engine(CANARY, headers="first", first_token=0.2, deaths=9)
    fleet.serve((STABLE, 1), (CANARY, 99))
    asked = 0
    while not any(line["attempts"] == 2 for line in fleet.lines):
        assert (await stream(fleet))[0] == 200
        asked += 1
        await until(lambda: len(fleet.lines) == asked)  # noqa: B023
    measured = await fleet.windows(requests=len(fleet.lines))
    assert all(not piece.get("ttft") for piece in measured if piece["revision"] == CANARY)
