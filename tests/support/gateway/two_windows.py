"""Two gateways' `/windows` on the real port, with a clock that a test sets, and the reading of their load-adjusted times."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web
from support.loopback import own_address

from pagefleet_contract.names import GATEWAY_INTERNAL_PORT
from pagefleet_contract.sketch import bucket_of, total
from pagefleet_gateway.measuring.slices import End, Outcome
from pagefleet_gateway.measuring.windows import Windows
from pagefleet_gateway.picking.ledger import Group
from pagefleet_operator.domain.status.observation import Slice

ADDRESSES, KEY, BEGIN = (own_address(0), own_address(1)), ("team", "chat"), 1_800_000_000


class Gateways:
    """Two of them. A test sets their steady clock; each has an offset of its own from it."""

    def __init__(self) -> None:
        self.now = float(BEGIN)
        self.windows = {address: Windows(address) for address in ADDRESSES}
        self.asked: list[float] = []
        self.counted: list[int] = []  # slices of counts in each answer
        self.silent = 0  # so many requests fail

    def restart(self, address: str, offset: float) -> None:
        """Start another gateway at an address, on a machine whose clock is `offset` seconds ahead."""
        self.windows[address] = Windows(f"{address}-{offset}", offset=offset)

    def answer(self, address: str) -> None:
        """Let a pod of the stable revision answer a stream as soon as was expected."""
        group = Group(*KEY, "a", "64-180")
        outcome = Outcome(group, End.ANSWERED, 0.3, e2e=0.3, ttft=0.2, expected=0.2, streams=True, load="64-180")
        self.windows[address].record_end(outcome, self.now)

    async def show(self, request: web.Request) -> web.Response:
        self.asked.append(float(request.query["since"]))
        if self.silent:
            self.silent -= 1
            raise web.HTTPServiceUnavailable
        windows = self.windows[request.host.partition(":")[0]]
        counts = float(request.query.get("counts", "0"))
        answer = windows.document(*KEY, float(request.query["since"]), self.now, counts)
        shown = msgspec.json.decode(msgspec.json.encode(answer))["slices"]
        self.counted.append(sum("load" not in piece for piece in shown))
        return web.Response(body=msgspec.json.encode(answer | {"held": 0}), content_type="application/json")

    def pass_time(self, seconds: float) -> None:
        """Let requests come to both, and be answered."""
        self.now += seconds
        for address in ADDRESSES:
            self.windows[address].record_arrival(KEY, self.now)
            self.answer(address)


@asynccontextmanager
async def serving() -> AsyncIterator[Gateways]:
    gateways, app = Gateways(), web.Application()
    app.router.add_get("/windows", gateways.show)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    for address in ADDRESSES:
        await web.TCPSite(runner, address, GATEWAY_INTERNAL_PORT).start()
    try:
        yield gateways
    finally:
        await runner.cleanup()


def adjusted(slices: tuple[Slice, ...] | None) -> dict[tuple[str, float], int]:
    """The measured requests of the stable revision by gateway and start; each slice may be there once only."""
    result: dict[tuple[str, float], int] = {}
    for piece in slices or ():
        if piece.adjusted:
            assert (piece.instance, piece.start) not in result, "a slice counts twice"
            assert set(piece.load["64-180"].relative) == {bucket_of(1.0)}
            result[piece.instance, piece.start] = total(piece.load["64-180"].relative)
    return result
