"""The HTTP server of the sidecar: passes every request on to the engine of its pod.

What the gateway sees of the pod is what it would see of the engine: an engine that cannot be reached or that dies is a connection
that ends, so that retries, ejection and the search for requests that end engines work as without a sidecar.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

import aiohttp
from aiohttp import hdrs, web
from aiohttp.abc import AbstractResolver, ResolveResult
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from pagefleet_contract.disaggregation import (
    SIDECAR_LIVE_PATH,
)
from pagefleet_contract.engine_metrics import METRICS_PATH
from pagefleet_contract.headers import PREFILL_HEADER, PREFILLED_HEADER
from pagefleet_contract.names import ENGINE_PORT
from pagefleet_sidecar.metrics import Metrics

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = logging.getLogger("pagefleet-sidecar")

MAX_BODY_BYTES = 256 * 1024 * 1024  # the gateway bounds requests; this only keeps a pod alive
CONNECT_SECONDS = 2.0  # to a pod of the same cluster
KEEPALIVE_SECONDS = 2.0  # below uvicorn's 5 s, so that no request goes into a connection that the engine closes
# RFC 9110, section 7.6.1; and what is the sidecar's own business.
HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host",
     "content-length", "expect", PREFILL_HEADER}
)  # fmt: skip


# An engine that listens on `::` takes IPv4 too where it opens its socket itself (vLLM), and IPv6 alone where asyncio does (SGLang).
OWN_POD, LOOPBACK = "localhost", ("127.0.0.1", "::1")


@dataclass(frozen=True)
class Settings:
    """`revision` is the pod's; `timeout` bounds a prefill leg in seconds. Ports are the engine's, and that of prefill pods."""

    revision: str
    engine_port: int
    timeout: float
    prefill_port: int = ENGINE_PORT
    engine_host: str = OWN_POD

    @property
    def engine_addresses(self) -> tuple[str, ...]:
        """The addresses at which the engine may listen, the likeliest first."""
        return LOOPBACK if self.engine_host == OWN_POD else (self.engine_host,)

    @property
    def engine(self) -> str:
        return f"http://{self.engine_host}:{self.engine_port}"


@dataclass
class Proxy:
    """Use as `async with`."""

    settings: Settings
    metrics: Metrics = field(default_factory=Metrics)
    in_flight: int = 0

    async def __aenter__(self) -> Self:
        self.engine = session(_OwnPod())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.close()

    def answered(self) -> dict[str, Handler]:
        """The paths that the sidecar itself answers, beside that of its liveness."""
        return {METRICS_PATH: self._metrics}

    def application(self) -> web.Application:
        server = web.Application(client_max_size=MAX_BODY_BYTES)
        for path, handler in {SIDECAR_LIVE_PATH: self._live, **self.answered()}.items():
            server.router.add_get(path, handler)
        server.router.add_route("*", "/{path:.*}", self._handle)
        return server

    async def engine_listens(self) -> bool:
        """Whether the engine still takes connections: it ends by itself when its last stream has ended."""
        for address in self.settings.engine_addresses:
            try:
                _, writer = await asyncio.open_connection(address, self.settings.engine_port)
            except OSError:
                continue
            writer.close()
            return True
        return False

    async def _live(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        """Return the engine's page with the sidecar's own series after it."""
        try:
            async with self.engine.get(self.settings.engine + METRICS_PATH) as answer:
                page, status = await answer.read(), answer.status
        except (aiohttp.ClientError, TimeoutError):
            return _cut(request)
        text = page if page.endswith(b"\n") or not page else page + b"\n"
        return web.Response(body=text + self.metrics.page(), status=status, content_type="text/plain")

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.in_flight += 1
        try:
            return await self.answer(request)
        finally:
            self.in_flight -= 1

    async def answer(self, request: web.Request) -> web.StreamResponse:
        return await self.pass_on(request, await request.read())

    async def pass_on(
        self, request: web.Request, body: bytes, outcome: str = "", target: str = ""
    ) -> web.StreamResponse:
        """Pass the request on to the engine, at `target` or where it was sent, and its answer back as it comes."""
        try:
            answer = await self.ask_engine(request, body, target)
        except (aiohttp.ClientError, TimeoutError) as error:
            return self.cut(request, error)
        return await self.relay(request, answer, outcome)

    async def ask_engine(self, request: web.Request, body: bytes, target: str = "") -> aiohttp.ClientResponse:
        """Return the beginning of the engine's answer. Raises aiohttp.ClientError or TimeoutError without one."""
        return await self.engine.request(
            request.method,
            URL(self.settings.engine + (target or request.raw_path), encoded=True),
            data=body or None,
            headers=request_headers(request),
            allow_redirects=False,
        )

    async def relay(self, request: web.Request, answer: aiohttp.ClientResponse, outcome: str) -> web.StreamResponse:
        """Pass an answer of the engine on as it comes, and close it."""
        response = web.StreamResponse(status=answer.status, reason=answer.reason)
        response.headers.extend(passed_on(answer.headers))
        if outcome:
            response.headers[PREFILLED_HEADER] = outcome
        if answer.content_length is not None and hdrs.TRANSFER_ENCODING not in answer.headers:
            response.content_length = answer.content_length
        try:
            async with answer:
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
        except (aiohttp.ClientError, TimeoutError) as error:
            self.cut(request, error)
        return response

    def cut(self, request: web.Request, error: Exception) -> web.Response:
        """End the connection as the engine's has ended. Raises the error where the gateway has left before."""
        if request.transport is None or request.transport.is_closing():
            raise error
        log.warning("the engine at port %d: %s", self.settings.engine_port, error or type(error).__name__)
        return _cut(request)


class _OwnPod(AbstractResolver):
    """Names the addresses of this pod's engine, without a look into the image's /etc/hosts."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in LOOPBACK
        ]

    async def close(self) -> None:
        """Release nothing."""


def session(resolver: AbstractResolver | None = None) -> aiohttp.ClientSession:
    """A client of engines. It adds no headers of its own to what is passed on."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS, resolver=resolver)
    nothing = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    skipped = (hdrs.USER_AGENT, hdrs.ACCEPT_ENCODING, hdrs.ACCEPT, hdrs.CONTENT_TYPE)
    return aiohttp.ClientSession(connector=connector, timeout=nothing, auto_decompress=False, skip_auto_headers=skipped)


def request_headers(request: web.Request) -> CIMultiDict[str]:
    """Return the headers of both legs. A compressed body has been read as what it holds."""
    headers = passed_on(request.headers)
    headers.popall(hdrs.CONTENT_ENCODING, None)
    return headers


def passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Return the headers that go on with a message: those of its own end at the sidecar."""
    named = {part.strip().lower() for part in headers.get(hdrs.CONNECTION, "").split(",")}
    return CIMultiDict(
        (name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP and name.lower() not in named
    )


def refusal(status: int, code: str, message: str) -> web.Response:
    """Answer a request in place of the engine, in OpenAI's form."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    headers = {hdrs.RETRY_AFTER: "5"} if status == 503 else None
    return web.json_response({"error": error}, status=status, headers=headers)


def unread() -> web.Response:
    """Answer a request that cannot be read, and so may say what only the sidecar may say."""
    return refusal(400, "invalid_json", "the body must be a JSON object")


def _cut(request: web.Request) -> web.Response:
    """End the connection without an answer, as an engine that is gone does."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)
