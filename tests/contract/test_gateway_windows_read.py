"""Protects what arrived from being counted twice: gateways that fall silent one by one are asked again and again. And what is
judged from clocks: neither a gateway's nor the operator's that jumps by hours freezes the windows or moves them away."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from support.gateway.two_windows import ADDRESSES, BEGIN, KEY, Gateways, serving

from pagefleet_operator.metrics.gateway_windows import GatewayWindows


@pytest_asyncio.fixture
async def gateways() -> AsyncIterator[Gateways]:
    async with serving() as started:
        yield started


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


@pytest.mark.parametrize("hours", [-30.0, -1.0, 0.001, 1.0, 30.0])
async def test_slices_of_a_gateway_with_another_clock_lie_in_the_operator_s_time(
    gateways: Gateways, hours: float
) -> None:
    """Also after its address has gone to a gateway with a right clock, and to one with a wrong one again."""
    one, _ = ADDRESSES
    async with aiohttp.ClientSession() as session:
        read, told = GatewayWindows(session, lambda: gateways.now), 0
        for offset in (0.0, 3600.0 * hours, 0.0):
            gateways.restart(one, offset)
            begun = gateways.now
            for _ in range(20):
                gateways.now += 2.0
                gateways.windows[one].record_arrival(KEY, gateways.now)
                told += 1
                shown = await read.read([one], *KEY, judged=True)
            gateways.now += 4.0
            shown = await read.read([one], *KEY, judged=True)
            assert shown is not None
            assert sum(piece.arrivals or 0 for piece in shown) == told
            newest = [piece.start for piece in shown if piece.start >= begun]
            assert len(newest) >= 19 and max(newest) <= gateways.now
            load = read.load(*KEY)
            assert load is not None and load.age < 10.0


@pytest.mark.parametrize("hours", [-5.0, 5.0])
async def test_an_operator_s_clock_that_jumps_takes_the_new_slices_along(gateways: Gateways, hours: float) -> None:
    one, _ = ADDRESSES
    ahead = 0.0
    async with aiohttp.ClientSession() as session:
        read = GatewayWindows(session, lambda: gateways.now + ahead)
        for jump in (0.0, 3600.0 * hours, 0.0):
            ahead = jump
            for _ in range(10):
                gateways.now += 2.0
                gateways.windows[one].record_arrival(KEY, gateways.now)
                shown = await read.read([one], *KEY, judged=True)
            assert shown is not None
            recent = [piece for piece in shown if abs(piece.start - gateways.now - ahead) < 20.0]
            assert len(recent) >= 8, "the guard judges slices since a time by the operator's clock"
