"""Protects what arrived from being counted twice: gateways that fall silent one by one are asked again and again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from pagefleet_contract.names import GATEWAY_INTERNAL_PORT
from pagefleet_gateway.measuring.windows import Windows
from pagefleet_operator.metrics.gateway_windows import GatewayWindows

ADDRESSES, KEY, BEGIN = ("127.66.1.1", "127.66.1.2"), ("team", "chat"), 1_800_000_000


class Gateways:
    """Two of them, whose clock a test sets."""

    def __init__(self) -> None:
        self.now = float(BEGIN)
        self.windows = {address: Windows(address) for address in ADDRESSES}

    async def show(self, request: web.Request) -> web.Response:
        windows = self.windows[request.host.partition(":")[0]]
        answer = windows.document(*KEY, float(request.query["since"]), self.now)
        return web.Response(body=msgspec.json.encode(answer | {"held": 0}), content_type="application/json")


@pytest_asyncio.fixture
async def gateways() -> AsyncIterator[Gateways]:
    found, app = Gateways(), web.Application()
    app.router.add_get("/windows", found.show)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    for address in ADDRESSES:
        await web.TCPSite(runner, address, GATEWAY_INTERNAL_PORT).start()
    yield found
    await runner.cleanup()


@pytest.mark.parametrize("judged", [True, False])
async def test_each_arrival_counts_once_however_often_it_is_told(gateways: Gateways, judged: bool) -> None:
    _, late = ADDRESSES
    async with aiohttp.ClientSession() as session:
        read, told = GatewayWindows(session, lambda: gateways.now), 0
        for second in range(600):
            gateways.now = float(BEGIN + second)
            for address in ADDRESSES if second < 60 else (late,):
                gateways.windows[address].record_arrival(KEY, gateways.now)
                told += 1
            if second % 5 == 0:
                await read.read(list(ADDRESSES), *KEY, judged=judged)
        gateways.now += 10.0
        await read.read(list(ADDRESSES), *KEY, judged=judged)
        load = read.load(*KEY)
    assert load is not None
    assert sum(load.arrivals) * load.step == pytest.approx(told)
