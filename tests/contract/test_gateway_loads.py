"""Two real gateways (Envoy and picker) tell each other their loads and prefixes over their internal ports.

Protects that a crowd which comes through both does not run to one pod; that the beginning of a prompt is sent to the pod that
has it, whichever gateway sent it there; that a pod which fails at one gateway is ejected by both, that the bound of waiting requests and
their priorities hold for both together; that the requests of a gateway which stops, or whose messages cease, are forgotten; and
that only gateway pods may listen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import pytest
from support.gateway.fleet import STABLE, Engine, Fleet, running, until

from pagefleet_contract.addresses import every_address
from pagefleet_gateway.cluster.state import Pod
from pagefleet_gateway.sharing import quotas
from pagefleet_gateway.sharing.loads import PATH

ONE, TWO = "one", "two"


def address(fleet: Fleet, host: str = "127.0.0.1") -> str:
    return f"{host}:{fleet.gateway.internal_port}"


def in_flight(fleet: Fleet, pod: Pod) -> tuple[int, int]:
    """The gateway's own requests on a pod, and those of the others."""
    ledger = fleet.gateway.ledger
    return ledger.in_flight(pod), ledger.others.counts(pod.uid).requests


@asynccontextmanager
async def pair(engines: int, **options: object) -> AsyncIterator[tuple[Fleet, Fleet, list[Engine]]]:
    async with running(pod_name=ONE) as one, running(pod_name=TWO) as two:
        serving = [await one.engine(STABLE, **options) for _ in range(engines)]
        for fleet in (one, two):
            fleet.state.replace_pods([engine.pod() for engine in serving])
            fleet.serve((STABLE, 100))
        await until(lambda: all(engine.pod() in two.serving() for engine in serving))
        one.gateway.members.put(TWO, address(two))
        two.gateway.members.put(ONE, address(one))
        await until(lambda: all(fleet.gateway.loads.listeners == 1 for fleet in (one, two)))
        yield one, two, serving


async def stream(fleet: Fleet, prompt: str = "hello") -> aiohttp.ClientResponse:
    """Begin a stream; return when its first token is here."""
    body = {"model": "smol", "stream": True, "messages": [{"role": "user", "content": prompt}]}
    response = await fleet.http.post(f"{fleet.url}/team/chat/v1/chat/completions", json=body)
    assert response.status == 200
    assert await response.content.readline()
    return response


async def test_each_gateway_knows_the_requests_of_both_until_they_end() -> None:
    async with pair(1, gate=asyncio.Semaphore(0)) as (one, two, (engine,)):
        pod = engine.pod()
        answers = [await stream(one), await stream(two), await stream(two)]
        await until(lambda: (in_flight(one, pod), in_flight(two, pod)) == ((1, 2), (2, 1)))
        await until(lambda: all(fleet.gateway.ledger.counts(pod).waiting == 0 for fleet in (one, two)))
        assert engine.gate is not None
        for _ in range(6):
            engine.gate.release()
        for answer in answers:
            await answer.read()
        await until(lambda: (in_flight(one, pod), in_flight(two, pod)) == ((0, 0), (0, 0)))


async def test_gateways_that_listen_on_every_address_hear_each_other() -> None:
    """The default: a socket on `::` shows another gateway's IPv4 address as one of IPv6."""
    every = every_address()
    async with running(pod_name=ONE, address=every) as one, running(pod_name=TWO, address=every) as two:
        one.gateway.members.put(TWO, address(two))
        two.gateway.members.put(ONE, address(one))
        await until(lambda: all(fleet.gateway.loads.listeners == 1 for fleet in (one, two)))
        async with one.http.post(f"http://{address(two)}{quotas.PATH}", json={"pod": ONE, "buckets": []}) as answer:
            assert answer.status == 200


async def test_a_crowd_through_both_gateways_is_spread_evenly() -> None:
    async with pair(4, gate=asyncio.Semaphore(0)) as (one, two, engines):
        answers = []
        for number in range(24):  # each request comes after the gateways have told each other of the one before
            answers.append(await stream((one, two)[number % 2], f"{number:03} " + "z" * 3000))
            await until(partial(_all_know, (one, two), engines, number + 1))
        assert [len(engine.requests) for engine in engines] == [6, 6, 6, 6]
        for answer in answers:
            answer.close()


