"""The endpoint-picker front: Envoy's ext_proc over gRPC, for any gateway that conforms to the Gateway API Inference
Extension. The same picker decides; this module only speaks the protocol.

The picker decides with the request's headers when no body follows, else with the whole body, buffered or in full-duplex
pieces. The gateway reports the served endpoint, the status and the end of each request. These become the line that Envoy's
access log would have had. An answer counts only where it came from one of the picked endpoints.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as proto
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service
from google.protobuf import struct_pb2

from pagefleet_contract.headers import OUTPUT_TOKENS_HEADER, PROMPT_TOKENS_HEADER
from pagefleet_gateway.bodies.edits import edited, renamed
from pagefleet_gateway.fronts.answer_size import AnswerSize
from pagefleet_gateway.fronts.ext_proc_limits import Buffers, Limits, buffers_full, too_large, too_many_exchanges
from pagefleet_gateway.fronts.ext_proc_messages import (
    MODEL_REWRITE,
    body_pieces,
    error_of,
    headers_of,
    immediate_response,
    more_time,
    pick_response,
    prefilled_of,
    response_headers,
    served_of,
    subset_of,
    tokens_of,
    with_body,
)
from pagefleet_gateway.fronts.first_token import ErrorEvent, FirstToken
from pagefleet_gateway.holding.holding import Later
from pagefleet_gateway.measuring.access_log import LogLine
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.routing import Refusal

_ids = itertools.count(1)
ERROR_EVENT = "error_event"  # the error of a stream that had an error as an event


@dataclass(frozen=True)
class Callbacks:
    """What the front asks and reports. `drop` ends a request whose answer came from no picked endpoint. `first_token` gets
    a request's id, its seconds to the first token and the endpoint that served it, when the token passes."""

    decide: Callable[[Request], Pick | Refusal | asyncio.Future[Pick | Refusal]]
    complete: Callable[[LogLine], object]
    drop: Callable[[LogLine], object]
    first_token: Callable[[str, float, str], object] = lambda _, __, ___: None


