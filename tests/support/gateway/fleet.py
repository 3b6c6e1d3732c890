"""A running gateway (real Envoy, real picker) with HTTP servers as engine pods, for the contract tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.http import StreamWriter
from support.gateway import protocols

from pagefleet_gateway.app import Gateway
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.envoy.process import Admin, AdminError
from pagefleet_gateway.settings import Settings
from pagefleet_operator.domain.status.gateway_slices import slices as read_slices
from pagefleet_operator.domain.status.observation import Slice

STABLE, CANARY = "aaaaaaaa", "bbbbbbbb"
TOKENS = ("one", " two", " three")
# When an engine sends its headers: with its first token; at once, as vLLM, SGLang and TGI do; at once with an event that
# names the role; at once with comments after them; at once, and then an error as the first event.
HEADERS = ("late", "first", "role", "pings")
FIRST = {
    "first": b"",
    "role": b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n',
    "pings": b": ping\n\n",
    "error": b"",
}
FAILED = b'data: {"error": {"message": "no page left", "type": "server_error", "param": null, "code": 500}}\n\n'
USAGE = {"prompt_tokens": 7, "total_tokens": 7 + len(TOKENS), "completion_tokens": len(TOKENS)}
PROMPT_TOKENS = "x-pagefleet-prompt-tokens"

ACCEPTING = "_accept_connection2"  # the task in which asyncio makes an accepted connection's transport


@dataclass
class Engine:
    """An HTTP server that answers as an engine pod does, at its own address."""

    host: str
    revision: str
    first_token: float = 0.0  # seconds until the answer's first token
    headers: str = "late"  # one of HEADERS, or "error"
    breaks: bool = False  # its streams hold an error event after the second token, and end as usual
    pieces: tuple[bytes, ...] = ()  # what its streams hold after the first token; each but the first waits for the gate
    deaths: int = 0  # requests whose engine dies in the midst of the prompt, after its headers if it sends them first
    between: float = 0.0  # seconds between tokens
    status: int = 200
    demands: str = ""  # the API key without which it answers 401
    error_header: str = ""  # what an answer that is no 200 has in x-pagefleet-error
    refusal: dict[str, object] | None = None  # the body of an answer that is no 200; None: an error in OpenAI's shape
    failure: bytes = FAILED  # the event with which its streams begin where `headers` is "error"
    truncate: bool = False
    waiting: int = 0
    token_report: str = ""  # trailer: as our engine; usage: as others; "": none
    left: int = 0  # requests whose client went away
    requests: list[web.Request] = field(default_factory=list)
    gate: asyncio.Semaphore | None = None  # each token after the first waits for it
    port: int = 0
    runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        for path in ("/v1/chat/completions", *protocols.PATHS):
            app.router.add_post(path, self.chat)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.metrics)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
        await self.runner.setup()
        await web.TCPSite(self.runner, self.host, self.port).start()
        self.port = self.runner.addresses[0][1]

    async def stop(self) -> None:
        if self.runner is not None:
            # Of a connection that is just being accepted, asyncio would leave the transport open when its server has closed.
            accepting = [task for task in asyncio.all_tasks() if ACCEPTING in repr(task.get_coro())]
            await asyncio.gather(*accepting, return_exceptions=True)
            await self.runner.cleanup()
            self.runner = None

    def die(self) -> None:
        """Cut every connection and listen no more, as a process that is killed does."""
        if self.runner is None or self.runner.server is None:
            return
        for site in list(self.runner.sites):
            if isinstance(site, web.TCPSite) and site._server is not None:
                site._server.close()
        for handler in list(self.runner.server.connections):
            if handler.transport is not None:
                handler.transport.abort()

    def pod(self, ready: bool = True) -> Pod:
        uid = f"{self.revision}-{self.host}"
        secret = ("engine", "key") if self.demands else None
        address = f"{self.host}:{self.port}"
        return Pod(uid, f"chat-{uid}", "team", "chat", self.revision, address, ready, key_secret=secret)

    async def models(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        model = {"id": "smol", "object": "model", "created": 0, "owned_by": "pagefleet"}
        return web.json_response({"object": "list", "data": [model]})

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=f'pagefleet_num_requests_waiting{{model_name="smol"}} {self.waiting}.0\n')

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        try:
            return await self.answer(request)
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            raise

    async def prompt(self, request: web.Request, response: web.StreamResponse) -> bool:
        """Take the prompt's time. Return whether the answer has ended with it."""
        if FIRST.get(self.headers):
            await response.write(protocols.opening(request.path) or FIRST[self.headers])
        seconds, dies = self.first_token, self.deaths > 0
        self.deaths -= dies
        await asyncio.sleep(seconds / 2)
        if dies and request.transport is not None:
            request.transport.abort()
            return True
        if self.headers == "pings":
            await response.write(FIRST["pings"])
        await asyncio.sleep(seconds / 2)
        if self.headers == "error":
            await response.write(self.failure)
            await response.write(b"data: [DONE]\n\n")
        return self.headers == "error"

    async def write_pieces(self, response: web.StreamResponse) -> None:
        await response.write(b"data: " + json.dumps(chunk(TOKENS[0])).encode() + b"\n\n")
        for index, piece in enumerate(self.pieces):
            if index and self.gate is not None:
                await self.gate.acquire()
            await response.write(piece)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.demands and request.headers.get("authorization") != f"Bearer {self.demands}":
            return web.json_response({"error": {"message": "no key", "code": "invalid_api_key"}}, status=401)
        if self.status != 200 and self.refusal is not None:
            return web.json_response(self.refusal, status=self.status)
        if self.status != 200:
            error = {"message": "no", "type": "server_error", "param": None, "code": "no"}
            headers = {"retry-after": "1"} if self.status == 429 else {}
            headers |= {"x-pagefleet-error": self.error_header} if self.error_header else {}
            return web.json_response({"error": error}, status=self.status, headers=headers)
        if not body.get("stream"):
            await asyncio.sleep(self.first_token)
            headers = {}
            if self.token_report == "trailer":
                headers = {"x-pagefleet-output-tokens": str(len(TOKENS)), PROMPT_TOKENS: str(USAGE["prompt_tokens"])}
            usage = {"usage": USAGE} if self.token_report == "usage" else {}
            return web.json_response(completion("".join(TOKENS)) | usage, headers=headers)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        if self.token_report == "trailer":
            response.headers[PROMPT_TOKENS] = str(USAGE["prompt_tokens"])
            response.headers["trailer"] = "x-pagefleet-output-tokens"
        writer = await response.prepare(request) if self.headers != "late" else None
        if await self.prompt(request, response):
            return response
        writer = writer or await response.prepare(request)
        if not isinstance(writer, StreamWriter):
            raise TypeError(f"aiohttp's writer is a {type(writer).__name__}")
        if self.pieces:
            await self.write_pieces(response)
        for index, token in enumerate(() if self.pieces else TOKENS):
            if index and self.between:
                await asyncio.sleep(self.between)
            if index and self.gate is not None:
                await self.gate.acquire()
            if self.breaks and index == 2:
                await response.write(protocols.failure(request.path) or FAILED)
                break
            if self.truncate and index and request.transport is not None:
                request.transport.abort()
                return response
            ours = b"data: " + json.dumps(chunk(token)).encode() + b"\n\n"
            await response.write(protocols.token(request.path, token) or ours)
        if self.token_report == "usage":
            await response.write(b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        if self.token_report == "trailer" and request.transport is not None:
            if request.headers.get("te") != "trailers":
                raise ValueError("the gateway did not ask for trailers")
            request.transport.write(b"0\r\nx-pagefleet-output-tokens: %d\r\n\r\n" % len(TOKENS))
            writer.chunked = False
        return response


def completion(text: str) -> dict[str, object]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "smol", "choices": [choice]}


