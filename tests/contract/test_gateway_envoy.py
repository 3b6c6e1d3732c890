"""The gateway as a client meets it: a real Envoy, the real picker, real HTTP servers as engine pods.

Protects the contract on requests: paths, split, weights in force at once, streaming and its timing, retries
before the first byte, refusals in OpenAI's shape, headers that a client may not set, /windows.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from openai import AsyncOpenAI

from pagefleet_gateway.gateway import Gateway
from pagefleet_gateway.settings import Settings
from pagefleet_gateway.sketch import bucket_of, quantile
from pagefleet_gateway.state import Limit, Pod, Service, State

STABLE, CANARY = "aaaaaaaa", "bbbbbbbb"
TOKENS = ("one", " two", " three")


@dataclass
class Engine:
    """An HTTP server that answers as an engine pod does, at its own address."""

    host: str
    revision: str
    first_token: float = 0.0  # seconds until the answer's first byte
    between: float = 0.0  # seconds between tokens
    status: int = 200
    truncate: bool = False
    waiting: int = 0
    requests: list[web.Request] = field(default_factory=list)
    port: int = 0
    runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.metrics)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self.runner.setup()
        await web.TCPSite(self.runner, self.host, self.port).start()
        self.port = self.runner.addresses[0][1]

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None

    def pod(self, ready: bool = True) -> Pod:
        uid = f"{self.revision}-{self.host}"
        return Pod(uid, f"chat-{uid}", "team", "chat", self.revision, f"{self.host}:{self.port}", ready)

    async def models(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        model = {"id": "smol", "object": "model", "created": 0, "owned_by": "pagefleet"}
        return web.json_response({"object": "list", "data": [model]})

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=f'pagefleet_num_requests_waiting{{model_name="smol"}} {self.waiting}.0\n')

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        body = await request.json()
        if self.status != 200:
            error = {"message": "no", "type": "server_error", "param": None, "code": "no"}
            return web.json_response({"error": error}, status=self.status)
        if self.first_token:
            await asyncio.sleep(self.first_token)
        if not body.get("stream"):
            return web.json_response(completion("".join(TOKENS)))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for index, token in enumerate(TOKENS):
            if index and self.between:
                await asyncio.sleep(self.between)
            if self.truncate and index and request.transport is not None:
                request.transport.abort()
                return response
            await response.write(b"data: " + json.dumps(chunk(token)).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
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
    hosts: int = 10

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    async def engine(self, revision: str, **options: object) -> Engine:
        self.hosts += 1
        engine = Engine(f"127.0.0.{self.hosts}", revision, **options)  # type: ignore[arg-type]
        await engine.start()
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
        """The closed slices once they hold at least `requests` requests."""
        slices: list[dict[str, object]] = []

        async def complete() -> bool:
            url = f"http://127.0.0.1:{self.gateway.internal_port}/windows?namespace=team&service=chat"
            async with self.http.get(url) as response:
                slices[:] = (await response.json())["slices"]
            return sum(int(str(piece["requests"])) for piece in slices) >= requests

        await until(complete, seconds)
        return slices


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    settings = Settings(
        port=0,
        internal_port=0,
        address="127.0.0.1",
        max_request_bytes=65536,
        drain_seconds=10,
        settle_seconds=0,
    )
    state = State()
    gateway = Gateway(settings, state, lambda _: None)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(gateway.close)
        await gateway.start()
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Fleet(gateway, state, http, stack)


async def test_split_is_exact_and_a_new_weight_is_in_force_at_the_next_request(fleet: Fleet) -> None:
    await fleet.engine(STABLE)
    await fleet.engine(STABLE)
    await fleet.engine(CANARY)
    fleet.serve((STABLE, 90), (CANARY, 10))
    seen: Counter[str] = Counter()
    for _ in range(50):
        for status, _, headers in await asyncio.gather(*(fleet.chat() for _ in range(10))):
            assert status == 200
            seen[headers["x-pagefleet-revision"]] += 1
    margin = 2.576 * math.sqrt(500 * 0.1 * 0.9)
    assert abs(seen[CANARY] - 50) <= margin
    assert seen == {STABLE: 450, CANARY: 50}

    fleet.serve((STABLE, 100), (CANARY, 0))
    answers = [await fleet.chat() for _ in range(20)]
    assert {headers["x-pagefleet-revision"] for _, _, headers in answers} == {STABLE}
    slices = await fleet.windows(requests=520)
    counted: Counter[object] = Counter()
    for piece in slices:
        counted[piece["revision"]] += piece["requests"]  # type: ignore[operator]
        assert piece["errors"] == 0 and piece["stratum"] == "s"
        assert piece["ttft"] == {}
        assert sum(piece["e2e"].values()) == piece["requests"]  # type: ignore[attr-defined]
    assert counted == {STABLE: 470, CANARY: 50}


async def test_openai_client_streams_chunk_by_chunk_and_ttft_is_measured(fleet: Fleet) -> None:
    await fleet.engine(STABLE, first_token=0.3, between=0.2)
    fleet.serve((STABLE, 100))
    async with AsyncOpenAI(base_url=f"{fleet.url}/team/chat/v1", api_key="none", max_retries=0) as client:
        assert [model.id async for model in await client.models.list()] == ["smol"]
        times, tokens = [time.monotonic()], []
        stream = await client.chat.completions.create(
            model="smol", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        async for event in stream:
            tokens.append(event.choices[0].delta.content)
            times.append(time.monotonic())
        whole = await client.chat.completions.create(model="smol", messages=[{"role": "user", "content": "hello"}])
    assert tuple(tokens) == TOKENS
    assert whole.choices[0].message.content == "".join(TOKENS)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps[0] >= 0.29 and all(gap >= 0.1 for gap in gaps[1:])  # nothing was held back
    slices = await fleet.windows(requests=3)
    ttft: Counter[int] = Counter()
    for piece in slices:
        ttft.update({int(bucket): count for bucket, count in piece["ttft"].items()})  # type: ignore[attr-defined]
    assert ttft.total() == 1  # only the request that streamed
    assert 0.29 <= quantile(ttft, 0.95) <= 0.5


async def test_a_refused_connection_and_a_draining_pod_are_retried_elsewhere(fleet: Fleet) -> None:
    dead = await fleet.engine(STABLE)
    draining = await fleet.engine(STABLE, status=503)
    await fleet.engine(STABLE)
    await dead.stop()
    fleet.serve((STABLE, 100))
    answers = [await fleet.chat() for _ in range(40)]
    assert {status for status, _, _ in answers} == {200}
    # A pod that failed is left alone for some seconds: most requests never met it.
    assert len(draining.requests) <= 10
    slices = await fleet.windows(requests=40)
    assert sum(int(str(piece["errors"])) for piece in slices) == 0


async def test_the_other_revision_carries_what_a_revision_without_pods_cannot(fleet: Fleet) -> None:
    fleet.serve((STABLE, 50), (CANARY, 50))
    await fleet.engine(STABLE)
    canary = await fleet.engine(CANARY)
    fleet.state.put_pod(canary.pod(ready=False))
    answers = [await fleet.chat() for _ in range(20)]
    assert {(status, headers["x-pagefleet-revision"]) for status, _, headers in answers} == {(200, STABLE)}
    # Still marked ready, but its process is gone: the stable one answers, and the canary has failed those.
    fleet.state.put_pod(canary.pod())
    await canary.stop()
    answers = [await fleet.chat() for _ in range(20)]
    assert {(status, headers["x-pagefleet-revision"]) for status, _, headers in answers} == {(200, STABLE)}
    slices = await fleet.windows(requests=40)
    errors = Counter({STABLE: 0, CANARY: 0})
    for piece in slices:
        errors[str(piece["revision"])] += int(str(piece["errors"]))
    assert errors[STABLE] == 0 and errors[CANARY] == 10


async def test_headers_a_client_may_not_set_are_removed(fleet: Fleet) -> None:
    other = await fleet.engine(CANARY)
    engine = await fleet.engine(STABLE)
    fleet.serve((STABLE, 100))
    forged = {
        "x-gateway-destination-endpoint": f"{other.host}:{other.port}",
        "x-pagefleet-anything": "1",
        "x-envoy-max-retries": "50",
        "x-envoy-upstream-rq-timeout-ms": "1",
        "X-Envoy-Original-Path": "/admin",
        "x-request-id": "mine",
    }
    status, _, headers = await fleet.chat(headers=forged)
    assert status == 200 and headers["x-pagefleet-revision"] == STABLE
    assert headers["x-request-id"] not in ("", "mine")
    assert not other.requests
    received = {name.lower(): value for name, value in engine.requests[0].headers.items()}
    assert "x-pagefleet-anything" not in received
    assert f"{other.host}:{other.port}" not in received["x-gateway-destination-endpoint"]
    assert engine.requests[0].path == "/v1/chat/completions"


async def test_refusals_are_openai_shaped(fleet: Fleet) -> None:
    async def refusal(*arguments: str, **options: object) -> tuple[int, str, dict[str, str]]:
        status, body, headers = await fleet.chat(*arguments, **options)
        error = body["error"]
        assert isinstance(error, dict) and set(error) == {"message", "type", "param", "code"}
        assert headers["content-type"].startswith("application/json")
        return status, str(error["code"]), headers

    status, code, headers = await refusal("/team/chat/v1/chat/completions")
    assert (status, code) == (404, "service_not_found")
    fleet.serve()
    status, code, headers = await refusal()
    assert (status, code) == (503, "service_not_ready") and int(headers["retry-after"]) > 0
    fleet.serve((STABLE, 100))
    status, code, headers = await refusal()
    assert (status, code) == (503, "no_ready_pod") and int(headers["retry-after"]) > 0
    assert (await refusal("/nowhere"))[:2] == (404, "path_not_found")
    assert (await refusal("/v1/chat/completions", json={"model": "absent"}))[:2] == (404, "model_not_found")
    assert (await refusal("/v1/chat/completions", json={}))[:2] == (400, "model_required")
    fleet.state.put_service(Service("other", "chat", "smol", ((STABLE, 100),)))
    assert (await refusal("/v1/chat/completions"))[:2] == (400, "model_ambiguous")
    assert (await refusal(data=b"x" * 70000, json=None))[:2] == (413, "request_too_large")


async def test_the_model_alone_routes_and_its_path_stays(fleet: Fleet) -> None:
    engine = await fleet.engine(STABLE)
    fleet.serve((STABLE, 100))
    assert (await fleet.chat("/v1/chat/completions"))[0] == 200
    assert engine.requests[0].path == "/v1/chat/completions"
    async with fleet.http.get(f"{fleet.url}/v1/models") as response:
        assert response.status == 200


async def test_canary_header_and_sticky_sessions(fleet: Fleet) -> None:
    await fleet.engine(STABLE)
    await fleet.engine(CANARY)
    fleet.serve(
        (STABLE, 50),
        (CANARY, 50),
        canary=CANARY,
        canary_headers=(("x-canary", "always"),),
        sticky_header="x-session-id",
    )
    forced = [await fleet.chat(headers={"X-Canary": "always"}) for _ in range(10)]
    assert {headers["x-pagefleet-revision"] for _, _, headers in forced} == {CANARY}
    sessions = {}
    for name in range(12):
        answers = [await fleet.chat(headers={"X-Session-Id": f"s{name}"}) for _ in range(3)]
        (sessions[name],) = {headers["x-pagefleet-revision"] for _, _, headers in answers}
    assert set(sessions.values()) == {STABLE, CANARY}


async def test_errors_count_and_client_cancellations_do_not(fleet: Fleet) -> None:
    engine = await fleet.engine(STABLE)
    fleet.serve((STABLE, 100), retries=0)
    engine.status = 500
    assert (await fleet.chat())[0] == 500
    engine.status = 400
    assert (await fleet.chat())[0] == 400
    engine.status, engine.truncate = 200, True
    with pytest.raises(aiohttp.ClientError):
        await fleet.chat(json={"model": "smol", "stream": True, "messages": []})
    engine.truncate, engine.first_token = False, 30
    with pytest.raises(TimeoutError):
        await fleet.chat(timeout=aiohttp.ClientTimeout(total=0.3))
    engine.first_token = 0
    assert (await fleet.chat())[0] == 200
    slices = await fleet.windows(requests=3)
    assert sum(int(str(piece["requests"])) for piece in slices) == 3  # 500, truncated, 200
    assert sum(int(str(piece["errors"])) for piece in slices) == 2
    await until(lambda: len(fleet.gateway.ledger) == 0)
    async with fleet.http.get(f"http://127.0.0.1:{fleet.gateway.internal_port}/metrics") as response:
        text = await response.text()
    labels = f'namespace="team",revision="{STABLE}",service="chat"'
    assert f'pagefleet_gateway_requests_total{{code="500",{labels}}} 1.0' in text


async def test_an_engine_that_queues_is_spared(fleet: Fleet) -> None:
    busy, idle = await fleet.engine(STABLE, waiting=50), await fleet.engine(STABLE)
    fleet.serve((STABLE, 100))
    await until(lambda: fleet.gateway.readings.of(busy.pod(), time.monotonic()).waiting == 50)
    for _ in range(10):
        assert (await fleet.chat())[0] == 200
    assert (len(busy.requests), len(idle.requests)) == (0, 10)


async def test_a_services_timeout_is_kept(fleet: Fleet) -> None:
    await fleet.engine(STABLE, first_token=5)
    fleet.serve((STABLE, 100), timeout_seconds=0.4)
    started = time.monotonic()
    status, body, _ = await fleet.chat()
    assert status == 504 and time.monotonic() - started < 3
    assert isinstance(body["error"], dict) and body["error"]["code"] == "upstream_timeout"


async def test_requests_are_held_until_a_pod_is_there_and_given_up_with_their_clients(fleet: Fleet) -> None:
    fleet.serve((STABLE, 100), hold_seconds=30.0, hold_requests=3)
    held = [asyncio.create_task(fleet.chat()) for _ in range(2)]
    gone = asyncio.create_task(fleet.chat())
    await until(lambda: fleet.gateway.holding.held(("team", "chat")) == 3)
    status, body, headers = await fleet.chat()
    assert status == 429 and int(headers["retry-after"]) > 0
    assert isinstance(body["error"], dict) and body["error"]["code"] == "queue_full"
    gone.cancel()
    await until(lambda: fleet.gateway.holding.held(("team", "chat")) == 2, 1.0)
    url = f"http://127.0.0.1:{fleet.gateway.internal_port}"
    async with fleet.http.get(f"{url}/windows?namespace=team&service=chat") as response:
        assert (await response.json())["held"] == 2
    async with fleet.http.get(f"{url}/metrics") as response:
        text = await response.text()
    assert 'pagefleet_gateway_held{namespace="team",service="chat"} 2.0' in text
    assert 'pagefleet_gateway_wakeups_total{namespace="team",service="chat"} 1.0' in text
    await asyncio.sleep(0.5)  # the time held must not be charged to the revision
    engine = await fleet.engine(STABLE)
    assert [status for status, _, _ in await asyncio.gather(*held)] == [200, 200]
    assert len(engine.requests) == 2
    slices = await fleet.windows(requests=2)
    assert max(int(bucket) for piece in slices for bucket in piece["e2e"]) < bucket_of(0.4)  # type: ignore[attr-defined]


async def test_limits_and_full_pods_go_through_envoy_as_429(fleet: Fleet) -> None:
    engine = await fleet.engine(STABLE, first_token=0.5)
    fleet.serve((STABLE, 100), pod_limit=1, hold_seconds=10.0, limits=(Limit("authorization", 3, 0),))
    key = {"authorization": "Bearer k"}
    answers = await asyncio.gather(*(fleet.chat(headers=key) for _ in range(4)))
    assert sorted(status for status, _, _ in answers) == [200, 200, 200, 429]
    (limited,) = [headers for status, _, headers in answers if status == 429]
    assert 15 <= int(limited["retry-after"]) <= 20
    assert len(engine.requests) == 3  # one after the other: the pod takes one at a time


async def test_a_mirrored_request_is_answered_once_and_its_copy_thrown_away(fleet: Fleet) -> None:
    stable = await fleet.engine(STABLE)
    canary = await fleet.engine(CANARY, status=500)
    fleet.serve((STABLE, 100), mirror=(CANARY, 100.0))
    answers = [await fleet.chat() for _ in range(10)]
    assert {(status, headers["x-pagefleet-revision"]) for status, _, headers in answers} == {(200, STABLE)}
    assert len(stable.requests) == 10
    await until(lambda: len(canary.requests) >= 9)  # Envoy knows the mirrors' endpoints a moment after the engines'
    assert canary.requests[0].path == "/v1/chat/completions"
    assert sum(int(str(piece["errors"])) for piece in await fleet.windows(requests=10)) == 0
    fleet.serve((STABLE, 100))
    copied = len(canary.requests)
    assert (await fleet.chat())[0] == 200
    await canary.stop()
    fleet.serve((STABLE, 100), mirror=(CANARY, 100.0))
    assert (await fleet.chat())[0] == 200
    assert len(canary.requests) == copied


async def test_a_fallback_answers_and_says_so(fleet: Fleet) -> None:
    fleet.serve((STABLE, 100), fallback="small")
    assert (await fleet.chat())[0] == 503
    other = await fleet.engine(CANARY)
    pod = dataclasses.replace(other.pod(), uid="small", service="small")
    fleet.state.replace_pods([pod])
    fleet.state.put_service(Service("team", "small", "smol-small", ((CANARY, 100),)))
    await until(lambda: fleet.state.snapshot.pods.get(("team", "small")) is not None)
    status, _, headers = await fleet.chat(headers={"x-pagefleet-fallback": "forged"})
    assert (status, headers["x-pagefleet-fallback"], headers["x-pagefleet-revision"]) == (200, "team/small", CANARY)
    await fleet.engine(STABLE)
    status, _, headers = await fleet.chat()
    assert (status, headers["x-pagefleet-revision"]) == (200, STABLE)
    assert "x-pagefleet-fallback" not in headers


async def test_a_stop_drains_what_is_in_flight(fleet: Fleet) -> None:
    engine = await fleet.engine(STABLE, first_token=0.5, between=0.3)
    fleet.serve((STABLE, 100))
    request = asyncio.create_task(fleet.chat())
    await until(lambda: len(engine.requests) == 1)
    stop = asyncio.Event()
    running = asyncio.create_task(fleet.gateway.run(stop))
    stop.set()
    await running
    assert (await request)[0] == 200
    assert fleet.gateway.reason() == "draining"
