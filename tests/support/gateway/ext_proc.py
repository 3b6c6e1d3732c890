"""A gateway of somebody else that asks our endpoint picker over gRPC, as the endpoint-picker protocol says."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as proto
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service

from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.fronts.ext_proc import Callbacks, EndpointPicker
from pagefleet_gateway.fronts.ext_proc_limits import Limits
from pagefleet_gateway.fronts.ext_proc_server import Listen, serve
from pagefleet_gateway.measuring import access_log
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Request
from pagefleet_gateway.picking.picker import Picker

HEADER = "x-gateway-destination-endpoint"
BODY = json.dumps({"model": "smol", "prompt": "x" * 1000}).encode()
LIMITS = Limits(65536)


def pod(number: int, ready: bool = True) -> Pod:
    return Pod(str(number), f"p{number}", "team", "chat", "aaaaaaaa", f"10.0.0.{number}:8000", ready)


class World:
    def __init__(self, channel: grpc.aio.Channel, state: State, ledger: Ledger) -> None:
        self.state, self.ledger = state, ledger
        self.front: EndpointPicker
        self.stub = service.ExternalProcessorStub(channel)
        self.lines: list[access_log.LogLine] = []
        self.ended: list[access_log.Completion | None] = []
        self.dropped: list[str] = []  # requests whose answer came from no picked endpoint
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
        self.granted = 0.0  # seconds that the picker has asked for beside the gateway's own time limit

    async def send(self, **fields: object) -> None:
        await self.stream.write(proto.ProcessingRequest(**fields))  # type: ignore[arg-type]

    async def read(self) -> proto.ProcessingResponse:
        answer = await asyncio.wait_for(self.stream.read(), 10)
        assert answer is not grpc.aio.EOF
        if answer.HasField("override_message_timeout"):
            self.granted = answer.override_message_timeout.ToMilliseconds() / 1000
            return await self.read()
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
    made = base_pb2.Metadata()
    made.filter_metadata[namespace].update({key: value})
    return made


def endpoints(answer: proto.ProcessingResponse, common: proto.CommonResponse) -> list[str]:
    """The picked endpoints; header and metadata must say the same."""
    (option,) = common.header_mutation.set_headers
    assert option.header.key == HEADER
    assert option.append_action == base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    value = option.header.raw_value.decode()
    assert answer.dynamic_metadata["envoy.lb"][HEADER] == value
    return value.split(",")


@asynccontextmanager
async def serving(limits: Limits = LIMITS) -> AsyncIterator[World]:
    """A picker with three pods of one service, and a channel to it in plaintext."""
    state, ledger = State(), Ledger()
    state.put_service(Service("team", "chat", "smol", (("aaaaaaaa", 100),)))
    picker = Picker(state, ledger, random.Random(1))

    def decide(request: Request) -> object:
        return picker.decide(request, 0.0)

    def complete(line: access_log.LogLine) -> None:
        world.lines.append(line)
        world.ended.append(access_log.complete(line, ledger, 0.0))
        world.settled.set()

    def drop(line: access_log.LogLine) -> None:
        world.dropped.append(line.id)
        ledger.close(line.id)
        world.settled.set()

    front = EndpointPicker(Callbacks(decide, complete, drop), limits)  # type: ignore[arg-type]
    server, port = await serve(front, Listen("127.0.0.1", 0, tls=False))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        world = World(channel, state, ledger)
        world.front = front
        world.pods(pod(1), pod(2), pod(3))
        yield world
    await server.stop(None)
