"""Protects that an answer's tokens pass through Envoy alone: of an exchange the picker gets the request's headers and body, and of
its answer no byte of the body. At our own Envoy that is always so, and behind another gateway where it sends headers only
(`response_body_mode: NONE`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as proto
from support.gateway.behind_envoy import CHAT, options, other
from support.gateway.fleet import STABLE, Fleet, running, until

from pagefleet_gateway.fronts.authz import AuthzConnection
from pagefleet_gateway.fronts.ext_proc import Exchange

SECRET, PIECES = "xyzzy", 400
TEXT = f'data: {{"choices":[{{"index":0,"delta":{{"content":"{SECRET}"}}}}]}}\n\n'.encode()


async def streamed(fleet: Fleet, url: str) -> None:
    """Have an answer of many tokens streamed to a client."""
    async with fleet.http.post(f"{url}/v1/chat/completions", json=CHAT | {"stream": True}) as response:
        assert response.status == 200
        assert (await response.read()).count(SECRET.encode()) == PIECES
    await until(lambda: len(fleet.gateway.ledger) == 0 and len(fleet.lines) == 1)


async def test_our_own_envoy_shows_the_picker_no_byte_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    original = AuthzConnection.data_received

    def data_received(connection: AuthzConnection, data: bytes) -> None:
        read.append(data)
        original(connection, data)

    monkeypatch.setattr(AuthzConnection, "data_received", data_received)
    async with running() as fleet:
        await fleet.engine(STABLE, pieces=(TEXT,) * PIECES)
        fleet.serve((STABLE, 100))
        await streamed(fleet, f"{fleet.url}/team/chat")
        seen = b"".join(read)
        assert b"hello" in seen and SECRET.encode() not in seen and len(seen) < len(TEXT) * PIECES / 4
        assert SECRET not in json.dumps(fleet.lines)  # nor does the access log hold any
        configuration = fleet.gateway.proxy.paths.bootstrap.read_text()
        assert "ext_authz" in configuration and "ext_proc" not in configuration  # nothing else asks the picker


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
async def test_a_gateway_that_sends_headers_shows_the_picker_no_byte_of_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    messages: list[proto.ProcessingRequest] = []
    original = Exchange.responses

    async def responses(
        exchange: Exchange, message: proto.ProcessingRequest
    ) -> AsyncIterator[proto.ProcessingResponse]:
        messages.append(message)
        async for answer in original(exchange, message):
            yield answer

    monkeypatch.setattr(Exchange, "responses", responses)
    async with running(**options(tmp_path)) as fleet:
        await fleet.engine(STABLE, pieces=(TEXT,) * PIECES)
        fleet.serve((STABLE, 100))
        envoy = other(fleet, tmp_path, bodies="NONE")
        envoy.requests = mode
        async with envoy.running() as url:
            await streamed(fleet, url)
    kinds = {message.WhichOneof("request") for message in messages}
    assert kinds == {"request_headers", "request_body", "response_headers"}
    assert not any(SECRET.encode() in message.SerializeToString() for message in messages)
