"""Reads the trace that a request belongs to (W3C Trace Context), and sends its span by OTLP where that is configured.

Where OTEL_EXPORTER_OTLP_ENDPOINT is not set nothing of OpenTelemetry is imported and no span is made: the trace's id is
only read, for the log. Never waits for a collector: spans leave in batches, in a thread of the SDK's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from pagefleet_contract.headers import REQUEST_ID_HEADER, TRACEPARENT_HEADER
from pagefleet_engine.api.base.logs import log
from pagefleet_engine.api.observability.metrics import PROVIDER

if TYPE_CHECKING:
    from opentelemetry.trace import Span as Made

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
# https://www.w3.org/TR/trace-context/#traceparent-header; versions above 00 may have more fields.
PARENT = re.compile(r"(?:00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}|"
                    r"(?!00|ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?)")  # fmt: skip
Value = str | int | float


class Span(Protocol):
    """One request's part of a trace. `trace_id` is 32 hexadecimal digits, None where the request has none."""

    trace_id: str | None

    def annotate(self, attributes: Mapping[str, Value]) -> None:
        """Set attributes, named as in OpenTelemetry's semantic conventions."""

    def end(self, status: int | str) -> None:
        """End the span with the answer's status, "cancelled" where there was no answer."""


class Traces(Protocol):
    def begin(self, request: web.Request) -> Span: ...

    def close(self) -> None:
        """Send the spans that are left. Takes as long as the collector, at most the exporter's own timeout."""


def trace_id(header: str | None) -> str | None:
    """The trace's id in a `traceparent` header; None without one, or for one that is not valid."""
    match = PARENT.fullmatch(header) if header else None
    if match is None:
        return None
    trace, parent = match[1] or match[3], match[2] or match[4]
    return trace if trace.strip("0") and parent.strip("0") else None


class Unsent:
    """The span of a request when no collector is configured: only its trace's id is known."""

    def __init__(self, header: str | None) -> None:
        self.trace_id = trace_id(header)

    def annotate(self, attributes: Mapping[str, Value]) -> None:
        """Nobody listens."""

    def end(self, status: int | str) -> None:
        """Nobody listens."""


class Off:
    def begin(self, request: web.Request) -> Span:
        return Unsent(request.headers.get(TRACEPARENT_HEADER))

    def close(self) -> None:
        """Do nothing: no span is left."""


class _Sent:
    def __init__(self, made: Made) -> None:
        self._made = made
        self.trace_id: str | None = f"{made.get_span_context().trace_id:032x}"

    def annotate(self, attributes: Mapping[str, Value]) -> None:
        self._made.set_attributes(attributes)

    def end(self, status: int | str) -> None:
        from opentelemetry.trace import StatusCode

        if isinstance(status, int):
            self._made.set_attribute("http.response.status_code", status)
        if status == "cancelled" or (isinstance(status, int) and status >= 500):
            self._made.set_attribute("error.type", str(status))
            self._made.set_status(StatusCode.ERROR)
        self._made.end()


class _Otlp:
    """Raises ImportError without the SDK. Endpoint, headers, sampler and batches are OTEL_* variables, the SDK's own."""

    def __init__(self, service: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = TracerProvider(resource=Resource.create({"service.name": service}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        tracer, propagator = self._provider.get_tracer("pagefleet_engine"), TraceContextTextMapPropagator()

        def start(name: str, headers: Mapping[str, str], attributes: Mapping[str, Value]) -> Made:
            carrier = {key: headers[key] for key in (TRACEPARENT_HEADER, "tracestate") if key in headers}
            context = propagator.extract(carrier)
            return tracer.start_span(name, context, kind=SpanKind.SERVER, attributes=attributes)

        self._start: Callable[[str, Mapping[str, str], Mapping[str, Value]], Made] = start

    def begin(self, request: web.Request) -> Span:
        attributes: dict[str, Value] = {"http.request.method": request.method, "url.path": request.path}
        if (request_id := request.headers.get(REQUEST_ID_HEADER)) is not None:
            attributes["http.request.header.x-request-id"] = request_id
        return _Sent(self._start(f"{request.method} {request.path}", request.headers, attributes))

    def close(self) -> None:
        self._provider.shutdown()


def start(environment: Mapping[str, str]) -> Traces:
    """Start the tracing that the environment configures. OTEL_SERVICE_NAME names this service, else "pagefleet-engine"."""
    if not any(environment.get(name) for name in ENDPOINTS):
        return Off()
    try:
        return _Otlp(environment.get("OTEL_SERVICE_NAME") or "pagefleet-engine")
    except ImportError as error:
        log("error", f"no traces are sent: {error.name} is not installed (the extra `otel`)")
        return Off()


KEY: web.RequestKey[Span] = web.RequestKey("span", Unsent)


def of(request: web.Request) -> Span:
    """Return the span that was begun for a request."""
    return request.get(KEY) or Unsent(None)


def annotate(request: web.Request, operation: str, answer: str, model: str, prompt: int, completion: int) -> None:
    """Describe a generation in its request's span: the answer's id, and the tokens read and written."""
    of(request).annotate({
        "gen_ai.operation.name": operation, "gen_ai.provider.name": PROVIDER, "gen_ai.response.id": answer,
        "gen_ai.request.model": model, "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": prompt, "gen_ai.usage.output_tokens": completion,
    })  # fmt: skip
