"""What an operator measures in a fleet that serves: engines with a page of metrics at every pod's address, whose load is another at
every scrape, a gateway, and requests to all services in turn."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from faults.outages import GATEWAY_ADDRESS, GATEWAY_PORT, announced, gateway
from faults.runs import Ground
from support.cluster.own_plane import OwnPlane
from support.cluster.pod_engines import PodEngines

PREFIX = "10.245"  # Endpoints refuse the loopback's addresses
PER_SECOND = 20.0


@asynccontextmanager
async def serving(plane: OwnPlane, folder: Path, services: int) -> AsyncIterator[Counter[int]]:
    """Serve, and yield the number of answers by status; 0: no answer."""
    route = await asyncio.create_subprocess_exec("ip", "route", "replace", "local", f"{PREFIX}.0.0/16", "dev", "lo")
    if await route.wait():
        raise RuntimeError(f"{PREFIX}.0.0/16 cannot be served on this machine")
    ground, answers = Ground(plane.api, plane.layout, plane.node, folder), Counter[int]()
    async with announced(ground), gateway(ground, PodEngines(measured=True, busy=True)):
        asking = asyncio.create_task(_ask(services, answers))
        try:
            yield answers
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


async def _ask(services: int, answers: Counter[int]) -> None:
    """Begin PER_SECOND requests a second, for ever."""
    timeout = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
        for number in itertools.cycle(range(services)):
            group.create_task(_one(session, number, answers))
            await asyncio.sleep(1 / PER_SECOND)


async def _one(session: aiohttp.ClientSession, number: int, answers: Counter[int]) -> None:
    url = f"http://{GATEWAY_ADDRESS}:{GATEWAY_PORT}/scale/s{number}/v1/chat/completions"
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "hello"}]}
    status = 0
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with session.post(url, json=body) as answer:
            await answer.read()
            status = answer.status
    answers[status] += 1
