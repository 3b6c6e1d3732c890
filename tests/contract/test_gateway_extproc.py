"""Conformance with the endpoint-picker protocol, over plain gRPC: what a gateway sends, and what it must get back.

Protects the header and its equal metadata, ordered fallbacks, the subset hint, 503 and the OpenAI-shaped refusals, the
body modes, and that both fronts share one picker.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as proto
from support.gateway.ext_proc import BODY, World, endpoints, pod, serving

from pagefleet_gateway.app import Gateway
from pagefleet_gateway.cluster.service import RateLimit, Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.settings import Settings


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with serving() as server:
        yield server


async def test_header_and_metadata_name_ready_pods_in_order_with_fallbacks(world: World) -> None:
    world.pods(pod(1), pod(2), pod(3), pod(4, ready=False))
    chosen = await world.call().pick()
    assert sorted(chosen) == ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"]
    world.pods(pod(2))
    assert await world.call().pick() == ["10.0.0.2:8000"]  # each endpoint once


async def test_a_subset_hint_is_kept_in_either_form_and_an_empty_one_allows_nothing(world: World) -> None:
    assert await world.call().pick(subset="10.0.0.3:8000") == ["10.0.0.3:8000"]
    two = ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert sorted(await world.call().pick(subset=two)) == two
    assert sorted(await world.call().pick(subset=", ".join(two))) == two
    for nothing in ("", [], "10.9.9.9:8000"):
        assert (await world.call().refusal(subset=nothing)).status.code == 503


@pytest.mark.parametrize("written", ["[fd00::7]:8000", "[FD00:0:0:0:0:0:0:7]:8000"])
async def test_an_ipv6_endpoint_is_the_pods_however_the_gateway_writes_it(world: World, written: str) -> None:
    address = "[fd00::7]:8000"
    world.pods(pod(1), Pod("6", "p6", "team", "chat", "aaaaaaaa", address))
    call = world.call()
    assert await call.pick(subset=[written]) == [address]
    await call.answered(written)
    await call.end()
    assert [line.upstream for line in world.lines] == [address] and world.dropped == []


async def test_no_ready_pod_is_503_and_refusals_are_openai_shaped(world: World) -> None:
    world.pods(pod(1, ready=False))
    call = world.call()
    answer = await call.refusal()
    headers = {item.header.key: item.header.raw_value.decode() for item in answer.headers.set_headers}
    assert answer.status.code == 503 and json.loads(answer.body)["error"]["code"] == "no_ready_pod"
    assert headers["content-type"] == "application/json" and int(headers["retry-after"]) > 0
    assert await call.stream.read() is grpc.aio.EOF and not any(world.ended)
    assert (await world.call().refusal(b"x" * 65537)).status.code == 413
    call = world.call()
    await call.request(path="/elsewhere", end=True)
    assert (await call.read()).immediate_response.status.code == 404


@pytest.mark.parametrize("options", [{"method": "GET", "path": "/v1/models", "end": True}, {"mode": "STREAMED"}])
async def test_without_a_body_to_wait_for_the_headers_answer_has_the_pick(
    world: World, options: dict[str, object]
) -> None:
    call = world.call()
    await call.request(**{"path": "/team/chat/v1/completions", **options})  # type: ignore[arg-type]
    answer = await call.read()
    assert len(endpoints(answer, answer.request_headers.response)) == 3


async def test_buffered_pieces_are_put_together(world: World) -> None:
    call = world.call()
    await call.request()
    await call.read()
    await call.body(BODY[:10], end=False)
    assert (await call.read()).HasField("request_body")
    await call.body(BODY[10:])
    answer = await call.read()
    assert len(endpoints(answer, answer.request_body.response)) == 3


async def test_full_duplex_bodies_come_back_as_they_were(world: World) -> None:
    call, big = world.call(), json.dumps({"model": "smol", "prompt": "y" * 64000}).encode()
    await call.request(mode="FULL_DUPLEX_STREAMED", answer="FULL_DUPLEX_STREAMED")
    await call.body(big[:50000], end=False)
    await call.body(big[50000:])
    answer = await call.read()
    chosen = endpoints(answer, answer.request_headers.response)
    back = b""
    while True:
        piece = (await call.read()).request_body.response.body_mutation.streamed_response
        back += piece.body
        if piece.end_of_stream:
            break
    assert back == big
    await call.answered(chosen[0])
    for text, end in ((b"data: 1\n\n", False), (b"data: 2\n\n", True)):
        await call.send(response_body=proto.HttpBody(body=text, end_of_stream=end))
        piece = (await call.read()).response_body.response.body_mutation.streamed_response
        assert (piece.body, piece.end_of_stream) == (text, end)
        assert len(world.ledger) == 1
    await call.end()
    assert len(world.ledger) == 0 and [ended.code for ended in world.ended if ended] == [200]


async def test_a_fallback_is_picked_and_named(world: World) -> None:
    world.pods(Pod("9", "s", "team", "small", "b", "10.0.0.9:8000"))
    world.state.put_service(Service("team", "chat", "smol", (("aaaaaaaa", 100),), fallback="small"))
    world.state.put_service(Service("team", "small", "s", (("b", 100),)))
    call = world.call()
    assert await call.pick() == ["10.0.0.9:8000"]
    headers = await call.answered("10.0.0.9:8000")
    assert headers == {"x-pagefleet-revision": "b", "x-pagefleet-fallback": "team/small"}


async def test_a_shed_request_is_429_with_retry_after(world: World) -> None:
    limit = RateLimit("authorization", 1, 0)
    world.state.put_service(Service("team", "chat", "smol", (("aaaaaaaa", 100),), limits=(limit,)))
    assert await world.call().pick()
    answer = await world.call().refusal()
    headers = {item.header.key: item.header.raw_value.decode() for item in answer.headers.set_headers}
    assert (answer.status.code, headers["retry-after"]) == (429, "60")
    assert json.loads(answer.body)["error"]["code"] == "rate_limit_exceeded"


async def waiting(gateway: Gateway, count: int) -> None:
    async with asyncio.timeout(10):
        while True:
            if gateway.holding.held(("team", "chat")) == count:
                return
            await asyncio.sleep(0.01)


async def test_both_fronts_of_a_gateway_share_one_picker() -> None:
    state = State()
    state.put_service(Service("team", "chat", "smol", (("aaaaaaaa", 100),), hold_seconds=30.0))
    settings = Settings(port=0, internal_port=0, address="127.0.0.1", picker_port=0, picker_tls=False, settle_seconds=0)
    gateway = Gateway(settings, state, lambda _: None)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(gateway.close)
        await gateway.start()
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{gateway.picker_port}"))
        call = World(channel, state, gateway.ledger).call()
        asked = asyncio.create_task(call.pick())
        held = World(channel, state, gateway.ledger).call()
        gone = asyncio.create_task(held.pick())
        await waiting(gateway, 2)
        held.stream.cancel()
        await waiting(gateway, 1)
        gone.cancel()
        state.replace_pods([pod(1)])
        assert await asked == ["10.0.0.1:8000"]
        assert call.granted == 31.0  # the 30 s that it may be held, and one more
        assert len(gateway.ledger) == 1
        await call.answered("10.0.0.1:8000")
        await call.end()
        assert len(gateway.ledger) == 0
        assert b'pagefleet_gateway_requests_total{code="200"' in gateway.metrics.text()
