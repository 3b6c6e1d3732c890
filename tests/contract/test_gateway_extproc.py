"""Conformance with the endpoint-picker protocol, over plain gRPC: what a gateway sends, and what it must get back.

Protects the header and its equal metadata, ordered fallbacks, the subset hint, 503 and the OpenAI-shaped refusals, the
body modes, and that served endpoints and ends come back to the ledger.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import grpc
import pytest
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as proto
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service

from pagefleet_gateway.app import Gateway
from pagefleet_gateway.cluster.state import Pod, RateLimit, Service, State
from pagefleet_gateway.fronts.ext_proc import EndpointPicker, serve
from pagefleet_gateway.measuring import access_log
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.picker import Picker, Request
from pagefleet_gateway.settings import Settings

HEADER = "x-gateway-destination-endpoint"
BODY = json.dumps({"model": "smol", "prompt": "x" * 1000}).encode()


def pod(number: int, ready: bool = True) -> Pod:
    return Pod(str(number), f"p{number}", "team", "chat", "aaaaaaaa", f"10.0.0.{number}:8000", ready)


class World:
    def __init__(self, channel: grpc.aio.Channel, state: State, ledger: Ledger) -> None:
        self.state, self.ledger = state, ledger
        self.stub = service.ExternalProcessorStub(channel)
        self.ended: list[access_log.Completion | None] = []
        self.settled = asyncio.Event()

    def pods(self, *pods: Pod) -> None:
        self.state.replace_pods(pods)
        self.state.confirm(pods)

    def call(self) -> Call:
        return Call(self.stub.Process())


class Call:
    """One HTTP request as a gateway reports it."""

    def __init__(self, stream: grpc.aio.StreamStreamCall) -> None:
        self.stream = stream

    async def send(self, **fields: object) -> None:
        await self.stream.write(proto.ProcessingRequest(**fields))  # type: ignore[arg-type]

    async def read(self) -> proto.ProcessingResponse:
        answer = await asyncio.wait_for(self.stream.read(), 10)
        assert answer is not grpc.aio.EOF
        return answer

    async def request(
        self,
        *,
        path: str = "/v1/completions",
        method: str = "POST",
        end: bool = False,
        mode: str = "BUFFERED",
        answer: str = "NONE",
        subset: object = None,
    ) -> None:
        headers = {":path": path, ":method": method, HEADER: "6.6.6.6:80"}
        message: dict[str, object] = {"request_headers": http_headers(headers, end)}
        modes = (ProcessingMode.BodySendMode.Value(mode), ProcessingMode.BodySendMode.Value(answer))
        message["protocol_config"] = proto.ProtocolConfiguration(
            request_body_mode=modes[0], response_body_mode=modes[1]
        )
        if subset is not None:
            message["metadata_context"] = metadata(
                "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", subset
            )
        await self.send(**message)

    async def body(self, data: bytes = BODY, end: bool = True) -> None:
        await self.send(request_body=proto.HttpBody(body=data, end_of_stream=end))

    async def answered(self, served: str, status: str = "200", **headers: str) -> dict[str, str]:
        """The headers that the client gets besides the engine's."""
        context = metadata("envoy.lb", "x-gateway-destination-endpoint-served", served)
        own = {":status": status} | {name.replace("_", "-"): value for name, value in headers.items()}
        await self.send(response_headers=http_headers(own, False), metadata_context=context)
        answer = await self.read()
        assert answer.HasField("response_headers")
        options = answer.response_headers.response.header_mutation.set_headers
        return {option.header.key: option.header.raw_value.decode() for option in options}

    async def end(self) -> None:
        await self.stream.done_writing()
        assert await self.stream.read() is grpc.aio.EOF

    async def pick(self, **options: object) -> list[str]:
        """A whole buffered request; the endpoints, in order."""
        answer = await self._whole(BODY, **options)
        return endpoints(answer, answer.request_body.response)

    async def refusal(self, body: bytes = BODY, **options: object) -> proto.ImmediateResponse:
        """A whole buffered request that the picker answers itself."""
        return (await self._whole(body, **options)).immediate_response

    async def _whole(self, body: bytes, **options: object) -> proto.ProcessingResponse:
        await self.request(**options)  # type: ignore[arg-type]
        first = await self.read()
        assert first.HasField("request_headers") and not first.HasField("dynamic_metadata")
        await self.body(body)
        return await self.read()


def http_headers(values: dict[str, str], end: bool) -> proto.HttpHeaders:
    headers = [base_pb2.HeaderValue(key=key, raw_value=value.encode()) for key, value in values.items()]
    return proto.HttpHeaders(headers=base_pb2.HeaderMap(headers=headers), end_of_stream=end)


def metadata(namespace: str, key: str, value: object) -> base_pb2.Metadata:
    found = base_pb2.Metadata()
    found.filter_metadata[namespace].update({key: value})
    return found