def chunk(token: str) -> dict[str, object]:
    choice = {"index": 0, "delta": {"content": token}, "finish_reason": None}
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "smol", "choices": [choice]}


async def until(condition: Callable[[], bool | Awaitable[bool]], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.02)


@dataclass
class Fleet:
    """A running gateway with engines behind it."""

    gateway: Gateway
    state: State
    http: aiohttp.ClientSession
    stack: AsyncExitStack
    lines: list[dict[str, object]]  # of the access log
    hosts: int = 10
    headers: str = "late"  # of engines that are made without saying when they send theirs
    engines: list[Engine] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    async def engine(self, revision: str, **options: object) -> Engine:
        self.hosts += 1
        engine = Engine(f"127.0.0.{self.hosts}", revision, **{"headers": self.headers, **options})  # type: ignore[arg-type]
        await engine.start()
        self.engines.append(engine)
        self.stack.push_async_callback(engine.stop)
        self.state.put_pod(engine.pod())
        await until(lambda: engine.pod() in self.serving())
        return engine

    def serving(self) -> list[Pod]:
        pods = self.state.snapshot.pods.get(("team", "chat"), {})
        return [pod for group in pods.values() for pod in group]

    def serve(self, *weights: tuple[str, int], **options: object) -> None:
        self.state.put_service(Service("team", "chat", "smol", weights, **options))  # type: ignore[arg-type]

    async def chat(
        self, path: str = "/team/chat/v1/chat/completions", **options: object
    ) -> tuple[int, dict[str, object], dict[str, str]]:
        body = {"model": "smol", "messages": [{"role": "user", "content": "hello"}]}
        arguments: dict[str, object] = {"json": body, **options}
        async with self.http.post(self.url + path, **arguments) as response:  # type: ignore[arg-type]
            headers = {name.lower(): value for name, value in response.headers.items()}
            return response.status, json.loads(await response.text()), headers

    async def windows(self, seconds: float = 10.0, requests: int = 0) -> list[dict[str, object]]:
        """Return the closed slices of revisions once they hold at least `requests` requests, without load-adjusted times."""
        return [piece for piece in await self.slices(seconds, requests) if piece["revision"] and "load" not in piece]

    async def adjusted(self, requests: int) -> list[Slice]:
        """Return the load-adjusted times, as the operator reads them, once the windows hold so many requests."""
        document = {"instance": "g", "sliceSeconds": 2, "slices": await self.slices(requests=requests)}
        return [piece for piece in read_slices(document) if piece.adjusted]

    async def measured(self, requests: int = 1) -> dict[str, Any]:
        """All closed slices of revisions as one, once they hold `requests` requests: counts and histograms are added."""
        whole: dict[str, Any] = {}
        for piece in await self.windows(requests=requests):
            for name, value in piece.items():
                if isinstance(value, dict):
                    histogram = whole.setdefault(name, {})
                    histogram.update({bucket: histogram.get(bucket, 0) + count for bucket, count in value.items()})
                elif isinstance(value, int):
                    whole[name] = whole.get(name, 0) + value
        return whole

    async def slices(self, seconds: float = 10.0, requests: int = 0) -> list[dict[str, object]]:
        """Return all closed slices, arrivals too."""
        slices: list[dict[str, object]] = []

        async def complete() -> bool:
            url = f"http://127.0.0.1:{self.gateway.internal_port}/windows?namespace=team&service=chat"
            async with self.http.get(url) as response:
                slices[:] = (await response.json())["slices"]
            return sum(int(str(piece["requests"])) for piece in slices) >= requests

        await until(complete, seconds)
        return slices


@asynccontextmanager
async def running(**options: object) -> AsyncIterator[Fleet]:
    defaults: dict[str, object] = {
        "port": 0,
        "tls_port": 0,
        "internal_port": 0,
        "address": "127.0.0.1",
        "max_request_bytes": 65536,
        "drain_seconds": 10,
        "settle_seconds": 0,
    }
    settings = Settings(**defaults | options)  # type: ignore[arg-type]
    state = State()
    lines: list[dict[str, object]] = []
    gateway = Gateway(settings, state, lambda line: lines.append(json.loads(line)))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(gateway.close)
        await gateway.start()
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Fleet(gateway, state, http, stack, lines)
        await _no_script_failed(gateway)


async def _no_script_failed(gateway: Gateway) -> None:
    """Raise AssertionError if one of Envoy's scripts raised an error: Envoy logs it, and the request goes on half changed."""
    admin = Admin(gateway.proxy.paths.admin)
    try:
        text = await admin.request(r"/stats?format=json&filter=\.lua\.errors$")
    except AdminError:  # a test has ended Envoy
        return
    finally:
        await admin.close()
    errors = [one["value"] for one in json.loads(text)["stats"]]
    assert errors and not any(errors), text
