"""The picker's front for Envoy: ext_authz over HTTP/1.1 on a Unix socket.

Reads a request, asks for a decision and writes it. Decides nothing itself. It is a raw protocol with httptools, because an
HTTP framework costs more than the decision.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import cast

import httptools

from pagefleet_contract.disaggregation import prefill_header
from pagefleet_contract.headers import (
    FALLBACK_HEADER,
    PEAK_HEADER,
    PREFILL_HEADER,
    REQUEST_ID_HEADER,
    TRACEPARENT_HEADER,
)
from pagefleet_gateway.envoy.answer_tokens import USAGE
from pagefleet_gateway.envoy.body_edits import EDITS
from pagefleet_gateway.envoy.clusters import DESTINATION, MIRROR, MIRROR_CLUSTER, MIRRORS
from pagefleet_gateway.envoy.replies import REFUSED_503
from pagefleet_gateway.envoy.stream_timeout import HEADER as STREAM_TIMEOUT
from pagefleet_gateway.fronts.hang_guard import HangGuard
from pagefleet_gateway.fronts.key_headers import client_key_headers, key_headers
from pagefleet_gateway.measuring.trace_context import new_traceparent
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.routing import Refusal

log = logging.getLogger(__name__)

NOT_HTTP = Refusal(400, "invalid_request_error", "invalid_request", "the method or the path is not valid HTTP")

Decide = Callable[[Request], Pick | Refusal | asyncio.Future[Pick | Refusal]]


class AuthzConnection(asyncio.Protocol):
    """One connection from Envoy; requests on it come one after the other."""

    def __init__(self, decide: Decide, rng: random.Random, guard: HangGuard) -> None:
        self._decide, self._rng, self._guard = decide, rng, guard
        self._descriptor = -1
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._pending: asyncio.Future[Pick | Refusal] | None = None
        self._reset()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not isinstance: uvloop's transports are not asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._descriptor = self._transport.get_extra_info("socket").fileno()
        self._guard.remember(self._descriptor)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._guard.forget(self._descriptor)
        if self._pending is not None:
            self._pending.cancel()  # Envoy gave up because its client went away

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            log.warning("closing a connection of Envoy to the picker whose bytes are not HTTP: %s", error)
            if self._transport is not None:
                # What Envoy lets pass and no HTTP server takes, such as a path that is not ASCII, is the client's error.
                self._write(http_response(NOT_HTTP))
                self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        request = Request(
            id=self._headers.get(REQUEST_ID_HEADER, ""),
            method=self._parser.get_method().decode("latin-1"),
            path=self._url.decode("latin-1"),
            headers=self._headers,
            body=b"".join(self._body),
        )
        self._reset()
        trace = new_traceparent(request.headers, self._rng)
        try:
            decision = self._decide(request)
            if isinstance(decision, asyncio.Future):
                self._pending = decision
                decision.add_done_callback(partial(self._on_decision, trace))
            else:
                self._write(http_response(decision, trace))
        except Exception:
            # The other requests on this connection must go on.
            log.exception(
                "the picker failed at request %s (%s %s): answering 503", request.id, request.method, request.path
            )
            self._write(_message(500, b"Internal Server Error", [], b""))

    def _on_decision(self, trace: str | None, decision: asyncio.Future[Pick | Refusal]) -> None:
        self._pending = None
        if not decision.cancelled():
            self._write(http_response(decision.result(), trace))

    def _write(self, message: bytes) -> None:
        if self._transport is not None:
            self._transport.write(message)

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []


def http_response(decision: Pick | Refusal, trace: str | None = None) -> bytes:
    """Return the HTTP answer: 200 with Envoy's headers for a pick, else the refusal. `trace`: a traceparent begun here."""
    match decision:
        case Pick():
            headers = [
                (DESTINATION, ",".join(pod.address for pod in decision.choices)),
                ("x-envoy-max-retries", str(decision.retries)),
            ]
            if decision.timeout_seconds is not None:
                headers.append(("x-envoy-upstream-rq-timeout-ms", str(round(decision.timeout_seconds * 1000))))
            if decision.stream_timeout.attempt_seconds is not None:
                milliseconds = round(decision.stream_timeout.attempt_seconds * 1000)
                headers.append(("x-envoy-upstream-rq-per-try-timeout-ms", str(milliseconds)))
            if decision.stream_timeout.route:
                headers.append((STREAM_TIMEOUT, decision.stream_timeout.route))
            if decision.include_usage:
                headers.append((USAGE, "1"))
            if decision.mirror is not None:
                headers += [(MIRROR, decision.mirror.address), (MIRROR_CLUSTER, MIRRORS)]
            if trace is not None:
                headers.append((TRACEPARENT_HEADER, trace))
            headers += key_headers(decision)
            if removed := client_key_headers(decision):
                headers.append(("x-envoy-auth-headers-to-remove", ",".join(removed)))
            if decision.prefill:
                headers.append(
                    (PREFILL_HEADER, prefill_header((pod.revision, pod.address) for pod in decision.prefill))
                )
            if decision.fallback:
                headers.append((FALLBACK_HEADER, decision.fallback))
            if decision.edits:
                headers.append((EDITS, ";".join(map(str, decision.edits))))
                headers.append((PEAK_HEADER, str(decision.peak_output_tokens)))
            return _message(200, b"OK", headers, b"")
        case Refusal():
            headers = [("content-type", "application/json")]
            if decision.retry_after is not None:
                headers.append(("retry-after", str(decision.retry_after)))
            if decision.status == 401:
                headers.append(("www-authenticate", "Bearer"))
            status = REFUSED_503 if decision.status == 503 else decision.status
            return _message(status, b"Refused", headers, decision.body())


def _message(status: int, reason: bytes, headers: list[tuple[str, str]], body: bytes) -> bytes:
    lines = [b"HTTP/1.1 %d %s" % (status, reason), b"content-length: %d" % len(body)]
    lines.extend(f"{name}: {value}".encode("latin-1") for name, value in headers)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
