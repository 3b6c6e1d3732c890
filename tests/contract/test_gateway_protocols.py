"""Responses and Messages through a real Envoy: their first token is the client's, an engine that fails before it is replaced by
another, and an error after it is counted. Protects the verdict on a canary, which stands on these.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.gateway import protocols
from support.gateway.fleet import STABLE, TOKENS, USAGE, Fleet, running, until

from pagefleet_contract.sketch import bucket_of
from pagefleet_gateway.measuring.first_tokens import FirstToken, StreamError

SECONDS = 0.6  # from a request to the first token of its engine


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with running() as fleet:
        yield fleet


async def stream(fleet: Fleet, path: str) -> tuple[int, float | None, str]:
    """Ask for a stream. Return its status, the seconds to its first token by the client's own clock, and its text."""
    prompt: dict[str, Any] = {"input": "hello"} if path == protocols.RESPONSES else {
        "messages": [{"role": "user", "content": "hello"}], "system": "brief", "max_tokens": 9}  # fmt: skip
    begun, first, text = time.monotonic(), None, ""
    asked = {"model": "smol", "stream": True, **prompt}
    async with fleet.http.post(f"{fleet.url}/team/chat{path}", json=asked) as response:
        async for line in response.content:
            event = json.loads(line[len("data: ") :]) if line.startswith(b"data: {") else {}
            delta = event.get("delta", "") if "delta" in str(event.get("type")) else ""
            token = delta if isinstance(delta, str) else delta.get("text", "")
            first = first or (time.monotonic() - begun if token else None)
            text += token
        return response.status, first, text


@pytest.mark.parametrize("path", protocols.PATHS)
@pytest.mark.parametrize("headers", ["late", "role"])
async def test_the_window_s_time_to_first_token_is_the_client_s(fleet: Fleet, path: str, headers: str) -> None:
    await fleet.engine(STABLE, headers=headers, first_token=SECONDS)
    fleet.serve((STABLE, 100))
    status, felt, text = await stream(fleet, path)
    assert (status, text) == (200, "".join(TOKENS)) and felt is not None
    (bucket,) = (int(one) for one in (await fleet.measured())["ttft"])
    # The client reads a token late where the machine is busy, and the engine never sends it early.
    assert bucket_of(SECONDS * 0.98) <= bucket <= bucket_of(felt * 1.05)
    (line,) = fleet.lines
    assert SECONDS * 0.98 <= float(str(line["ttft_us"])) / 1e6 <= felt * 1.05


@pytest.mark.parametrize("path", protocols.PATHS)
async def test_an_engine_that_dies_before_its_first_token_is_replaced_by_another(fleet: Fleet, path: str) -> None:
    dying = await fleet.engine(STABLE, headers="role", deaths=1)
    other = await fleet.engine(STABLE, headers="role")
    fleet.serve((STABLE, 100))
    for _ in range(6):
        status, _, text = await stream(fleet, path)
        assert (status, text) == (200, "".join(TOKENS))
        if len(dying.requests) and not dying.deaths:
            break
    assert dying.deaths == 0 and other.requests


@pytest.mark.parametrize("path", protocols.PATHS)
async def test_an_error_before_the_first_token_is_an_error_status_that_another_engine_gets(
    fleet: Fleet, path: str
) -> None:
    await fleet.engine(STABLE, headers="error", failure=protocols.opening(path) + protocols.failure(path))
    fleet.serve((STABLE, 100))
    status, _, text = await stream(fleet, path)
    assert (status, text) == (503, "")
    good = await fleet.engine(STABLE, headers="role")
    for _ in range(4):
        assert (await stream(fleet, path))[0] == 200
    assert good.requests


@pytest.mark.parametrize("path", protocols.PATHS)
async def test_an_error_after_the_first_token_is_reported(fleet: Fleet, path: str) -> None:
    await fleet.engine(STABLE, headers="role", breaks=True, between=0.05)
    fleet.serve((STABLE, 100))
    reported: list[FirstToken | StreamError] = []
    fleet.gateway.proxy.first_tokens._on_report = reported.append
    status, _, text = await stream(fleet, path)
    assert (status, text) == (200, "".join(TOKENS[:2]))
    await until(lambda: len(reported) == 2)
    assert [type(one) for one in reported] == [FirstToken, StreamError]


@pytest.mark.parametrize("path", protocols.PATHS)
async def test_the_tokens_of_a_stream_are_counted_without_being_asked_for(fleet: Fleet, path: str) -> None:
    usage = {"input_tokens": USAGE["prompt_tokens"], "output_tokens": USAGE["completion_tokens"]}
    ends: dict[str, Any] = {
        protocols.RESPONSES: {"type": "response.completed", "response": {"output": [], "usage": usage}},
        protocols.MESSAGES: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
    }
    await fleet.engine(STABLE, headers="role", pieces=(protocols.event(ends[path]),))
    fleet.serve((STABLE, 100))
    assert (await stream(fleet, path))[0] == 200
    await until(lambda: len(fleet.lines) == 1)
    assert fleet.lines[0]["output_tokens"] == USAGE["completion_tokens"]
