"""Background work (`priority: u=7`, RFC 9218): protects that it is the lowest class of a service, that it goes only to engines in
which nobody waits, and that requests of other urgencies are what they were."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from pagefleet_contract.engine_metrics import HIGHER_FIRST
from pagefleet_contract.headers import is_background
from pagefleet_gateway.cluster.engines import Engine
from pagefleet_gateway.cluster.readings import Readings
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.holding.holding import Holding
from pagefleet_gateway.picking.classes import engine_priority
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.picking.routing import Refusal

PODS = tuple(Pod(str(number), f"p{number}", "team", "chat", "a", f"10.0.0.{number}:8000") for number in (1, 2))
BACKGROUND = {"priority": "u=7"}


class World:
    def __init__(self, **options: object) -> None:
        self.state, self.ledger = State(), Ledger()
        self.readings = Readings()
        self.picker = Picker(self.state, self.ledger, random.Random(1), self.readings)
        self.holding = Holding(self.picker, lambda: 0.0, lambda _: None)
        self.state.replace_pods(PODS)
        self.state.confirm(PODS)
        self.state.put_service(Service("team", "chat", "smol", **{"weights": (("a", 100),), **options}))  # type: ignore[arg-type]
        self.count = 0

    def ask(self, headers: dict[str, str]) -> Pick | Refusal | asyncio.Future[Pick | Refusal]:
        self.count += 1
        return self.holding.decide(Request(f"r{self.count}", "POST", "/team/chat/v1/completions", headers))

    def waiting(self, *counts: int) -> None:
        for pod, count in zip(PODS, counts, strict=True):
            self.readings.put(pod, b"pagefleet_num_requests_waiting %d\n" % count, 0.0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("u=7", True),
        ("u=7, i", True),
        ("i,u=7", True),
        ("u=3", False),
        ("u=70", False),
        ("", False),
        ("interactive", False),
    ],
)
def test_the_lowest_urgency_means_background_work(value: str, expected: bool) -> None:
    assert is_background({"priority": value}) is expected
    assert not is_background({"x-priority": value})


def test_it_is_below_every_class_and_below_requests_of_no_class() -> None:
    service = Service("team", "chat", priorities=((("x-class", "high"),), (("x-class", "low"),)))
    asked = ({"x-class": "high"}, {"x-class": "low"}, {}, BACKGROUND, {"x-class": "high", **BACKGROUND})
    assert [service.priority(headers) for headers in asked] == [0, 1, 2, 3, 3]


def test_engines_that_take_priorities_serve_it_after_all_others() -> None:
    classes = ((("x-class", "high"),), (("x-class", "low"),))
    pods = [replace(pod, engine=Engine(priority=HIGHER_FIRST)) for pod in PODS]
    for priorities, expected in ((classes, [2, 0, -1]), ((), [None, None, -1])):
        service = Service("team", "chat", priorities=priorities)
        asked = ({"x-class": "high"}, {}, BACKGROUND)
        assert [engine_priority(service, service.priority(headers), pods) for headers in asked] == expected


def test_it_goes_on_only_while_an_engine_has_nobody_waiting() -> None:
    world = World()
    assert isinstance(world.ask(BACKGROUND), Pick)
    world.waiting(2, 0)
    assert isinstance(world.ask(BACKGROUND), Pick)
    world.waiting(2, 1)
    refused = world.ask(BACKGROUND)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code, refused.retry_after) == (429, "no_idle_capacity", 1)
    assert "team/chat has no idle capacity" in refused.message and "`priority: u=7`" in refused.message
    assert isinstance(world.ask({}), Pick) and isinstance(world.ask({"priority": "u=6"}), Pick)
    world.waiting(0, 0)
    assert isinstance(world.ask(BACKGROUND), Pick)


async def test_it_goes_after_a_request_that_waits_in_the_gateway_and_only_where_that_one_is_gone() -> None:
    world = World(pod_limit=1, hold_seconds=30.0)
    assert isinstance(world.ask({}), Pick) and isinstance(world.ask({}), Pick)
    low, high = world.ask(BACKGROUND), world.ask({})
    assert isinstance(low, asyncio.Future) and isinstance(high, asyncio.Future)
    world.ledger.close("r1")
    world.holding.release()
    assert high.done() and not low.done()
    world.ledger.close("r2")
    world.holding.release()
    assert isinstance(low.result(), Pick)


async def test_held_background_work_is_no_reason_for_other_background_work_to_give_way() -> None:
    world = World(hold_seconds=30.0)
    world.state.replace_pods(())
    held = [world.ask(BACKGROUND) for _ in range(3)]
    world.state.replace_pods(PODS)
    world.state.confirm(PODS)
    world.holding.release()
    assert all(isinstance(one, asyncio.Future) and isinstance(one.result(), Pick) for one in held)
