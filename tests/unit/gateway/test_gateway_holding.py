"""Protects holding: nobody is refused who can wait, nobody waits for ever, one wake-up, bounds, order, no overtaking.

A request that only some pods may answer (a subset hint, a forced canary) never makes others wait for it.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace

from pagefleet_gateway.cluster.service import QueueBounds, RateLimit, Service, ServiceKey
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.holding.holding import STEP_REQUESTS, Bounds, Holding
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.picking.routing import Refusal

POD = Pod("1", "p1", "team", "chat", "a", "10.0.0.1:8000")
KEY = ("team", "chat")


class World:
    def __init__(self, bounds: Bounds = Bounds(), **options: object) -> None:  # noqa: B008
        self.state, self.ledger, self.woken = State(), Ledger(), list[ServiceKey]()
        self.holding = Holding(
            Picker(self.state, self.ledger, random.Random(1)), lambda: 0.0, self.woken.append, bounds
        )
        self.state.on_change = self.holding.release
        settings: dict[str, object] = {"weights": (("a", 100),), "hold_seconds": 30.0, **options}
        self.state.put_service(Service("team", "chat", "smol", **settings))  # type: ignore[arg-type]
        self.count = 0
        self.subset: frozenset[str] | None = None  # the hint of the next requests

    def ask(self, body: object = None, **headers: str) -> Pick | Refusal | asyncio.Future[Pick | Refusal]:
        self.count += 1
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        data = b"" if body is None else json.dumps(body).encode()
        path = "/team/chat/v1/completions"
        return self.holding.decide(Request(f"r{self.count}", "POST", path, names, data, self.subset))

    def hold(self, body: object = None, **headers: str) -> asyncio.Future[Pick | Refusal]:
        answer = self.ask(body, **headers)
        assert isinstance(answer, asyncio.Future), answer
        return answer

    def up(self, *pods: Pod) -> None:
        self.state.replace_pods(pods)
        self.state.confirm(pods)


def code(answer: object) -> str:
    assert isinstance(answer, Refusal)
    return answer.code


async def test_held_from_zero_let_go_by_the_first_pod_with_one_wake_up() -> None:
    world = World()
    held = [world.hold() for _ in range(20)]
    assert world.woken == [KEY] and world.holding.held(KEY) == 20 and len(world.ledger) == 0
    world.up(POD)
    answers = await asyncio.gather(*held)
    assert all(isinstance(answer, Pick) for answer in answers)
    assert world.holding.queued_by_service() == {} and len(world.ledger) == 20
    assert isinstance(world.ask(), Pick)
    world.up()
    world.hold()
    assert world.woken == [KEY, KEY]


async def test_a_crowd_is_let_go_in_steps_between_which_others_have_their_turn() -> None:
    world = World(tenant_header="x-tenant")
    held = [world.hold(x_tenant=str(number)) for number in range(4 * STEP_REQUESTS)]
    world.state.on_change = lambda: None
    world.up(POD)
    world.holding.release()
    assert sum(one.done() for one in held) == STEP_REQUESTS
    world.holding.release()  # as at a request's end
    late = world.hold()  # it overtakes none of them
    answers = await asyncio.gather(*held, late)
    assert all(isinstance(answer, Pick) for answer in answers) and not world.holding.queued_by_service()


async def test_a_service_that_is_deleted_holds_nothing_and_its_successor_is_not_woken() -> None:
    world = World()
    held = world.hold()
    world.state.remove_service(KEY)
    assert held.done() and code(await held) == "no_ready_pod"
    assert world.holding.held(KEY) == 0 and world.holding.held_by_service() == {}


async def test_a_service_that_does_not_hold_refuses_at_once() -> None:
    assert code(World(hold_seconds=0.0).ask()) == "no_ready_pod"
    assert code(World(weights=()).ask()) == "service_not_ready"


async def test_no_pod_in_time_is_a_503() -> None:
    world = World(hold_seconds=0.01)
    answer = await world.hold()
    assert isinstance(answer, Refusal) and (answer.status, answer.code) == (503, "no_ready_pod")
    assert answer.retry_after and world.holding.queued_by_service() == {}


async def test_a_full_queue_is_a_429_in_count_and_bytes_and_over_all_services() -> None:
    world = World(hold_requests=2)
    held = [world.hold(), world.hold()]
    refused = world.ask()
    assert isinstance(refused, Refusal) and (refused.status, refused.code) == (429, "queue_full")
    assert refused.retry_after and not any(one.done() for one in held)
    assert code(World(hold_bytes=100).ask({"prompt": "x" * 200})) == "queue_full"
    assert code(World(Bounds(entries=0)).ask()) == "queue_full"
    assert code(World(Bounds(bytes=100)).ask({"prompt": "x" * 200})) == "queue_full"


async def test_new_bounds_of_a_queue_are_in_force_while_requests_wait() -> None:
    """Who raises `maxRequests` in an overload sees it at the next request, and the refusal states the bound that refused."""
    world = World(hold_requests=1)
    held = [world.hold()]
    assert code(world.ask()) == "queue_full"
    for most in (3, 2):
        service = world.state.snapshot.services[KEY]
        world.state.put_service(replace(service, hold_requests=most, hold_bytes=1000 * most))
        held += [world.hold() for _ in range(most - len(held))]
        refused = world.ask()
        assert isinstance(refused, Refusal) and f"({most} requests" in refused.message
    assert not any(one.done() for one in held)


async def test_a_higher_priority_goes_first_and_displaces_a_lower_one() -> None:
    world = World(hold_requests=2, priorities=((("x-priority", "high"),),), pod_limit=1)
    first, second = world.hold(), world.hold()
    urgent = world.hold(x_priority="high")
    assert code(await second) == "displaced" and not first.done()
    world.up(POD)
    assert isinstance(await urgent, Pick)
    await asyncio.sleep(0)
    assert not first.done()
    world.ledger.close("r3")
    world.holding.release()
    assert isinstance(await first, Pick)


async def test_a_class_has_bounds_of_its_own() -> None:
    """A crowd of jobs neither fills the queue nor waits as long as people do."""
    classes = ((("x-class", "people"),), (("x-class", "jobs"),))
    world = World(
        hold_seconds=0.0,
        hold_requests=4,
        priorities=classes,
        priority_names=("people", "jobs"),
        priority_bounds=(QueueBounds(30.0), QueueBounds(0.01, 2, 300)),
    )
    assert code(world.ask()) == "no_ready_pod", "a request of no class waits as long as the service's queue states"
    jobs = [world.hold(x_class="jobs") for _ in range(2)]
    refused = world.ask(x_class="jobs")
    assert isinstance(refused, Refusal) and (refused.status, refused.code) == (429, "queue_full")
    assert "class 'jobs' of team/chat (2 requests / " in refused.message and refused.retry_after
    people = world.hold(x_class="people")
    assert [code(await one) for one in jobs] == ["no_ready_pod"] * 2 and not people.done()
    await asyncio.sleep(0)
    assert code(world.ask({"prompt": "x" * 300}, x_class="jobs")) == "queue_full"
    world.holding.hear("other", {"team/chat": [[1, 1, 100, 1]]}, whole=True)
    world.hold(x_class="jobs")
    assert code(world.ask(x_class="jobs")) == "queue_full", "what waits in other gateways counts"
    world.holding.forget("other")
    world.hold(x_class="jobs")


async def test_pods_at_their_limit_hold_what_comes_and_nobody_overtakes() -> None:
    world = World(pod_limit=2)
    old = Pod("2", "p2", "team", "chat", "old", "10.0.0.2:8000")  # without weight: its room is no room
    world.up(POD, old)
    assert isinstance(world.ask(), Pick) and isinstance(world.ask(), Pick)
    waiting = [world.hold(), world.hold()]
    assert world.woken == []  # there are pods: nothing to wake
    world.ledger.close("r1")
    late = world.hold()  # a place is free, but two came before
    world.holding.release()
    await asyncio.sleep(0)
    assert waiting[0].done() and not waiting[1].done() and not late.done()
    for name in ("r2", "r3"):
        world.ledger.close(name)
    world.holding.release()
    assert isinstance(await late, Pick)
    assert world.ledger.in_flight(POD) == 2


async def test_tenants_share_what_becomes_free() -> None:
    world = World(pod_limit=1, tenant_header="x-tenant")
    world.up(POD)
    world.ask()
    body = {"prompt": "x" * 2000, "max_tokens": 500}
    crowd = [world.hold(body, x_tenant="crowd") for _ in range(10)]
    single = world.hold(body, x_tenant="single")
    for _ in range(4):
        for number in range(1, world.count + 1):
            world.ledger.close(f"r{number}")
        world.holding.release()
        await asyncio.sleep(0)
    assert single.done() and sum(one.done() for one in crowd) <= 3


async def test_who_gives_up_leaves_no_trace() -> None:
    world = World()
    held = world.hold()
    held.cancel()
    await asyncio.sleep(0)
    assert world.holding.queued_by_service() == {}
    world.up(POD)
    assert len(world.ledger) == 0


async def test_a_sleeping_service_is_called_for_although_its_fallback_answers() -> None:
    world = World(fallback="small")
    world.state.put_service(Service("team", "small", "s", (("c", 100),)))
    small = Pod("9", "s", "team", "small", "c", "10.0.0.9:8000")
    world.up(small)
    answers = [world.ask(), world.ask()]
    assert [answer.fallback for answer in answers if isinstance(answer, Pick)] == ["team/small"] * 2
    assert world.woken == [KEY] and world.holding.held(KEY) == 1
    world.up(small, POD)
    assert world.holding.held(KEY) == 0 and isinstance(world.ask(), Pick)


async def test_a_stopping_gateway_refuses_what_it_holds() -> None:
    world = World()
    held = world.hold()
    world.holding.close()
    answer = await held
    assert isinstance(answer, Refusal) and (answer.status, answer.code) == (503, "gateway_draining")
    assert code(world.ask()) == "no_ready_pod"


async def test_a_rate_limit_is_charged_once_however_long_the_request_waits() -> None:
    world = World(limits=(RateLimit("authorization", 2, 0),))
    held = world.hold(authorization="k")
    for _ in range(5):
        world.holding.release()
    world.up(POD)
    assert isinstance(await held, Pick) and isinstance(world.ask(authorization="k"), Pick)
    refused = world.ask(authorization="k")
    assert isinstance(refused, Refusal) and (refused.status, refused.code) == (429, "rate_limit_exceeded")
    assert refused.retry_after == 30
    assert isinstance(world.ask(authorization="other"), Pick)


async def test_a_subset_without_a_ready_pod_is_a_503_at_once_and_wakes_the_service() -> None:
    world = World(pod_limit=1)
    world.subset = frozenset({"10.9.9.9:8000"})
    assert code(world.ask()) == "no_pod_in_subset" and world.woken == [KEY]
    world.up(POD)
    answer = world.ask()
    assert isinstance(answer, Refusal) and (answer.status, answer.code) == (503, "no_pod_in_subset")
    assert answer.retry_after and world.holding.queued_by_service() == {} and world.holding.held(KEY) == 0
    world.subset = None
    assert isinstance(world.ask(), Pick)


async def test_a_request_whose_only_pod_is_busy_blocks_no_other() -> None:
    second = Pod("2", "p2", "team", "chat", "a", "10.0.0.2:8000")
    world = World(pod_limit=1)
    world.up(POD, second)
    world.subset = frozenset({POD.address})
    assert isinstance(world.ask(), Pick)
    bound = world.hold()  # only for the pod that is busy
    world.subset = None
    assert isinstance(world.ask(), Pick)  # the second pod is free
    held = [world.hold(), world.hold()]
    world.ledger.close("r3")
    world.holding.release()
    await asyncio.sleep(0)
    assert held[0].done() and not bound.done() and not held[1].done()
    world.ledger.close("r1")
    world.holding.release()
    assert isinstance(await bound, Pick)
    await asyncio.sleep(0)
    assert not held[1].done()


async def test_a_held_subset_whose_pod_goes_is_answered_and_the_next_one_goes_on() -> None:
    world = World(pod_limit=1)
    world.up(POD)
    world.subset = frozenset({POD.address})
    assert isinstance(world.ask(), Pick)
    bound = world.hold()
    world.subset = None
    free = world.hold()
    world.up(Pod("2", "p2", "team", "chat", "a", "10.0.0.2:8000"))
    assert code(await bound) == "no_pod_in_subset" and isinstance(await free, Pick)


async def test_forced_and_other_requests_do_not_wait_for_each_other() -> None:
    canary = Pod("2", "p2", "team", "chat", "b", "10.0.0.2:8000")
    options: dict[str, object] = {"canary": "b", "canary_headers": (("x-canary", "always"),)}
    world = World(pod_limit=1, **options)
    world.up(POD, canary)
    assert isinstance(world.ask(), Pick)
    waiting = world.hold()
    forced = world.ask(x_canary="always")  # the canary has no weight, and is free
    assert isinstance(forced, Pick) and forced.revision == "b"
    second = world.hold(x_canary="always")
    world.ledger.close("r1")
    world.holding.release()
    assert isinstance(await waiting, Pick) and not second.done()


async def test_a_class_is_capped_while_it_or_a_more_important_one_waits_and_a_more_important_one_is_not() -> None:
    canary = Pod("2", "p2", "team", "chat", "b", "10.0.0.2:8000")
    world = World(
        pod_limit=1,
        canary="b",
        canary_headers=(("x-canary", "yes"),),
        priorities=((("x-class", "high"),), (("x-class", "middle"),)),
        peak_output_tokens=64,
    )
    world.up(POD, canary)
    assert isinstance(world.ask(x_canary="yes"), Pick)
    body = {"model": "smol", "max_tokens": 900}
    waiting = world.hold(x_canary="yes", x_class="middle")
    caps = {}
    for name in ("high", "middle", "low"):
        pick = world.ask(body, x_class=name)
        assert isinstance(pick, Pick)
        caps[name] = pick.peak_output_tokens
        world.ledger.close(f"r{world.count}")
    assert caps == {"high": 0, "middle": 64, "low": 64}
    waiting.cancel()
    await asyncio.sleep(0)
    pick = world.ask(body)
    assert isinstance(pick, Pick) and not pick.edits
