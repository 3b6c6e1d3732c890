"""The HTTP server of the sidecar: passes every request on to the engine of its pod, after a prefill leg where one is named.

What the gateway sees of the pod is what it would see of the engine: an engine that cannot be reached or that dies is a connection
that ends, so that retries, ejection and the search for requests that end engines work as without a sidecar.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from pagefleet_contract.disaggregation import (
    AVOIDED,
    FAILED,
    LOCAL,
    REFUSED,
    REMOTE,
    SIDECAR_LIVE_PATH,
    TIMEOUT,
    UNREACHED,
    prefill_address,
)
from pagefleet_contract.engine_metrics import METRICS_PATH
from pagefleet_contract.headers import PREFILL_HEADER, PREFILLED_HEADER
from pagefleet_contract.names import ENGINE_PORT
from pagefleet_sidecar import legs
from pagefleet_sidecar.metrics import Metrics

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = logging.getLogger("pagefleet-sidecar")

MAX_BODY_BYTES = 256 * 1024 * 1024  # the gateway bounds requests; this only keeps a pod alive
MAX_ANSWER_BYTES = 16 * 1024 * 1024  # of a prefill leg: one token, and the numbers of its KV pages
CONNECT_SECONDS = 2.0  # to a pod of the same cluster
AVOID_SECONDS = 5.0  # for which a prefill pod is not asked again after it was not reached
MAX_AVOIDED = 1024
KEEPALIVE_SECONDS = 2.0  # below uvicorn's 5 s, so that no request goes into a connection that the engine closes
# RFC 9110, section 7.6.1; and what is the sidecar's own business.
HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host",
     "content-length", "expect", PREFILL_HEADER}
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """`revision` is the pod's; `timeout` bounds a prefill leg in seconds. Ports are the engine's, and that of prefill pods."""

    revision: str
    engine_port: int
    timeout: float
    prefill_port: int = ENGINE_PORT
    engine_host: str = "127.0.0.1"

    @property
    def engine(self) -> str:
        return f"http://{self.engine_host}:{self.engine_port}"


@dataclass
class Proxy:
    """Use as `async with`. `avoided` has prefill pods that failed a moment ago, and until when they are not asked."""

    settings: Settings
    metrics: Metrics = field(default_factory=Metrics)
    avoided: dict[str, float] = field(default_factory=dict)
    in_flight: int = 0

    async def __aenter__(self) -> Proxy:
        def session() -> aiohttp.ClientSession:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS)
            nothing = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
            skipped = (hdrs.USER_AGENT, hdrs.ACCEPT_ENCODING, hdrs.ACCEPT, hdrs.CONTENT_TYPE)
            return aiohttp.ClientSession(
                connector=connector, timeout=nothing, auto_decompress=False, skip_auto_headers=skipped
            )

        self.engine, self._prefill = session(), session()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.close()
        await self._prefill.close()

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
        try:
            _, writer = await asyncio.open_connection(self.settings.engine_host, self.settings.engine_port)
        except OSError:
            return False
        writer.close()
        return True

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
        if not request.raw_path.startswith("/"):
            return _unread()
        body = await request.read()
        address = prefill_address(
            request.headers.get(PREFILL_HEADER, ""), self.settings.revision, self.settings.prefill_port
        )
        if not address and not legs.may_name_params(body):
            return await self.pass_on(request, body, "")
        document = legs.document_of(body)
        if document is None:
            if legs.may_name_params(body) and not request.content_type.startswith("multipart/"):
                return _unread()
            return await self.pass_on(request, body, LOCAL if address else "")
        outcome, params = "", None
        if address:
            outcome, params = await self._prefilled(request, document, address)
        if params is None and legs.PARAMS not in document:
            return await self.pass_on(request, body, outcome)
        # A client names no host from which the engine would fetch KV pages.
        return await self.pass_on(request, legs.decode_body(document, params), outcome)

    async def _prefilled(
        self, request: web.Request, document: dict[str, object], address: str
    ) -> tuple[str, Mapping[str, object] | None]:
        """Run the prefill leg. Return its outcome, and the parameters of the transfer where there are any."""
        began = time.monotonic()
        if not legs.is_split(request.path, document):
            outcome, params = LOCAL, None
        elif self.avoided.get(address, 0.0) > began:
            outcome, params = AVOIDED, None
        else:
            outcome, params = await self._ask(request, document, address)
        seconds = time.monotonic() - began
        self.metrics.record(outcome, seconds if outcome == REMOTE else None)
        if outcome in (UNREACHED, TIMEOUT):
            if len(self.avoided) >= MAX_AVOIDED:
                self.avoided.clear()
            self.avoided[address] = time.monotonic() + AVOID_SECONDS
        if outcome not in (REMOTE, LOCAL, AVOIDED):
            log.warning("prefill pod %s: %s after %.3f s: this pod computes the prompt", address, outcome, seconds)
        return outcome, params

    async def _ask(
        self, request: web.Request, document: dict[str, object], address: str
    ) -> tuple[str, Mapping[str, object] | None]:
        headers = request_headers(request)
        try:
            async with asyncio.timeout(self.settings.timeout):
                async with self._prefill.post(
                    f"http://{address}{request.path}", data=legs.prefill_body(document), headers=headers
                ) as answer:
                    if answer.status != 200:
                        refused = 400 <= answer.status < 500 and answer.status != 429
                        return (REFUSED if refused else FAILED), None
                    text = bytearray()
                    async for piece in answer.content.iter_any():
                        text += piece
                        if len(text) > MAX_ANSWER_BYTES:
                            return FAILED, None
        except TimeoutError as error:
            connecting = isinstance(error, aiohttp.ServerTimeoutError)
            return (UNREACHED if connecting else TIMEOUT), None
        except aiohttp.ClientError:
            return UNREACHED, None
        params = legs.params_of(bytes(text))
        return (FAILED, None) if params is None else (REMOTE, params)

    async def pass_on(
        self, request: web.Request, body: bytes, outcome: str = "", target: str = ""
    ) -> web.StreamResponse:
        """Pass the request on to the engine, at `target` or where it was sent, and its answer back as it comes."""
        response: web.StreamResponse | None = None
        try:
            async with self.engine.request(
                request.method,
                URL(self.settings.engine + (target or request.raw_path), encoded=True),
                data=body or None,
                headers=request_headers(request),
                allow_redirects=False,
            ) as answer:
                response = web.StreamResponse(status=answer.status, reason=answer.reason)
                response.headers.extend(passed_on(answer.headers))
                if outcome:
                    response.headers[PREFILLED_HEADER] = outcome
                if answer.content_length is not None and hdrs.TRANSFER_ENCODING not in answer.headers:
                    response.content_length = answer.content_length
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, TimeoutError) as error:
            if request.transport is None or request.transport.is_closing():
                raise  # the gateway has left
            log.warning("the engine at port %d: %s", self.settings.engine_port, error or type(error).__name__)
            cut = _cut(request)
            return cut if response is None else response


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


def _unread() -> web.Response:
    """Answer a request that cannot be read, and so may say what only the sidecar may say."""
    return refusal(400, "invalid_json", "the body must be a JSON object")


def _cut(request: web.Request) -> web.Response:
    """End the connection without an answer, as an engine that is gone does."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)
