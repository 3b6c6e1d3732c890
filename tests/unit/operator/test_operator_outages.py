"""Protects the operator's loops from an API server that is there and answers badly: overloaded, behind a proxy with pages of its own, or
with what is no object. Each of them is tried again; none ends the operator."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from support.loopback import own_address

from pagefleet_contract.names import GATEWAY_INTERNAL_PORT
from pagefleet_operator.kube.client import Api, ApiError
from pagefleet_operator.kube.store import ServiceKey
from pagefleet_operator.metrics.fetching import measuring_session
from pagefleet_operator.metrics.wake_ups import Wakes

GATEWAY = own_address(0)
PATH = "/api/v1/pods"
PAGES: dict[str, tuple[int, bytes]] = {
    "a proxy's page in Latin-1": (503, "<html>Dienst nicht verf\u00fcgbar</html>".encode("latin-1")),
    "a list": (502, b'["bad gateway"]'),
    "a text": (429, b'"slow down"'),
    "no text at all": (200, b"\xff\xfe\xfd"),
}


@asynccontextmanager
async def serving(application: web.Application, host: str, port: int) -> AsyncIterator[int]:
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def kubeconfig(folder: Path, port: int) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "one", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "one", "user": {"token": "t"}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
        "current-context": "one",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


def answering(status: int, body: bytes) -> web.Application:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, content_type="application/json")

    application = web.Application()
    application.router.add_get(PATH, answer)
    return application


@pytest.mark.parametrize("page", PAGES)
async def test_an_answer_that_is_no_object_is_an_error_like_any_other(page: str, tmp_path: Path) -> None:
    """What the loops do not expect ends the operator: a UnicodeDecodeError, or an AttributeError of a list."""
    status, body = PAGES[page]
    async with (
        serving(answering(status, body), "127.0.0.1", 0) as port,
        Api(str(kubeconfig(tmp_path, port))) as api,
    ):
        with pytest.raises(ApiError) as raised:
            await api.get(PATH)
        assert raised.value.status == (status if status >= 300 else 502)


async def test_credentials_that_cannot_be_read_again_leave_the_server_s_answer(tmp_path: Path) -> None:
    """A token's file that is being replaced, or an exec plugin that fails once, ended the operator."""
    async with serving(answering(401, b"{}"), "127.0.0.1", 0) as port:
        path = kubeconfig(tmp_path, port)
        async with Api(str(path)) as api:
            path.unlink()
            with pytest.raises(ApiError, match="401"):
                await api.get(PATH)


async def test_gateways_that_the_api_server_does_not_list_are_listed_again() -> None:
    """The whole operator ended with a traceback, whenever a service slept and the API server answered 429 or 503."""
    failures = [ApiError(503, "etcdserver: leader changed"), ApiError(429, "too many requests")]
    woken, application = asyncio.Queue[ServiceKey](), web.Application()

    async def gateways() -> list[str]:
        if failures:
            raise failures.pop(0)
        return [GATEWAY]

    async def held(_: web.Request) -> web.Response:
        return web.json_response({"held": {"ns/chat": 1}})

    application.router.add_get("/held", held)
    async with serving(application, GATEWAY, GATEWAY_INTERNAL_PORT), measuring_session() as session:
        wakes = Wakes(session, gateways, woken.put_nowait)
        wakes.note(("ns", "chat"), True)
        running = asyncio.create_task(wakes.run())
        first = asyncio.create_task(woken.get())
        await asyncio.wait((running, first), timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert not running.done(), running.exception()
        assert first.result() == ("ns", "chat")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
