"""Protects the queue of decisions: soonest first, an edit before everything that only time has made due, one worker at a time for a service, what comes meanwhile is done again,
and services of one namespace that take long leave workers for the others."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from pagefleet_contract.names import KIND
from pagefleet_operator.controller import MAX_OF_A_TENANT, Queue
from pagefleet_operator.kube.store import ServiceKey, Store
from pagefleet_operator.main import enqueue
from pagefleet_operator.web.own_metrics import Metrics


async def test_a_service_that_is_due_again_while_it_is_worked_on_is_worked_on_again_and_never_twice_at_once() -> None:
    chance, working, done = random.Random(3), set[ServiceKey](), Counter[ServiceKey]()
    expected = Counter[ServiceKey]({("ns", f"s{number}"): chance.randint(1, 4) for number in range(200)})
    all_done = asyncio.Event()

    async def work(key: ServiceKey) -> float | None:
        assert key not in working
        working.add(key)
        done[key] += 1
        if done[key] < expected[key]:
            queue.add(key, chance.choice((0.0, 0.001, 60.0)))
            queue.add(key, 0.001)  # the sooner one counts
        await asyncio.sleep(chance.choice((0.0, 0.0005, 0.002)))
        working.discard(key)
        if done == expected:
            all_done.set()
        return None

    queue = Queue(work, Metrics())
    for key in expected:
        queue.add(key, chance.random() / 100)
    running = asyncio.create_task(queue.run())
    async with asyncio.timeout(10):
        await all_done.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert done == expected


async def test_the_depth_of_the_queue_is_of_those_that_are_due_while_this_operator_decides() -> None:
    started, decided, all_started, all_decided = list[str](), list[str](), asyncio.Event(), asyncio.Event()
    metrics, leads, release = Metrics(), asyncio.Event(), asyncio.Event()

    async def work(key: ServiceKey) -> float | None:
        started.append(key[1])
        if len(started) == MAX_OF_A_TENANT:
            all_started.set()
        await release.wait()
        decided.append(key[1])
        if len(decided) == 20:
            all_decided.set()
        return 60.0

    def depth() -> float | None:
        return metrics.registry.get_sample_value("pagefleet_operator_queue_depth")

    queue = Queue(work, metrics)
    for number in range(20):
        queue.add(("ns", f"due-{number}"), first=number == 0)
    for number in range(100):
        queue.add(("ns", f"idle-{number}"), 60.0)
    running = asyncio.create_task(queue.run(leads))
    assert depth() == 0, "it stands by"
    async with asyncio.timeout(10):
        leads.set()
        await all_started.wait()
        assert depth() == 20 - MAX_OF_A_TENANT
        release.set()
        await all_decided.wait()
    assert depth() == 0, "each is due again in a minute"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_thousand_waiting_services_are_worked_on_in_the_order_in_which_they_are_due() -> None:
    order, all_done = list[int](), asyncio.Event()

    async def work(key: ServiceKey) -> float | None:
        order.append(int(key[1]))
        if len(order) == 1000:
            all_done.set()
        return 60.0

    queue = Queue(work, Metrics())
    numbers = list(range(1000))
    random.Random(5).shuffle(numbers)
    for number in numbers:
        queue.add(("ns", str(number)), number - 2000.0)
    running = asyncio.create_task(queue.run())
    async with asyncio.timeout(10):
        await all_done.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert order == sorted(order)


async def test_an_edit_is_decided_before_services_that_have_waited_for_minutes() -> None:
    """Also before one of which only the status has changed."""
    order, all_done = list[str](), asyncio.Event()

    async def work(key: ServiceKey) -> float | None:
        order.append(key[1])
        if len(order) == 102:
            all_done.set()
        return None

    queue, store = Queue(work, Metrics()), Store()
    for number in range(100):
        queue.add(("ns", f"s{number}"), number - 600.0)
    for name, observed in (("written", 2), ("edited", 1)):
        metadata = {"namespace": "ns", "name": name, "generation": 2, "resourceVersion": "7"}
        store.upsert(KIND, {"metadata": metadata, "status": {"observedGeneration": observed}})
        enqueue(queue, store, (KIND, "ns", name))
    running = asyncio.create_task(queue.run())
    async with asyncio.timeout(10):
        await all_done.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (order[0], order[-1]) == ("edited", "written")


async def test_services_of_one_namespace_that_take_long_leave_workers_for_the_others() -> None:
    """100 services of a tenant never end; all of the others are worked on, and the tenant's go on when they can."""
    begun, hostile, others, all_done = Counter[str](), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(key: ServiceKey) -> float | None:
        begun[key[0]] += 1
        if key[0] == "hostile":
            await hostile.wait()
        if begun["others"] == 50:
            others.set()
        if begun["hostile"] == 100:
            all_done.set()
        return None

    queue = Queue(work, Metrics())
    for number in range(100):
        queue.add(("hostile", f"s{number}"), -10.0)
    for number in range(50):
        queue.add(("others", f"s{number}"))
    running = asyncio.create_task(queue.run())
    async with asyncio.timeout(10):
        await others.wait()
        assert begun["hostile"] == MAX_OF_A_TENANT
        hostile.set()
        await all_done.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
