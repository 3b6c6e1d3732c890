"""The fault proxy: a TLS reverse proxy between one operator and the API server that numbers every request and, by a
script, kills the operator before or after a write's commit, answers in the server's stead, hangs after the commit,
serves an old list, waits for an event of the test, and cuts, truncates, poisons, silences or thins watches.

It speaks upstream with the operator's own certificate, or passes the operator's token on, so the API server sees (and audits)
the operator itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum

import aiohttp
from aiohttp import web

from pagefleet_local.base.certificates import Pair
from pagefleet_operator.kube.client import Sockets

WRITES = ("POST", "PUT", "PATCH", "DELETE")
HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "content-encoding", "host", "keep-alive"}


class Watching(Enum):
    """The end of a watch, after the events that it may still deliver."""

    CUT = "cut"  # the connection ends properly
    TRUNCATE = "truncate"  # it breaks within a line
    GONE = "410"  # an ERROR event 410: resourceVersion too old
    FAILED = "500"  # an ERROR event of another kind
    SILENT = "silent"  # the connection stays, nothing comes: a half-open peer


@dataclass(frozen=True)
class Call:
    """One request. `number` counts all requests of the run from 1, `write` the writes (0: not a write)."""

    number: int
    write: int
    method: str
    path: str
    query: str

    @property
    def watch(self) -> bool:
        return "watch=true" in self.query

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Fault:
    """The fault of a call: the first field that is set. `answer` is (status, headers). A `thinned` watch holds the events
    of so many seconds back, and then sends only the last event of each object, and none for an object that was created
    and deleted meanwhile. `wait` is awaited before anything else.
    """

    kill_before: bool = False
    kill_after: bool = False
    answer: tuple[int, dict[str, str]] | None = None
    hang_after: bool = False
    old_list: bool = False
    watching: Watching | None = None
    events: int = 0
    thinned: float = 0.0
    wait: Callable[[], Awaitable[None]] | None = None


Script = Callable[[Call], Fault | None]


def never(_: Call) -> Fault | None:
    return None


@dataclass
class FaultProxy:
    """`async with FaultProxy(...)`: listens on 127.0.0.1:`port`. `kill` ends the operator at once (SIGKILL). `committed`
    are the writes that the API server accepted, in order. Without `client` the operator's token is all that speaks for it."""

    upstream: str
    authority: str
    serving: Pair
    client: Pair | None
    port: int
    kill: Callable[[], None] = lambda: None
    script: Script = never
    calls: list[Call] = field(default_factory=list)
    struck: list[Call] = field(default_factory=list)
    committed: list[Call] = field(default_factory=list)
    kills: int = 0
    refused: int = 0  # answers 401
    _writes: int = 0
    _streams: dict[int, web.Request] = field(default_factory=dict)
    _lists: dict[str, bytes] = field(default_factory=dict)
    _runner: web.AppRunner | None = None
    _session: aiohttp.ClientSession | None = None
    _sockets: Sockets = field(default_factory=Sockets)

    async def __aenter__(self) -> FaultProxy:
        outward = ssl.create_default_context(cafile=self.authority)
        if self.client is not None:
            outward.load_cert_chain(self.client.certificate, self.client.key)
        inward = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        inward.load_cert_chain(self.serving.certificate, self.serving.key)
        timeout = aiohttp.ClientTimeout(total=None, connect=10)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=outward, limit=0, socket_factory=self._sockets),
            timeout=timeout,
            auto_decompress=True,
        )
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=inward).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            await self._sockets.closed()
        if self._runner is not None:
            await self._runner.cleanup()

    def cut(self) -> None:
        """Break every open watch."""
        for request in self._streams.values():
            if request.transport is not None:
                request.transport.abort()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call = self._numbered(request)
        fault = self.script(call) or Fault()
        if fault != Fault():
            self.struck.append(call)
        if fault.wait is not None:
            await fault.wait()
        if fault.kill_before:
            return self._die(request)
        if fault.answer is not None:
            status, headers = fault.answer
            return web.json_response(refusal(status), status=status, headers=headers)
        if fault.old_list and call.path in self._lists:
            return web.Response(body=self._lists[call.path], content_type="application/json")
        try:
            return await self._forward(request, call, fault)
        except aiohttp.ClientError:  # the API server is down: the operator's connection ends too
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=503)

    async def _forward(self, request: web.Request, call: Call, fault: Fault) -> web.StreamResponse:
        body = await request.read()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        if self._session is None:
            raise RuntimeError("the proxy is not running")
        target = f"{self.upstream}{request.path_qs}"
        async with self._session.request(request.method, target, data=body or None, headers=headers) as answer:
            self.refused += answer.status == 401
            if call.watch and answer.status == 200:
                self._streams[call.number] = request
                try:
                    return await self._stream(request, answer, fault)
                finally:
                    del self._streams[call.number]
            content = await answer.read()
        if call.write and answer.status < 300:
            self.committed.append(call)
        if fault.kill_after:
            return self._die(request)
        if fault.hang_after:
            await asyncio.Event().wait()
        if call.method == "GET" and call.path not in self._lists:
            self._lists[call.path] = content
        remaining = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
        return web.Response(status=answer.status, body=content, headers=remaining)

    def _numbered(self, request: web.Request) -> Call:
        write = request.method in WRITES
        self._writes += write
        call = Call(
            len(self.calls) + 1, self._writes if write else 0, request.method, request.path, request.query_string
        )
        self.calls.append(call)
        return call

    def _die(self, request: web.Request) -> web.Response:
        """Kill the operator, so that no process reads the answer."""
        self.kills += 1
        self.kill()
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=503)

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse, fault: Fault) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        passed = 0
        stream = thinned(lines(answer), fault.events, fault.thinned) if fault.thinned else lines(answer)
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):
            if fault.watching is not None and fault.events == 0:
                return await self._end(request, response, fault.watching, b"")
            async for line in stream:
                if fault.watching is not None and passed >= fault.events:
                    return await self._end(request, response, fault.watching, line)
                passed += 1
                await response.write(line)
        return response

    async def _end(
        self, request: web.Request, response: web.StreamResponse, how: Watching, line: bytes
    ) -> web.StreamResponse:
        match how:
            case Watching.CUT:
                pass
            case Watching.TRUNCATE:
                await response.write(line[: len(line) // 2] or b'{"type": "MODI')
                if request.transport is not None:
                    request.transport.abort()
            case Watching.GONE | Watching.FAILED:
                event = {"type": "ERROR", "object": refusal(int(how.value))}
                await response.write(json.dumps(event).encode() + b"\n")
            case Watching.SILENT:
                await asyncio.Event().wait()
        return response


async def thinned(stream: AsyncIterator[bytes], events: int, seconds: float) -> AsyncIterator[bytes]:
    """Yield lines of a watch: the first `events` as they come; of the `seconds` after them only the last event of each
    object; then every event again."""
    for _ in range(events):
        yield await anext(stream)
    first: dict[str, str] = {}
    last: dict[str, tuple[str, bytes]] = {}
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()
    reading = asyncio.create_task(_into(stream, queue))
    try:
        line = await queue.get()
        end, open_still = time.monotonic() + seconds, line is not None
        while line is not None:
            event = json.loads(line)
            uid = event["object"]["metadata"].get("uid", "")
            first.setdefault(uid, event["type"])
            last[uid] = (event["type"], line)
            try:
                async with asyncio.timeout(max(0.0, end - time.monotonic())):
                    line = await queue.get()
                    open_still = line is not None
            except TimeoutError:
                break
        for uid, (kind, ended) in last.items():
            if (first[uid], kind) != ("ADDED", "DELETED"):
                yield ended
        while open_still and (line := await queue.get()) is not None:
            yield line
    finally:
        reading.cancel()


async def _into(stream: AsyncIterator[bytes], queue: asyncio.Queue[bytes | None]) -> None:
    try:
        async for line in stream:
            queue.put_nowait(line)
    finally:
        queue.put_nowait(None)


async def lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the answer's lines, however long (a StreamReader's own readline has a limit)."""
    rest = b""
    async for chunk in answer.content.iter_any():
        rest += chunk
        *whole, rest = rest.split(b"\n")
        for line in whole:
            yield line + b"\n"


def refusal(status: int) -> dict[str, object]:
    """Return a metav1.Status as the API server answers it."""
    reasons = {403: "Forbidden", 409: "Conflict", 410: "Expired", 422: "Invalid", 429: "TooManyRequests"}
    reason = reasons.get(status, "InternalError")
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status,
            "reason": reason, "message": f"injected {status}"}  # fmt: skip
