"""Letting held requests go costs little, however many services wait for a pod: a request's end looks at its own service alone, and what
other events ask for takes a tenth of the time at most."""

from __future__ import annotations

import asyncio
import random

from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.holding.holding import Holding
from pagefleet_gateway.holding.pacing import Paced
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Admitted, Pick, Request
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.picking.routing import Refusal


class CountingPicker(Picker):
    chosen = 0

    def choose(self, admitted: Admitted, now: float) -> Pick | Refusal:
        self.chosen += 1
        return super().choose(admitted, now)


class World:
    def __init__(self) -> None:
        self.state, self.ledger = State(), Ledger()
        self.picker = CountingPicker(self.state, self.ledger, random.Random(1))
        self.holding = Holding(self.picker, lambda: 0.0, lambda _: None)

    def service(self, name: str, **options: object) -> None:
        settings: dict[str, object] = {"weights": (("a", 100),), "hold_seconds": 30.0, **options}
        self.state.put_service(Service("team", name, name, **settings))  # type: ignore[arg-type]

    def ask(self, name: str, request: str) -> Pick | Refusal | asyncio.Future[Pick | Refusal]:
        return self.holding.decide(Request(request, "POST", f"/team/{name}/v1/completions", {}, b"{}"))

    def held(self, name: str, request: str) -> asyncio.Future[Pick | Refusal]:
        later = self.ask(name, request)
        assert isinstance(later, asyncio.Future)
        return later


async def test_a_requests_end_looks_only_at_what_its_pod_may_answer() -> None:
    world = World()
    for number in range(100):
        world.service(f"asleep-{number}")
    for name, options in {"busy": {"pod_limit": 1}, "small": {"fallback": "busy"}}.items():
        world.service(name, **options)
    pod = Pod("1", "p1", "team", "busy", "a", "10.0.0.1:8000")
    world.state.replace_pods([pod])
    world.state.confirm([pod])
    asleep = [world.held(f"asleep-{number}", f"a{number}") for number in range(100)]
    assert isinstance(world.ask("busy", "r1"), Pick)
    own, fallen = world.held("busy", "r2"), world.held("small", "r3")
    for request, answered in (("r1", own), ("r2", fallen)):
        world.picker.chosen = 0
        world.ledger.close(request)
        world.holding.release(freed=("team", "busy"))
        assert isinstance(await answered, Pick) and world.picker.chosen <= 2
    assert not any(one.done() for one in asleep)


async def test_what_many_events_ask_for_is_done_once_and_then_rests() -> None:
    now, done = [0.0], list[float]()

    def work() -> None:
        done.append(now[0])
        now[0] += 60.0  # it takes a minute

    paced = Paced(work, lambda: now[0])
    for _ in range(3):
        paced.soon()
    assert done == [], "the event goes first"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert done == [0.0]
    paced.soon()
    for _ in range(10):
        await asyncio.sleep(0)
    assert done == [0.0], "it rests for nine minutes"
    rested = Paced(work, lambda: now[0])
    rested.soon()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert done == [0.0, 60.0]
