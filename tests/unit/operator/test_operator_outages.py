"""Protects the operator's loops from an API server that is there and answers badly: overloaded, behind a proxy with pages of its own, or
with what is no object. Each of them is tried again; none ends the operator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from support.loopback import own_address

from pagefleet_contract.names import GATEWAY_INTERNAL_PORT
from pagefleet_operator.kube.client import ApiError
from pagefleet_operator.kube.store import ServiceKey
from pagefleet_operator.metrics.fetching import measuring_session
from pagefleet_operator.metrics.wake_ups import Wakes

GATEWAY = own_address(0)


@asynccontextmanager
async def serving(application: web.Application, host: str, port: int) -> AsyncIterator[int]:
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


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
