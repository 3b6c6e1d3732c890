"""InferenceObjectives: protects which requests have the priority of one, its place among the classes of the service and in the
engine, that requests of negative priority give way under load, and that gateways understand each other about such classes."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_contract.engine_metrics import HIGHER_FIRST, LOWER_FIRST
from pagefleet_gateway.cluster.engines import Engine
from pagefleet_gateway.cluster.readings import Readings
from pagefleet_gateway.cluster.service import OBJECTIVE_HEADER, QueueBounds, Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.holding.elsewhere import MAX_CLASSES, Elsewhere, Waiting
from pagefleet_gateway.holding.holding import Holding
from pagefleet_gateway.holding.shares import Shares, tenant_of
from pagefleet_gateway.picking.classes import engine_priority
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.picking.routing import Refusal
from pagefleet_gateway.watching.objectives import Objective, objective_from
from pagefleet_gateway.watching.pools import Pools

PODS = tuple(Pod(str(number), f"p{number}", "team", "chat", "a", f"10.0.0.{number}:8000") for number in (1, 2))
CLASSES = {
    "priorities": (((("x-tier", "gold"),)), ((("x-tier", "silver"),))),
    "priority_names": ("gold", "silver"),
    "priority_bounds": (QueueBounds(), QueueBounds(requests=1)),
}
PRIORITIES = (("batch", -1), ("best", 10), ("like-silver", 1), ("plain", 0), ("trash", -5))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


def objective(name: str, priority: object = None, pool: str = "chat", **reference: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"poolRef": {"name": pool, **reference}}
    if priority is not None:
        spec["priority"] = priority
    return {"metadata": {"namespace": "team", "name": name}, "spec": spec}


def pool(name: str, picker: str = "picker", **labels: str) -> dict[str, Any]:
    spec = {
        "selector": {"matchLabels": labels or {"pagefleet.io/service": name}},
        "targetPorts": [{"number": 9000}],
        "endpointPickerRef": {"name": picker, "port": {"number": 9003}},
    }
    return {"metadata": {"namespace": "team", "name": name}, "spec": spec}


def named(name: str) -> dict[str, str]:
    return {OBJECTIVE_HEADER: name}


def test_an_objective_is_read_with_the_defaults_of_its_schema() -> None:
    assert objective_from(objective("a", 7)) == Objective("team", "a", "chat", 7)
    assert objective_from(objective("a", -(2**31))) == Objective("team", "a", "chat", -(2**31) + 1)
    for unset in (None, "7", True):
        assert objective_from(objective("a", unset)) == Objective("team", "a", "chat", 0)
    own = {"group": "inference.networking.k8s.io", "kind": "InferencePool"}
    assert objective_from(objective("a", 7, **own)) == Objective("team", "a", "chat", 7)
    assert objective_from(objective("a", 7, group="inference.networking.x-k8s.io")) is None
    assert objective_from(objective("a", 7, kind="Service")) is None
    assert objective_from(objective("a", 7, pool="")) is None


@settings(max_examples=200)
@given(JSON, JSON)
def test_any_json_is_an_objective_or_none(metadata: Any, spec: Any) -> None:
    pools, raw = Pools(State(), "picker"), {"metadata": metadata, "spec": spec}
    pools.put_objective(raw)
    pools.replace_objectives([raw])
    pools.remove_objective(raw)


def test_a_request_has_the_priority_of_an_objective_of_its_own_pool_only() -> None:
    state = State()
    state.put_service(Service("team", "chat", "smol", (("a", 100),)))
    pools = Pools(state, "picker")

    def numbers(service: str) -> dict[str, int]:
        known = state.snapshot.services[("team", service)]
        return {name: number for name in names if (number := known.objective_number(named(name))) is not None}

    names = ("own", "others", "nobodys")
    for raw in (objective("own", 3), objective("others", 4, "qwen"), objective("nobodys", 5, "gone")):
        pools.put_objective(raw)
    assert numbers("chat") == {}  # no pool names this picker
    pools.put(pool("chat"))
    pools.put(pool("qwen", app="qwen"))
    pools.put(pool("gone", picker="another"))
    assert (numbers("chat"), numbers("~qwen")) == ({"own": 3}, {"others": 4})
    pools.put_objective(objective("own", 3, "qwen"))
    assert (numbers("chat"), numbers("~qwen")) == ({}, {"own": 3, "others": 4})
    state.put_service(Service("team", "chat", "smol", (("a", 50), ("b", 50))))
    pools.put_objective(objective("own", -3))
    assert numbers("chat") == {"own": -3}  # also of a service that was written again
    pools.remove_objective(objective("own"))
    assert numbers("chat") == {}
    pools.replace_objectives([objective("own", 1)])
    pools.put(pool("chat", picker="another"))
    assert (numbers("chat"), numbers("~qwen")) == ({}, {})
    pools.replace([pool("chat")])
    assert numbers("chat") == {"own": 1}
    pools.replace_objectives([])  # the kind is gone
    assert numbers("chat") == {}


def test_numbers_and_classes_are_one_order_and_a_number_that_is_a_class_is_that_class() -> None:
    service = Service("team", "chat", request_priorities=PRIORITIES, **CLASSES)  # type: ignore[arg-type]
    silver, gold = {"x-tier": "silver"}, {"x-tier": "gold"}
    order = [named("best"), gold, silver, {}, {"priority": "u=7"}, named("trash")]
    assert sorted(order, key=service.priority) == order
    same = [
        (named("like-silver"), silver),
        (named("plain"), {}),
        (named("unknown"), {}),
        (named("batch"), {"priority": "u=7"}),
    ]
    assert all(service.priority(one) == service.priority(other) for one, other in same)
    assert service.priority({**gold, **named("plain")}) == service.priority({})  # the objective decides
    assert service.priority({**gold, **named("unknown")}) == service.priority(gold)
    assert [service.class_name(one) for one in order] == ["", "gold", "silver", "", "", ""]
    assert [service.bounds_of(service.priority(one)).requests for one in order] == [0, 0, 1, 0, 0, 0]
    assert [service.is_sheddable(one) for one in order] == [False] * 5 + [True]


@pytest.mark.parametrize(("order", "sign"), [(HIGHER_FIRST, 1), (LOWER_FIRST, -1)])
@pytest.mark.parametrize("classes", [{}, CLASSES])
def test_the_engine_gets_the_objectives_number(order: str, sign: int, classes: dict[str, Any]) -> None:
    service = Service("team", "chat", request_priorities=PRIORITIES, **classes)
    pods = [Pod("1", "p", "team", "chat", "a", "10.0.0.1:8000", engine=Engine(priority=order))]
    for name, number in PRIORITIES:
        assert engine_priority(service, service.priority(named(name)), pods) == sign * number
    assert engine_priority(service, service.priority({}), pods) == 0  # whatever the client's own body says
    assert engine_priority(service, service.priority(named("best")), PODS) is None  # these take no priority


class World:
    def __init__(self, **options: object) -> None:
        self.state, self.ledger, self.readings = State(), Ledger(), Readings()
        self.picker = Picker(self.state, self.ledger, random.Random(1), self.readings)
        self.holding = Holding(self.picker, lambda: 0.0, lambda _: None)
        self.state.set_request_priorities({("team", "chat"): PRIORITIES})
        self.state.put_service(Service("team", "chat", "smol", **{"weights": (("a", 100),), **options}))  # type: ignore[arg-type]
        self.count = 0

    def serve(self, *pods: Pod) -> None:
        self.state.replace_pods(pods)
        self.state.confirm(pods)

    def ask(self, name: str = "") -> Pick | Refusal | asyncio.Future[Pick | Refusal]:
        self.count += 1
        headers = named(name) if name else {}
        return self.holding.decide(Request(f"r{self.count}", "POST", "/team/chat/v1/completions", headers))

    def wait(self, name: str = "") -> asyncio.Future[Pick | Refusal]:
        answer = self.ask(name)
        assert isinstance(answer, asyncio.Future)
        return answer

    def code(self, name: str = "") -> str:
        answer = self.ask(name)
        return answer.code if isinstance(answer, Refusal) else type(answer).__name__


async def test_a_sheddable_request_is_dropped_while_every_engine_has_requests_waiting() -> None:
    world = World()
    world.serve(*PODS)
    assert world.code("batch") == "Pick"
    for pod, codes in zip(PODS, ("Pick", "sheddable_dropped"), strict=True):
        world.readings.put(pod, b"pagefleet_num_requests_waiting 2\n", 0.0)
        assert world.code("batch") == codes
    assert [world.code(name) for name in ("", "plain", "best", "unknown", "trash")] == ["Pick"] * 4 + [
        "sheddable_dropped"
    ]
    dropped = world.ask("batch")
    assert isinstance(dropped, Refusal) and (dropped.status, dropped.retry_after) == (429, 1)


async def test_a_sheddable_request_does_not_wait_for_room_and_others_go_by_their_numbers() -> None:
    world = World(pod_limit=1, hold_seconds=60.0)
    world.serve(PODS[0])
    assert isinstance(world.ask(), Pick)
    assert world.code("batch") == "sheddable_dropped"
    held = {name: world.wait(name) for name in ("plain", "best", "like-silver")}
    assert world.code("batch") == "sheddable_dropped"
    for running, name in (("r1", "best"), ("r4", "like-silver"), ("r5", "plain")):
        world.ledger.close(running)
        world.holding.release()
        assert name in {one for one, answer in held.items() if answer.done()}
        assert isinstance(held.pop(name).result(), Pick) and not any(answer.done() for answer in held.values())


async def test_a_sheddable_request_waits_for_a_service_that_has_no_pod_and_goes_last() -> None:
    world = World(hold_seconds=60.0)
    low, plain = world.wait("batch"), world.wait()
    world.serve(PODS[0])
    world.holding.release()
    assert isinstance(plain.result(), Pick) and isinstance(low.result(), Pick)


def test_gateways_tell_each_other_of_classes_before_the_first_one() -> None:
    elsewhere, key = Elsewhere(), ("team", "chat")
    rows = [Waiting(priority, 1, 10, 1, ("t",)).row for priority in (-8, 0)]
    elsewhere.update("other", {"team/chat": rows})
    assert (elsewhere.first(key), elsewhere.of_class(key, -8)) == (-8, (1, 10))
    for broken in ([0, -1, 0, 0], [0, 1, -1, 0], [0, 1, 0, -1], [1 << 60, 1, 0, 0]):
        elsewhere.update("other", {"team/chat": [broken]})
        assert not elsewhere.waits(key)
    own, other, tenant = Shares(), Shares(), tenant_of("a")
    own.charge(-8, tenant, 50)
    other.hear(own.take_news(), whole=False)
    assert other.of(-8, tenant) == 50
    for number in range(MAX_CLASSES + 1):
        other.charge(number, tenant, 1)
    assert other.of(-8, tenant) == 0 and other.of(MAX_CLASSES, tenant) == 1
