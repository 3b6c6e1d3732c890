"""A request that a rate limit refuses, while the other gateway pods are asked for their part of the quota: whoever waits knows for how
long, and one whose client leaves leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from support.gateway.fleet import until

from pagefleet_gateway.cluster.service import RateLimit, Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.deciding import Deciding
from pagefleet_gateway.holding.holding import Holding, Later
from pagefleet_gateway.limits.rate_limits import Charge
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.picking.routing import Refusal
from pagefleet_gateway.sharing.members import Members
from pagefleet_gateway.sharing.quotas import TIMEOUT_SECONDS, Quotas

KEY = ("team", "chat")
LIMIT = RateLimit("x-tenant", 1, 0)


class World:
    def __init__(self) -> None:
        self.now = time.monotonic()  # the exchange's clock
        self.state, self.ledger, self.members = State(), Ledger(), Members("one")
        self.picker = Picker(self.state, self.ledger, random.Random(1))
        self.holding = Holding(self.picker, lambda: self.now, lambda _: None)
        self.quotas = Quotas(self.picker.limits, self.members)
        self.deciding = Deciding(self.state, self.holding, self.quotas, self.ledger.close)
        self.members.put("two", "127.0.0.1:1")  # nobody answers there
        self.state.put_service(Service(*KEY, "smol", (("a", 100),), hold_seconds=30.0, limits=(LIMIT,)))
        self.count = 0

    def ask(self) -> Pick | Refusal | asyncio.Future[Pick | Refusal]:
        self.count += 1
        return self.deciding.decide(Request(f"r{self.count}", "POST", "/team/chat/v1/completions", {}, b"{}"))

    def refused(self) -> Later:
        """A request that this pod's own part of the quota refuses."""
        while isinstance(self.picker.limits.take(self.state.services[KEY], {}, 0, self.now), Charge):
            continue
        later = self.ask()
        assert isinstance(later, Later) and later.seconds == TIMEOUT_SECONDS + 30.0
        return later

    def up(self) -> None:
        pod = Pod("1", "p1", *KEY, "a", "10.0.0.1:8000")
        self.state.replace_pods([pod])
        self.state.confirm([pod])


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    following = asyncio.create_task(made.quotas.follow())
    yield made
    following.cancel()


async def held(one: World) -> Later:
    """A request that was refused at first, and then waits for a pod."""
    later = one.refused()
    one.now += 600.0  # its quota allows it by now
    await until(lambda: bool(one.holding.queued_by_service()))
    return later


async def test_a_request_that_no_part_allows_is_refused_after_the_others_were_asked() -> None:
    async with world() as one:
        one.up()
        answer = await one.refused()
        assert isinstance(answer, Refusal) and answer.code == "rate_limit_exceeded" and len(one.ledger) == 0


async def test_a_request_that_is_allowed_then_waits_for_a_pod() -> None:
    async with world() as one:
        later = await held(one)
        one.up()
        one.holding.release()
        assert isinstance(await later, Pick) and len(one.ledger) == 1


async def test_a_client_that_leaves_takes_its_request_out_of_the_queue() -> None:
    async with world() as one:
        later = await held(one)
        later.cancel()
        await until(lambda: not one.holding.queued_by_service())
        assert len(one.ledger) == 0


async def test_a_client_that_leaves_in_the_moment_of_the_pick_leaves_nothing_in_flight() -> None:
    async with world() as one:
        later = await held(one)
        one.up()
        one.holding.release()
        later.cancel()
        assert len(one.ledger) == 1
        await until(lambda: not len(one.ledger))
