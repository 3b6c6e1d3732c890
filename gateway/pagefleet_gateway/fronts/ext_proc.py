"""The endpoint-picker front: Envoy's ext_proc over gRPC, for any gateway that conforms to the Gateway API Inference
Extension. The same picker decides; this only speaks the protocol.

The pick is made when the request is known as far as it will be: with the headers when no body follows, else with the
whole body, buffered or in full-duplex pieces. What the gateway reports back (served endpoint, status, end) becomes the
line that Envoy's access log would have held.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import grpc
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as proto
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service
from google.protobuf import struct_pb2

from pagefleet_gateway.envoy.answer_tokens import ERROR
from pagefleet_gateway.fronts.ext_proc_messages import (
    answered,
    headers_of,
    picked,
    refused,
    served_of,
    streamed,
    subset_of,
    tokens_of,
)
from pagefleet_gateway.measuring.access_log import Line
from pagefleet_gateway.picking.picker import Pick, Request
from pagefleet_gateway.picking.routing import Refusal

Decide = Callable[[Request], Pick | Refusal | asyncio.Future[Pick | Refusal]]
Settle = Callable[[Line], object]
_names = itertools.count(1)


@dataclass
class Exchange:
    """One HTTP request: its messages come in order; `answers` gives ours."""

    decide: Decide
    settle: Settle
    limit: int  # bytes of a body
    id: str = field(default_factory=lambda: f"endpoint-picker-{next(_names)}")
    began: float = field(default_factory=time.monotonic)
    started: float = field(default_factory=time.time)
    headers: dict[str, str] = field(default_factory=dict)
    subset: frozenset[str] | None = None
    duplex: tuple[bool, bool] = (False, False)  # whether request and response bodies come full-duplex
    body: bytearray = field(default_factory=bytearray)
    pick: Pick | None = None
    served: str = ""
    code: int = 0
    streams: bool = False
    first_byte: float | None = None
    silent: bool = True  # whether the gateway will not show us the answer's body
    ended: bool = False
    tokens: int | None = None  # output tokens, where the engine says them
    error: str = ""  # the code of the error that ended the answer, where the engine says it
    _asked: asyncio.Future[Pick | Refusal] | None = None

    async def answers(self, message: proto.ProcessingRequest) -> list[proto.ProcessingResponse]:
        """What to send back for one message; a refusal ends the request."""
        match message.WhichOneof("request"):
            case "request_headers":
                return await self._request_headers(message)
            case "request_body":
                return await self._request_body(message.request_body)
            case "request_trailers":
                early = await self._undecided() if self.pick is None else []
                return [*early, proto.ProcessingResponse(request_trailers=proto.TrailersResponse())]
            case "response_headers":
                self._response_headers(message)
                common = answered(self.pick, self.served) if self.pick is not None else proto.CommonResponse()
                return [proto.ProcessingResponse(response_headers=proto.HeadersResponse(response=common))]
            case "response_body":
                part = message.response_body
                self.ended |= part.end_of_stream
                back = streamed(part.body, part.end_of_stream) if self.duplex[1] else [proto.CommonResponse()]
                return [proto.ProcessingResponse(response_body=proto.BodyResponse(response=one)) for one in back]
            case "response_trailers":
                self.ended = True
                self.tokens = tokens_of(message.response_trailers.trailers) or self.tokens
                return [proto.ProcessingResponse(response_trailers=proto.TrailersResponse())]
        return []

    def close(self) -> None:
        """The stream is over: report the request. Before the answer's end: the client went away, as far as we know."""
        asked = self._asked
        if self.pick is None and asked is not None and asked.done() and not asked.cancelled():
            # Let go and given up in the same moment.
            answer = asked.result()
            self.pick = answer if isinstance(answer, Pick) else None
        if self.pick is None:
            return
        choices = [pod.address for pod in self.pick.choices]
        self.settle(
            Line(
                id=self.id,
                started=self.started,
                code=self.code,
                flags=frozenset() if self.ended else frozenset({"DC"}),
                ttft=self.first_byte,
                duration=time.monotonic() - self.began,
                attempts=choices.index(self.served) + 1 if self.served in choices else 1,
                upstream=self.served or (choices[0] if self.code else ""),
                streamed=self.streams,
                tokens=self.tokens,
                error=self.error,
                fields={"id": self.id, "path": self.headers.get(":path", ""), "code": self.code},
            )
        )

    async def _request_headers(self, message: proto.ProcessingRequest) -> list[proto.ProcessingResponse]:
        self.headers, self.subset = headers_of(message.request_headers), subset_of(message)
        config = message.protocol_config
        full = ProcessingMode.FULL_DUPLEX_STREAMED
        self.duplex = (config.request_body_mode == full, config.response_body_mode == full)
        # A gateway that does not say how it sends bodies sends them buffered; one that streams sends headers on at once.
        early = (ProcessingMode.NONE, ProcessingMode.STREAMED)
        bare = message.HasField("protocol_config") and config.request_body_mode in early
        self.silent = config.response_body_mode == ProcessingMode.NONE
        if message.request_headers.end_of_stream or bare:
            return await self._decided(_in_headers)
        return [] if self.duplex[0] else [proto.ProcessingResponse(request_headers=proto.HeadersResponse())]

    async def _request_body(self, part: proto.HttpBody) -> list[proto.ProcessingResponse]:
        self.body += part.body
        if len(self.body) > self.limit:
            message = f"the request's body is larger than {self.limit} bytes"
            return [refused(Refusal(413, "invalid_request_error", "request_too_large", message))]
        if self.duplex[0]:
            return await self._undecided() if part.end_of_stream else []
        if part.end_of_stream:
            return await self._decided(_in_body)
        return [proto.ProcessingResponse(request_body=proto.BodyResponse())]

    async def _undecided(self) -> list[proto.ProcessingResponse]:
        """Full duplex: the headers' answer was kept back until the body has come; then both go."""
        answers = await self._decided(_in_headers)
        if self.pick is not None and self.duplex[0]:
            answers += [
                proto.ProcessingResponse(request_body=proto.BodyResponse(response=one))
                for one in streamed(bytes(self.body), ends=True)
            ]
        return answers

    async def _decided(
        self, placed: Callable[[proto.CommonResponse, struct_pb2.Struct], proto.ProcessingResponse]
    ) -> list[proto.ProcessingResponse]:
        path, method = self.headers.get(":path", ""), self.headers.get(":method", "")
        asked = self.decide(Request(self.id, method, path, self.headers, bytes(self.body), self.subset))
        if isinstance(asked, asyncio.Future):
            self._asked = asked
        decision = await asked if isinstance(asked, asyncio.Future) else asked
        match decision:
            case Pick():
                self.pick = decision
                return [placed(*picked(decision))]
            case Refusal():
                return [refused(decision)]

    def _response_headers(self, message: proto.ProcessingRequest) -> None:
        headers = headers_of(message.response_headers)
        status = headers.get(":status", "")
        self.code = int(status) if status.isdigit() else 0
        self.streams = headers.get("content-type", "").startswith("text/event-stream")
        self.first_byte = time.monotonic() - self.began
        self.served = served_of(message)
        self.tokens = tokens_of(message.response_headers.headers)
        self.error = headers.get(ERROR, "")
        self.ended = self.silent or message.response_headers.end_of_stream