def endpoints(answer: proto.ProcessingResponse, common: proto.CommonResponse) -> list[str]:
    """The picked endpoints; header and metadata must say the same."""
    (option,) = common.header_mutation.set_headers
    assert option.header.key == HEADER
    assert option.append_action == base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    value = option.header.raw_value.decode()
    assert answer.dynamic_metadata["envoy.lb"][HEADER] == value
    return value.split(",")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    state, ledger = State(), Ledger()
    state.put_service(Service("team", "chat", "smol", (("aaaaaaaa", 100),)))
    picker = Picker(state, ledger, random.Random(1))

    def decide(request: Request) -> object:
        return picker.decide(request, 0.0)

    def complete(line: access_log.LogLine) -> None:
        world.ended.append(access_log.complete(line, ledger, 0.0))
        world.settled.set()

    server, port = await serve(EndpointPicker(decide, complete, 65536), "127.0.0.1:0")  # type: ignore[arg-type]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        world = World(channel, state, ledger)
        world.pods(pod(1), pod(2), pod(3))
        yield world
    await server.stop(None)


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


async def test_no_ready_pod_is_503_and_refusals_are_openai_shaped(world: World) -> None:
    world.pods(pod(1, ready=False))
    call = world.call()
    answer = await call.refusal()
    headers = {item.header.key: item.header.raw_value.decode() for item in answer.headers.set_headers}
    assert answer.status.code == 503 and json.loads(answer.body)["error"]["code"] == "no_ready_pod"
    assert headers["content-type"] == "application/json" and int(headers["retry-after"]) > 0
    assert await call.stream.read() is grpc.aio.EOF and not world.ended
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


async def test_the_served_endpoint_tells_which_pods_failed(world: World) -> None:
    call = world.call()
    chosen = await call.pick()
    assert world.ledger.in_flight(pod(int(chosen[0].split(".")[3][0]))) == 1
    assert await call.answered(chosen[1]) == {"x-pagefleet-revision": "aaaaaaaa"}
    await call.end()
    (ended,) = world.ended
    assert ended is not None and ended.outcome is not None and not ended.outcome.failed
    failed = {number for number in (1, 2, 3) if world.ledger.ejected(pod(number), 1.0)}
    assert [f"10.0.0.{number}:8000" for number in failed] == [chosen[0]]
    assert len(world.ledger) == 0
    assert (await world.call().pick())[2] == chosen[0]  # left alone for a while


async def test_output_tokens_are_taken_from_the_engines_headers_or_trailers(world: World) -> None:
    for number, header in enumerate(({"x_pagefleet_output_tokens": "12"}, {})):
        call = world.call()
        chosen = await call.pick(answer="NONE" if header else "STREAMED")
        await call.answered(chosen[0], **header)
        if not header:
            trailer = base_pb2.HeaderValue(key="x-pagefleet-output-tokens", raw_value=b"34")
            await call.send(response_trailers=proto.HttpTrailers(trailers=base_pb2.HeaderMap(headers=[trailer])))
            assert (await call.read()).HasField("response_trailers")
        await call.end()
        ended = world.ended[number]
        assert ended is not None and ended.outcome is not None
        assert ended.outcome.tokens == (12 if header else 34)


async def test_a_fallback_is_picked_and_named(world: World) -> None:
    world.pods(Pod("9", "s", "team", "small", "b", "10.0.0.9:8000"))
    world.state.put_service(Service("team", "chat", "smol", (("aaaaaaaa", 100),), fallback="small"))
    world.state.put_service(Service("team", "small", "s", (("b", 100),)))
    call = world.call()
    assert await call.pick() == ["10.0.0.9:8000"]
    told = await call.answered("10.0.0.9:8000")
    assert told == {"x-pagefleet-revision": "b", "x-pagefleet-fallback": "team/small"}


async def test_a_client_that_goes_away_leaves_nothing_behind(world: World) -> None:
    call = world.call()
    await call.pick()
    assert len(world.ledger) == 1
    call.stream.cancel()
    await asyncio.wait_for(world.settled.wait(), 10)
    assert len(world.ledger) == 0
    (ended,) = world.ended
    assert ended is not None and ended.cancelled and ended.outcome is None


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
    settings = Settings(port=0, internal_port=0, address="127.0.0.1", picker_port=0, settle_seconds=0)
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
        state.confirm([pod(1)])
        assert await asked == ["10.0.0.1:8000"]
        assert len(gateway.ledger) == 1
        await call.answered("10.0.0.1:8000")
        await call.end()
        assert len(gateway.ledger) == 0
        assert b'pagefleet_gateway_requests_total{code="200"' in gateway.metrics.text()


@pytest.mark.parametrize("place", ["header", "trailer"])
async def test_an_engine_s_death_is_read_from_a_header_or_a_trailer_and_bounds_the_next_try(
    world: World, place: str
) -> None:
    chosen: list[str] = []
    for deaths in range(1, 3):
        call = world.call()
        chosen = await call.pick(answer="STREAMED")
        assert len(chosen) == (3 if deaths == 1 else 1)
        world.pods(*(pod(number) for number in (1, 2, 3) if f"10.0.0.{number}:8000" != chosen[0]))
        headers = {"x_pagefleet_error": "engine_died"} if place == "header" else {}
        await call.answered(chosen[0], "503" if place == "header" else "200", **headers)
        if place == "trailer":
            raw = base_pb2.HeaderValue(key="x-pagefleet-error", raw_value=b"engine_died")
            await call.send(response_trailers=proto.HttpTrailers(trailers=base_pb2.HeaderMap(headers=[raw])))
            assert (await call.read()).HasField("response_trailers")
        world.settled.clear()
        await call.end()
        await asyncio.wait_for(world.settled.wait(), 10)
    refusal = await world.call().refusal()
    assert refusal.status.code == 422 and b"request_ends_engines" in refusal.body
