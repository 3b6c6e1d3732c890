"""An OTLP receiver over HTTP for tests: OpenTelemetry's own messages, read by its own protobuf classes."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@asynccontextmanager
async def collector(
    address: str = "127.0.0.1", host: str = "", secure: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, list[tuple[str, Span]]]]:
    """Run an OTLP receiver over HTTP at `address`. Yield its URL, with `host` where that is given, and the list of received spans, each
    with its service."""
    spans: list[tuple[str, Span]] = []

    async def take(request: web.Request) -> web.Response:
        body = ExportTraceServiceRequest.FromString(await request.read())
        for resource in body.resource_spans:
            service = values(resource.resource)["service.name"]
            spans.extend((service, span) for scope in resource.scope_spans for span in scope.spans)
        made = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=made, content_type="application/x-protobuf")

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, address, 0, ssl_context=secure)
    await site.start()
    try:
        yield f"{'https' if secure else 'http'}://{host or address}:{runner.addresses[0][1]}", spans
    finally:
        await runner.cleanup()


def values(source: Any) -> dict[str, Any]:
    """Return the attributes of a span or a resource."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in source.attributes}
