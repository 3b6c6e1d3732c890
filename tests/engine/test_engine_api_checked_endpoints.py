"""Protects the endpoints that a load test checks before a canary gets requests: a real engine answers each of them well, whole and
streamed, and what another server does wrong is named."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from support.engine.api_process import NAME, Serving, make_model, serving

from pagefleet_cli.bench.profile import ProfileError, parse
from pagefleet_cli.bench.requests import Endpoint as Server
from pagefleet_cli.bench.run import client
from pagefleet_cli.bench.target import failing
from pagefleet_contract.endpoints import ENDPOINTS

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("engine")
    with serving(make_model(folder / "model"), folder / "log") as running:
        yield running


async def checked(url: str, *paths: str, model: str = NAME, seconds: float = 30.0) -> dict[str, str]:
    async with client(seconds) as session:
        return await failing(session, Server(f"{url}/v1", model), paths or tuple(ENDPOINTS))


async def test_our_engine_answers_every_endpoint(engine: Serving) -> None:
    assert await checked(f"http://127.0.0.1:{engine.port}") == {}


async def test_an_endpoint_that_refuses_is_named_with_its_cause(engine: Serving) -> None:
    found = await checked(f"http://127.0.0.1:{engine.port}", "/v1/chat/completions", "/v1/models", model="another")
    assert list(found) == ["/v1/chat/completions"]
    assert found["/v1/chat/completions"].startswith("HTTP 404: ")
    assert "another" in found["/v1/chat/completions"]


@asynccontextmanager
async def server(answer: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def says(whole: str, streamed: str = "", status: int = 200) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        stream = bool((await request.json()).get("stream"))
        return web.Response(text=streamed if stream else whole, status=200 if stream else status)

    return answer


GOOD = json.dumps({"choices": [{"text": "yes"}]})


@pytest.mark.parametrize(
    ("whole", "streamed", "status", "cause"),
    [
        (GOOD, "data: {}\n\ndata: [DONE]\n\n", 200, ""),
        (GOOD, "data: {}\n\n", 200, "streamed: the stream has no last event"),
        (GOOD, "", 200, "streamed: the stream has no last event"),
        (GOOD, 'data: {"error": {"message": "no"}}\n\ndata: [DONE]\n\n', 200, "streamed: an error in the stream"),
        ("[]", "", 200, "the answer is no JSON object"),
        ("<html>", "", 200, "the answer is no JSON object"),
        ('{"choices": []}', "", 200, "the answer has no choices"),
        ('{"error": {"message": "the model is asleep"}}', "", 503, "HTTP 503: the model is asleep"),
        ("<html>\n  busy", "", 502, "HTTP 502: <html> busy"),
    ],
)
async def test_what_a_server_does_wrong_is_named(whole: str, streamed: str, status: int, cause: str) -> None:
    async with server(says(whole, streamed, status)) as url:
        found = await checked(url, "/v1/completions")
    assert found == ({"/v1/completions": cause} if cause else {})


async def test_a_server_that_is_gone_or_slow_is_named() -> None:
    over = asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        await over.wait()
        return web.Response()

    assert (await checked("http://127.0.0.1:1", "/v1/models"))["/v1/models"].startswith("no answer: ")
    async with server(silent) as url:
        assert await checked(url, "/v1/models", seconds=0.3) == {"/v1/models": "timeout"}
        over.set()


def test_a_profile_names_the_endpoints_that_can_be_checked() -> None:
    assert parse('{"endpoints": ["/v1/models", "/tokenize"]}').endpoints == ("/v1/models", "/tokenize")
    for wrong in ('{"endpoints": ["/v1/nothing"]}', '{"endpoints": "/v1/models"}', '{"endpoints": [5]}'):
        with pytest.raises(ProfileError, match="endpoints must be a list of paths among /v1/models"):
            parse(wrong)