@dataclass
class Exchange:
    """One HTTP request: the gateway's messages come in order, and `responses` answers each."""

    callbacks: Callbacks
    limits: Limits
    buffers: Buffers
    id: str = field(default_factory=lambda: f"endpoint-picker-{next(_ids)}")
    began: float = field(default_factory=time.monotonic)  # when the request's last byte came, as far as it is shown
    started: float = field(default_factory=time.time)
    headers: dict[str, str] = field(default_factory=dict)
    subset: frozenset[str] | None = None
    duplex: tuple[bool, bool] = (False, False)  # whether request and response bodies come full-duplex
    body: bytearray = field(default_factory=bytearray)
    pick: Pick | None = None
    refusal: Refusal | None = None
    served: str = ""
    code: int = 0
    streams: bool = False
    first_token: float | None = None  # seconds; None: not known, or not yet
    tokens_sought: FirstToken = field(default_factory=FirstToken)
    errors_sought: ErrorEvent = field(default_factory=ErrorEvent)
    headers_only: bool = True  # the gateway does not send us the answer's body
    ended: bool = False
    tokens: int | None = None  # output tokens, where the engine reports them in a header or a trailer
    prompt_tokens: int | None = None  # likewise
    size: AnswerSize = field(default_factory=AnswerSize)
    error: str = ""  # the code of the error that ended the answer, where the engine reports it
    prefilled: str = ""  # what became of the answer's prefill leg
    _pending: asyncio.Future[Pick | Refusal] | None = None

    async def responses(self, message: proto.ProcessingRequest) -> AsyncIterator[proto.ProcessingResponse]:
        """Return the answers to one message as they come; a refusal ends the request."""
        match message.WhichOneof("request"):
            case "request_headers":
                async for answer in self._request_headers(message):
                    yield answer
            case "request_body":
                async for answer in self._request_body(message.request_body):
                    yield answer
            case "request_trailers":
                if self.pick is None:
                    async for answer in self._decide_in_full_duplex():
                        yield answer
                yield proto.ProcessingResponse(request_trailers=proto.TrailersResponse())
            case "response_headers":
                self._read_response_headers(message)
                common = response_headers(self.pick, self.served) if self.pick is not None else proto.CommonResponse()
                yield proto.ProcessingResponse(response_headers=proto.HeadersResponse(response=common))
            case "response_body":
                self._read_response_body(message.response_body)
                body = message.response_body
                pieces = body_pieces(body.body, body.end_of_stream) if self.duplex[1] else [proto.CommonResponse()]
                for piece in pieces:
                    yield proto.ProcessingResponse(response_body=proto.BodyResponse(response=piece))
            case "response_trailers":
                self.ended = True
                self.tokens = tokens_of(message.response_trailers.trailers, OUTPUT_TOKENS_HEADER) or self.tokens
                self.error = error_of(message.response_trailers.trailers) or self.error
                yield proto.ProcessingResponse(response_trailers=proto.TrailersResponse())

    def _read_response_body(self, body: proto.HttpBody) -> None:
        if self.headers_only:  # a gateway that did not name its modes sends bodies all the same
            self.headers_only = self.ended = False
        self.ended |= body.end_of_stream
        self.size.feed(body.body)
        if self.streams and not self.error and self.errors_sought.feed(body.body):
            self.error = ERROR_EVENT
        if self.streams and self.first_token is None and self.tokens_sought.feed(body.body):
            self.first_token = time.monotonic() - self.began
            if self.pick is not None and self.served in [pod.address for pod in self.pick.choices]:
                self.callbacks.first_token(self.id, self.first_token, self.served)

    def close(self) -> None:
        """Report the request when its stream is over. Before the answer's end this means that the client went away."""
        self._release_body()
        pending = self._pending
        if self.pick is None and pending is not None and pending.done() and not pending.cancelled():
            # The decision came in the moment in which the client went away.
            self._record(pending.result())
        if self.refusal is not None:
            self.code, self.ended = self.refusal.status, True
            self.callbacks.complete(self._line(upstream="", attempts=0))
        elif self.pick is not None:
            choices = [pod.address for pod in self.pick.choices]
            if self.served in choices:
                self.callbacks.complete(self._line(self.served, choices.index(self.served) + 1))
            elif not self.served and (self.code == 0 or self.code >= 500):
                # No endpoint answered: the client went away before, or the gateway itself reports that it reached none.
                self.callbacks.complete(self._line(choices[0] if self.code else "", 1))
            else:
                self.callbacks.drop(self._line(self.served, 1))

    def _line(self, upstream: str, attempts: int) -> LogLine:
        return LogLine(
            id=self.id,
            started=self.started,
            code=self.code,
            flags=frozenset() if self.ended else frozenset({"DC"}),
            ttft=self.first_token,
            duration=time.monotonic() - self.began,
            attempts=attempts,
            upstream=upstream,
            streamed=self.streams,
            tokens=self.size.output_tokens if self.tokens is None else self.tokens,
            prompt_tokens=self.size.prompt_tokens if self.prompt_tokens is None else self.prompt_tokens,
            body_bytes=None if self.headers_only else self.size.total,
            error=self.error,
            whole=not (self.headers_only and self.streams),
            fields={
                "id": self.id,
                "path": self.headers.get(":path", ""),
                "code": self.code,
                "attempts": attempts,
                "upstream": upstream,
                "prefilled": self.prefilled,
            },
        )

    def _record(self, decision: Pick | Refusal) -> None:
        match decision:
            case Pick():
                self.pick = decision
            case Refusal():
                self.refusal = decision

    def _refuse(self, refusal: Refusal) -> proto.ProcessingResponse:
        self.refusal = refusal
        return immediate_response(refusal)

    def _release_body(self) -> None:
        self.buffers.release(len(self.body))
        self.body = bytearray()

    async def _request_headers(self, message: proto.ProcessingRequest) -> AsyncIterator[proto.ProcessingResponse]:
        self.headers, self.subset = headers_of(message.request_headers), subset_of(message)
        config = message.protocol_config
        full = ProcessingMode.FULL_DUPLEX_STREAMED
        self.duplex = (config.request_body_mode == full, config.response_body_mode == full)
        # Without a protocol_config bodies come buffered. A gateway that streams bodies sends the headers on at once.
        unbuffered = (ProcessingMode.NONE, ProcessingMode.STREAMED)
        headers_decide = message.HasField("protocol_config") and config.request_body_mode in unbuffered
        self.headers_only = config.response_body_mode == ProcessingMode.NONE
        if message.request_headers.end_of_stream or headers_decide:
            async for answer in self._decide(_in_headers, b""):
                yield answer
        elif not self.duplex[0]:
            yield proto.ProcessingResponse(request_headers=proto.HeadersResponse())

    async def _request_body(self, part: proto.HttpBody) -> AsyncIterator[proto.ProcessingResponse]:
        if self.pick is not None:  # the headers decided, and the body passes by
            if part.end_of_stream:
                self.began = time.monotonic()
            yield proto.ProcessingResponse(request_body=proto.BodyResponse())
            return
        if len(self.body) + len(part.body) > self.limits.request_bytes:
            yield self._refuse(too_large(self.limits.request_bytes))
            return
        if not self.buffers.take(len(part.body)):
            yield self._refuse(buffers_full(self.limits.buffered_bytes))
            return
        self.body += part.body
        if part.end_of_stream:
            duplex = self.duplex[0]
            async for answer in self._decide_in_full_duplex() if duplex else self._decide(_in_body, self._asked()):
                yield answer
        elif not self.duplex[0]:
            yield proto.ProcessingResponse(request_body=proto.BodyResponse())

    async def _decide_in_full_duplex(self) -> AsyncIterator[proto.ProcessingResponse]:
        """Answer headers and body together, when the whole body has come."""
        body = self._asked()
        async for answer in self._decide(_in_headers, body):
            yield answer
        if self.pick is not None and self.duplex[0]:
            for piece in body_pieces(edited(body, self.pick.edits), ends=True):
                yield proto.ProcessingResponse(request_body=proto.BodyResponse(response=piece))

    def _asked(self) -> bytes:
        """Return the whole body that has come, with the model's name that the gateway's header gives."""
        body, model = bytes(self.body), self.headers.get(MODEL_REWRITE, "")
        return renamed(body, model) if model else body

    async def _decide(
        self,
        in_message: Callable[[proto.CommonResponse, struct_pb2.Struct], proto.ProcessingResponse],
        body: bytes,
    ) -> AsyncIterator[proto.ProcessingResponse]:
        self.began = time.monotonic()
        path, method, came = self.headers.get(":path", ""), self.headers.get(":method", ""), bytes(self.body)
        decision = self.callbacks.decide(Request(self.id, method, path, self.headers, body, self.subset))
        if isinstance(decision, asyncio.Future):
            self._pending = decision
            if isinstance(decision, Later) and not self.duplex[0]:  # a full-duplex exchange has no time limit
                yield more_time(decision.seconds)
            decision = await decision
        self._release_body()
        self._record(decision)
        match decision:
            case Pick():
                common, metadata = pick_response(decision)
                if in_message is _in_body and (decision.edits or body != came):
                    common = with_body(common, edited(body, decision.edits))
                yield in_message(common, metadata)
            case Refusal():
                yield immediate_response(decision)

    def _read_response_headers(self, message: proto.ProcessingRequest) -> None:
        headers = headers_of(message.response_headers)
        status = headers.get(":status", "")
        self.code = int(status) if status.isdigit() else 0
        self.streams = headers.get("content-type", "").startswith("text/event-stream")
        self.served = served_of(message)
        self.tokens = tokens_of(message.response_headers.headers, OUTPUT_TOKENS_HEADER)
        self.prompt_tokens = tokens_of(message.response_headers.headers, PROMPT_TOKENS_HEADER)
        self.error = error_of(message.response_headers.headers)
        self.prefilled = prefilled_of(message.response_headers.headers)
        self.ended = self.headers_only or message.response_headers.end_of_stream


