"""The endpoint-picker front: Envoy's ext_proc over gRPC, for any gateway that conforms to the Gateway API Inference
Extension. The same picker decides; this module only speaks the protocol.

The picker decides with the request's headers when no body follows, else with the whole body, buffered or in full-duplex
pieces. The gateway reports the served endpoint, the status and the end of each request. These become the line that Envoy's
access log would have had.
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

from pagefleet_gateway.fronts.ext_proc_messages import (
    body_pieces,
    error_of,
    headers_of,
    immediate_response,
    pick_response,
    response_headers,
    served_of,
    subset_of,
    tokens_of,
)
from pagefleet_gateway.measuring.access_log import LogLine
from pagefleet_gateway.picking.picker import Pick, Request
from pagefleet_gateway.picking.routing import Refusal

Decide = Callable[[Request], Pick | Refusal | asyncio.Future[Pick | Refusal]]
Complete = Callable[[LogLine], object]
_ids = itertools.count(1)
MIB = 1024 * 1024


@dataclass
class Exchange:
    """One HTTP request: the gateway's messages come in order, and `responses` answers each."""

    decide: Decide
    complete: Complete
    max_request_bytes: int
    id: str = field(default_factory=lambda: f"endpoint-picker-{next(_ids)}")
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
    headers_only: bool = True  # the gateway does not send us the answer's body
    ended: bool = False
    tokens: int | None = None  # output tokens, where the engine reports them
    error: str = ""  # the code of the error that ended the answer, where the engine reports it
    _pending: asyncio.Future[Pick | Refusal] | None = None

    async def responses(self, message: proto.ProcessingRequest) -> list[proto.ProcessingResponse]:
        """Return the answers to one message; a refusal ends the request."""
        match message.WhichOneof("request"):
            case "request_headers":
                return await self._request_headers(message)
            case "request_body":
                return await self._request_body(message.request_body)
            case "request_trailers":
                early = await self._decide_in_full_duplex() if self.pick is None else []
                return [*early, proto.ProcessingResponse(request_trailers=proto.TrailersResponse())]
            case "response_headers":
                self._read_response_headers(message)
                common = response_headers(self.pick, self.served) if self.pick is not None else proto.CommonResponse()
                return [proto.ProcessingResponse(response_headers=proto.HeadersResponse(response=common))]
            case "response_body":
                body = message.response_body
                self.ended |= body.end_of_stream
                pieces = body_pieces(body.body, body.end_of_stream) if self.duplex[1] else [proto.CommonResponse()]
                return [proto.ProcessingResponse(response_body=proto.BodyResponse(response=piece)) for piece in pieces]
            case "response_trailers":
                self.ended = True
                self.tokens = tokens_of(message.response_trailers.trailers) or self.tokens
                self.error = error_of(message.response_trailers.trailers) or self.error
                return [proto.ProcessingResponse(response_trailers=proto.TrailersResponse())]
        return []

    def close(self) -> None:
        """Report the request when its stream is over. Before the answer's end this means that the client went away."""
        pending = self._pending
        if self.pick is None and pending is not None and pending.done() and not pending.cancelled():
            # The decision came in the moment in which the client went away.
            decision = pending.result()
            self.pick = decision if isinstance(decision, Pick) else None
        if self.pick is None:
            return
        choices = [pod.address for pod in self.pick.choices]
        self.complete(
            LogLine(
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
        # Without a protocol_config bodies come buffered. A gateway that streams bodies sends the headers on at once.
        unbuffered = (ProcessingMode.NONE, ProcessingMode.STREAMED)
        headers_decide = message.HasField("protocol_config") and config.request_body_mode in unbuffered
        self.headers_only = config.response_body_mode == ProcessingMode.NONE
        if message.request_headers.end_of_stream or headers_decide:
            return await self._decide(_in_headers)
        return [] if self.duplex[0] else [proto.ProcessingResponse(request_headers=proto.HeadersResponse())]

    async def _request_body(self, part: proto.HttpBody) -> list[proto.ProcessingResponse]:
        self.body += part.body
        if len(self.body) > self.max_request_bytes:
            limit = f"{self.max_request_bytes / MIB:g} MiB"
            message = f"the request's body is larger than {limit}, the limit of this gateway"
            return [immediate_response(Refusal(413, "invalid_request_error", "request_too_large", message))]
        if self.duplex[0]:
            return await self._decide_in_full_duplex() if part.end_of_stream else []
        if part.end_of_stream:
            return await self._decide(_in_body)
        return [proto.ProcessingResponse(request_body=proto.BodyResponse())]

    async def _decide_in_full_duplex(self) -> list[proto.ProcessingResponse]:
        """Answer headers and body together, when the whole body has come."""
        answers = await self._decide(_in_headers)
        if self.pick is not None and self.duplex[0]:
            answers += [
                proto.ProcessingResponse(request_body=proto.BodyResponse(response=piece))
                for piece in body_pieces(bytes(self.body), ends=True)
            ]
        return answers

    async def _decide(
        self, in_message: Callable[[proto.CommonResponse, struct_pb2.Struct], proto.ProcessingResponse]
    ) -> list[proto.ProcessingResponse]:
        path, method = self.headers.get(":path", ""), self.headers.get(":method", "")
        decision = self.decide(Request(self.id, method, path, self.headers, bytes(self.body), self.subset))
        if isinstance(decision, asyncio.Future):
            self._pending = decision
            decision = await decision
        match decision:
            case Pick():
                self.pick = decision
                return [in_message(*pick_response(decision))]
            case Refusal():
                return [immediate_response(decision)]

    def _read_response_headers(self, message: proto.ProcessingRequest) -> None:
        headers = headers_of(message.response_headers)
        status = headers.get(":status", "")
        self.code = int(status) if status.isdigit() else 0
        self.streams = headers.get("content-type", "").startswith("text/event-stream")
        self.first_byte = time.monotonic() - self.began
        self.served = served_of(message)
        self.tokens = tokens_of(message.response_headers.headers)
        self.error = error_of(message.response_headers.headers)
        self.ended = self.headers_only or message.response_headers.end_of_stream


def _in_headers(common: proto.CommonResponse, metadata: struct_pb2.Struct) -> proto.ProcessingResponse:
    return proto.ProcessingResponse(request_headers=proto.HeadersResponse(response=common), dynamic_metadata=metadata)


def _in_body(common: proto.CommonResponse, metadata: struct_pb2.Struct) -> proto.ProcessingResponse:
    return proto.ProcessingResponse(request_body=proto.BodyResponse(response=common), dynamic_metadata=metadata)


class EndpointPicker(service.ExternalProcessorServicer):  # type: ignore[misc]  # generated, without types
    """One stream per HTTP request."""

    def __init__(self, decide: Decide, complete: Complete, max_request_bytes: int) -> None:
        self._decide, self._complete, self._max_request_bytes = decide, complete, max_request_bytes

    async def Process(  # noqa: N802 - gRPC's name
        self, messages: AsyncIterator[proto.ProcessingRequest], _: object
    ) -> AsyncIterator[proto.ProcessingResponse]:
        exchange = Exchange(self._decide, self._complete, self._max_request_bytes)
        try:
            async for message in messages:
                for answer in await exchange.responses(message):
                    yield answer
                    if answer.HasField("immediate_response"):
                        return
        finally:
            exchange.close()


async def serve(picker: EndpointPicker, address: str) -> tuple[grpc.aio.Server, int]:
    """Listen on `address` (host:port). Return the server and its port; `await server.stop(seconds)` ends it."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    service.add_ExternalProcessorServicer_to_server(picker, server)
    port = server.add_insecure_port(address)
    await server.start()
    return server, port
