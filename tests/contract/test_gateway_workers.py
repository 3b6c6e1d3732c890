"""Several threads of Envoy: what the picker decides holds on each of them, and each knows a pod before the picker names it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import aiohttp
from support.gateway.fleet import CANARY, STABLE, Fleet, running

WORKERS = 4
CLIENTS = 40  # connections; the kernel spreads them over the threads: that one gets none has odds of 1 in 25,000


def threads(fleet: Fleet) -> int:
    process = fleet.gateway.proxy.process
    if process is None:
        raise RuntimeError("Envoy does not run")
    names = [file.read_text() for file in Path(f"/proc/{process.pid}/task").glob("*/comm")]
    return sum(name.startswith("wrk:worker") for name in names)


async def ask(fleet: Fleet, clients: list[aiohttp.ClientSession]) -> Counter[tuple[int, str | None]]:
    """One request on every client's own connection, all at once: how often which status and revision answered."""

    async def one(client: aiohttp.ClientSession) -> tuple[int, str | None]:
        body = {"model": "smol", "messages": [{"role": "user", "content": "hello"}]}
        async with client.post(f"{fleet.url}/team/chat/v1/chat/completions", json=body) as response:
            await response.read()
            return response.status, response.headers.get("x-pagefleet-revision")

    return Counter(await asyncio.gather(*(one(client) for client in clients)))


async def test_a_split_is_exact_and_new_pods_are_met_at_once_on_every_thread() -> None:
    async with running(workers=WORKERS) as fleet:
        assert threads(fleet) == WORKERS
        clients = [aiohttp.ClientSession() for _ in range(CLIENTS)]
        for client in clients:
            fleet.stack.push_async_callback(client.close)
        await fleet.engine(STABLE)
        await fleet.engine(CANARY)
        fleet.serve((STABLE, 90), (CANARY, 10))
        seen: Counter[tuple[int, str | None]] = Counter()
        for _ in range(10):
            seen += await ask(fleet, clients)
        assert seen == {(200, STABLE): 360, (200, CANARY): 40}
        for number in range(5):
            revision = f"{number:08d}"
            fleet.serve((revision, 100))
            # It returns when the picker may name the pod: from then on every thread must know it.
            await fleet.engine(revision)
            assert await ask(fleet, clients) == {(200, revision): CLIENTS}
        await fleet.windows(requests=CLIENTS * 15)
        assert len(fleet.lines) == CLIENTS * 15  # no line of the access log is lost or torn
