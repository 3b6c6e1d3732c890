"""Protects clients when two gateways cannot hear each other, without either being told: both answer every request meanwhile, each by the
loads that it knows; and seconds after the network is whole again both know everything."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import aiohttp
from support.gateway.cable import cable
from support.gateway.fleet import STABLE, Fleet, running, until

from pagefleet_gateway.cluster.state import Pod
from pagefleet_gateway.sharing.loads import ALIVE_SECONDS, RETRY_SECONDS, SILENT_SECONDS

ONE, TWO = "one", "two"
REQUESTS = 12  # of each gateway during the partition


async def begin(fleet: Fleet) -> aiohttp.ClientResponse:
    """Begin a stream; return when its first token is here."""
    body = {"model": "smol", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    response = await fleet.http.post(f"{fleet.url}/team/chat/v1/chat/completions", json=body)
    assert response.status == 200 and await response.content.readline()
    return response


def known(fleet: Fleet, pod: Pod) -> tuple[int, int]:
    """Return the gateway's own requests on a pod, and those of the other."""
    ledger = fleet.gateway.ledger
    return ledger.in_flight(pod), ledger.others.counts(pod.uid).requests


async def test_gateways_that_do_not_hear_each_other_answer_everything_and_agree_soon_afterwards() -> None:
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(running(pod_name=name)) for name in (ONE, TWO)]
        engine = await one.engine(STABLE, gate=asyncio.Semaphore(0))
        gate, pod = engine.gate, engine.pod()
        assert gate is not None
        cables = [await stack.enter_async_context(cable(fleet.gateway.internal_port)) for fleet in (one, two)]
        for fleet in (one, two):
            fleet.state.replace_pods([pod])
            fleet.serve((STABLE, 100))
        one.gateway.members.put(TWO, f"127.0.0.1:{cables[1].port}")
        two.gateway.members.put(ONE, f"127.0.0.1:{cables[0].port}")
        await until(lambda: pod in two.serving() and one.gateway.loads.listeners == two.gateway.loads.listeners == 1)
        before = [await begin(one), await begin(two)]
        await until(lambda: known(one, pod) == known(two, pod) == (1, 1))

        for way in cables:
            way.cut()
        # None waits for the other gateway: each has its answer while nobody has noticed yet, and afterwards.
        during = await asyncio.gather(*(begin(fleet) for fleet in (one, two) for _ in range(REQUESTS)))
        await until(lambda: known(one, pod) == known(two, pod) == (1 + REQUESTS, 0), 3 * SILENT_SECONDS)
        during += [await begin(one)]

        for way in cables:
            way.mend()
        agreed = SILENT_SECONDS + RETRY_SECONDS + ALIVE_SECONDS
        await until(lambda: known(one, pod) == known(two, pod)[::-1] == (2 + REQUESTS, 1 + REQUESTS), agreed)
        for _ in range(3 * len(before + during)):
            gate.release()
        bodies = await asyncio.gather(*(answer.text() for answer in before + during))
        assert all(body.rstrip().endswith("data: [DONE]") for body in bodies)
        await until(lambda: known(one, pod) == known(two, pod) == (0, 0))