def _in_headers(common: proto.CommonResponse, metadata: struct_pb2.Struct) -> proto.ProcessingResponse:
    return proto.ProcessingResponse(request_headers=proto.HeadersResponse(response=common), dynamic_metadata=metadata)


def _in_body(common: proto.CommonResponse, metadata: struct_pb2.Struct) -> proto.ProcessingResponse:
    return proto.ProcessingResponse(request_body=proto.BodyResponse(response=common), dynamic_metadata=metadata)


class EndpointPicker(service.ExternalProcessorServicer):  # type: ignore[misc]  # generated, without types
    """One stream per HTTP request."""

    def __init__(self, callbacks: Callbacks, limits: Limits) -> None:
        self._callbacks, self.limits = callbacks, limits
        self.buffers = Buffers(limits.buffered_bytes)
        self.exchanges = 0  # open now

    async def Process(  # noqa: N802 - gRPC's name
        self, messages: AsyncIterator[proto.ProcessingRequest], _: object
    ) -> AsyncIterator[proto.ProcessingResponse]:
        exchange = Exchange(self._callbacks, self.limits, self.buffers)
        if self.exchanges >= self.limits.exchanges:
            exchange.refusal = too_many_exchanges(self.limits.exchanges)
            try:
                yield immediate_response(exchange.refusal)
            finally:
                exchange.close()
            return
        self.exchanges += 1
        try:
            async for message in messages:
                async for answer in exchange.responses(message):
                    yield answer
                    if answer.HasField("immediate_response"):
                        return
        finally:
            self.exchanges -= 1
            exchange.close()