def _in_headers(common: proto.CommonResponse, metadata: struct_pb2.Struct) -> proto.ProcessingResponse:
    return proto.ProcessingResponse(request_headers=proto.HeadersResponse(response=common), dynamic_metadata=metadata)


def _in_body(common: proto.CommonResponse, metadata: struct_pb2.Struct) -> proto.ProcessingResponse:
    return proto.ProcessingResponse(request_body=proto.BodyResponse(response=common), dynamic_metadata=metadata)


class EndpointPicker(service.ExternalProcessorServicer):  # type: ignore[misc]  # generated, without types
    """One stream per HTTP request."""

    def __init__(self, decide: Decide, settle: Settle, limit: int) -> None:
        self._decide, self._settle, self._limit = decide, settle, limit

    async def Process(  # noqa: N802 - gRPC's name
        self, messages: AsyncIterator[proto.ProcessingRequest], _: object
    ) -> AsyncIterator[proto.ProcessingResponse]:
        exchange = Exchange(self._decide, self._settle, self._limit)
        try:
            async for message in messages:
                for answer in await exchange.answers(message):
                    yield answer
                    if answer.HasField("immediate_response"):
                        return
        finally:
            exchange.close()


async def serve(picker: EndpointPicker, address: str) -> tuple[grpc.aio.Server, int]:
    """Listen on `address` (host:port). Returns the server and its port; `await server.stop(seconds)` ends it."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    service.add_ExternalProcessorServicer_to_server(picker, server)
    port = server.add_insecure_port(address)
    await server.start()
    return server, port