def _all_know(fleets: Sequence[Fleet], engines: Sequence[Engine], requests: int) -> bool:
    """Whether each gateway knows of so many requests in flight."""
    ledgers = [fleet.gateway.ledger for fleet in fleets]
    return all(sum(ledger.known_in_flight(engine.pod()) for engine in engines) == requests for ledger in ledgers)


async def _answered(fleet: Fleet, prompt: str) -> None:
    answer = await stream(fleet, prompt)
    await answer.read()


async def test_a_prompts_beginning_leads_to_the_pod_that_another_gateway_sent_it_to() -> None:
    async with pair(6) as (one, two, engines):
        beginning = "".join(f"paragraph {number}. " for number in range(200))
        await _answered(one, beginning + "What is it about?")
        (first,) = [engine for engine in engines if engine.requests]
        cache = first.pod().cache
        blocks = one.gateway.picker.prefixes.latest([cache], 1)
        await until(lambda: two.gateway.picker.prefixes.latest([cache], 1) == blocks)
        for question in ("Who wrote it?", "When?", "Why?"):
            await until(partial(_all_know, (one, two), engines, 0))
            await _answered(two, beginning + question)
        assert len(first.requests) == 4


@pytest.mark.parametrize("how", ["stops", "goes", "moves to where nobody answers"])
async def test_the_requests_of_a_gateway_that_is_silent_are_forgotten(how: str) -> None:
    async with pair(1, gate=asyncio.Semaphore(0)) as (one, two, (engine,)):
        pod = engine.pod()
        answer = await stream(one)
        await until(lambda: in_flight(two, pod) == (0, 1))
        match how:
            case "stops":
                answer.close()
                await one.gateway.close()
            case "goes":
                two.gateway.members.remove(ONE)
            case _:
                two.gateway.members.put(ONE, "127.0.0.1:1")
        await until(lambda: in_flight(two, pod) == (0, 0))
        if how != "stops":
            two.gateway.members.put(ONE, address(one))
            await until(lambda: in_flight(two, pod) == (0, 1))
        answer.close()


async def test_a_gateway_with_a_listener_stops_at_once() -> None:
    async with pair(1) as (one, two, _):
        began = time.monotonic()
        await one.gateway.close()
        assert time.monotonic() - began < 5
        await until(lambda: two.gateway.loads.listeners == 0)


async def test_only_gateway_pods_may_listen() -> None:
    async with pair(1) as (one, two, _), aiohttp.ClientSession() as http:
        url = f"http://{address(one)}{PATH}"
        two.gateway.members.remove(ONE)
        await until(lambda: one.gateway.loads.listeners == 0)
        one.gateway.members.put(TWO, address(two, host="127.0.0.9"))  # now this client's address is nobody's
        async with http.get(url) as response:
            assert response.status == 403
        async with http.post(url) as response:
            assert response.status == 405


async def test_the_limit_of_a_pod_counts_both_gateways_and_a_held_request_goes_when_the_other_s_has_ended() -> None:
    async with pair(1, gate=asyncio.Semaphore(0)) as (one, two, (engine,)):
        for fleet in (one, two):
            fleet.serve((STABLE, 100), pod_limit=2, hold_seconds=30.0, hold_requests=4)
        first, other = await stream(one), await stream(two)
        pod = engine.pod()
        await until(lambda: (in_flight(one, pod), in_flight(two, pod)) == ((1, 1), (1, 1)))
        held = asyncio.create_task(stream(one))
        await until(lambda: one.gateway.holding.held(("team", "chat")) == 1)
        assert len(engine.requests) == 2, "two of both gateways are as many as the pod may have"
        other.close()  # the other gateway's client leaves
        third = await held
        assert len(engine.requests) == 3
        assert engine.gate is not None
        for _ in range(6):
            engine.gate.release()
        for answer in (first, third):
            await answer.read()


KEY = ("team", "chat")
QUEUE: dict[str, object] = {
    "pod_limit": 1,
    "hold_seconds": 30.0,
    "hold_requests": 2,
    "priorities": ((("x-class", "high"),),),
    "priority_names": ("high",),
}


async def asked(fleet: Fleet, name: str) -> tuple[int, str]:
    """Ask for an answer as a class; its status and the code of its error."""
    status, answer, _ = await fleet.chat(headers={"x-class": name})
    error = answer.get("error")
    return status, str(error.get("code")) if isinstance(error, dict) else ""


def held(*fleets: Fleet) -> list[int]:
    return [fleet.gateway.holding.held(KEY) for fleet in fleets]


async def test_a_pod_that_fails_at_one_gateway_gets_no_requests_from_the_other() -> None:
    async with pair(3) as (one, two, engines):
        broken = engines[0]
        broken.status = 503
        while not broken.requests:
            assert (await asked(one, ""))[0] == 200
        await until(lambda: two.gateway.ledger.ejected(broken.pod(), time.monotonic()))
        before = len(broken.requests)
        for _ in range(12):
            assert (await asked(two, ""))[0] == 200
        assert len(broken.requests) == before
        three = two.gateway.members
        three.remove(ONE)
        three.put(ONE, address(one))
        await until(lambda: one.gateway.loads.listeners == 1)
        assert two.gateway.ledger.ejected(broken.pod(), time.monotonic())


async def test_the_bound_of_waiting_requests_holds_for_both_gateways_and_the_important_ones_displace_the_other_s() -> (
    None
):
    async with pair(1, gate=asyncio.Semaphore(0)) as (one, two, (engine,)):
        for fleet in (one, two):
            fleet.serve((STABLE, 100), **QUEUE)
        first = await stream(one)
        await until(partial(_all_know, (one, two), [engine], 1))
        low = [asyncio.create_task(asked(fleet, "low")) for fleet in (one, two)]
        await until(lambda: held(one, two) == [1, 1])
        await until(lambda: two.gateway.holding.held_elsewhere(KEY) == one.gateway.holding.held_elsewhere(KEY) == 1)
        assert await asked(one, "low") == (429, "queue_full")
        assert await asked(two, "low") == (429, "queue_full")
        high = [asyncio.create_task(asked(two, "high"))]  # displaces the one that waits here
        await until(lambda: low[1].done())
        await until(lambda: one.gateway.holding.held_elsewhere(KEY) == 1 and held(one, two) == [1, 1])
        high.append(asyncio.create_task(asked(two, "high")))  # displaces the one that waits at the other gateway
        assert [await answer for answer in low] == [(429, "displaced")] * 2
        await until(lambda: held(one, two) == [0, 2])
        first.close()
        assert [await answer for answer in high] == [(200, "")] * 2


async def test_a_more_important_request_of_the_other_gateway_goes_first() -> None:
    async with pair(1, gate=asyncio.Semaphore(0)) as (one, two, (engine,)):
        for fleet in (one, two):
            fleet.serve((STABLE, 100), **QUEUE | {"hold_requests": 9})
        first = await stream(one)
        await until(partial(_all_know, (one, two), [engine], 1))
        low = [asyncio.create_task(asked(one, "low")) for _ in range(2)]
        await until(lambda: held(one) == [2])
        high = [asyncio.create_task(asked(two, "high")) for _ in range(2)]
        await until(lambda: held(two) == [2] and one.gateway.holding.held_elsewhere(KEY) == 2)
        first.close()
        assert [await answer for answer in (*high, *low)] == [(200, "")] * 4
        classes = [request.headers["x-class"] for request in engine.requests[1:]]
        assert classes == ["high", "high", "low", "low"]


async def test_tenants_take_turns_over_both_gateways() -> None:
    """The crowd's requests wait in both gateways, the other tenant's in one. Each gets half of what becomes free, not a
    gateway's part of it."""
    async with pair(1, gate=asyncio.Semaphore(0)) as (one, two, (engine,)):
        for fleet in (one, two):
            fleet.serve((STABLE, 100), pod_limit=1, hold_seconds=60.0, hold_requests=64, tenant_header="x-tenant")
        first = await stream(one)
        await until(partial(_all_know, (one, two), [engine], 1))

        async def ask(fleet: Fleet, tenant: str) -> int:
            body = {"model": "smol", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1000}
            return (await fleet.chat(headers={"x-tenant": tenant}, json=body))[0]

        answers = [asyncio.create_task(ask(fleet, "crowd")) for fleet in (one, two) for _ in range(6)]
        await until(lambda: held(one, two) == [6, 6])
        answers += [asyncio.create_task(ask(two, "single")) for _ in range(6)]
        await until(lambda: held(two) == [12] and one.gateway.holding.held_elsewhere(KEY) == 12)
        first.close()
        assert [await answer for answer in answers] == [200] * 18
        tenants = [request.headers["x-tenant"] for request in engine.requests[1:]]
        assert 5 <= tenants[:12].count("single") <= 6, tenants
        assert 3 <= tenants[:8].count("single") <= 5, tenants
