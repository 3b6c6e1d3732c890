"""Kills gateways while requests run through them, and counts what their clients notice.

Three whole gateways (Envoy and picker, processes of their own that tell each other their loads), four engines. One gateway after
another is killed at once, with its Envoy, and begins again two seconds later. Clients do what the clients of OpenAI's API do: a request
whose connection breaks before the first byte of its answer is sent again, to another gateway, as a Service of Kubernetes leads it
there. An answer that has begun ends with its gateway: nobody else has its connection. Those are counted apart.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from dataclasses import asdict, dataclass

import aiohttp
import uvloop
from bench.gatewaybench.churn import Engines
from bench.gatewaybench.systems import ROOT, environment

ENGINE_PORTS = (19211, 19212, 19213, 19214)
GATEWAYS = {19181: 19281, 19182: 19282, 19183: 19283}  # internal ports by the ports of clients
RATE = 150.0  # requests a second over all gateways
DOWN_SECONDS = 2.0
BODY = json.dumps({"model": "m", "prompt": "hello", "max_tokens": 4, "stream": True}).encode()


@dataclass
class Counts:
    answered: int = 0
    failed: int = 0  # without an answer after three tries
    cut: int = 0  # the answer had begun
    triedAgain: int = 0  # noqa: N815 - as in JSON


class Gateways:
    def __init__(self) -> None:
        self._running: dict[int, asyncio.subprocess.Process] = {}

    async def start(self, port: int) -> None:
        peers = ",".join(str(internal) for other, internal in GATEWAYS.items() if other != port)
        process = self._running[port] = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.gatewaybench.serve", "--port", str(port), "--workers", "1",
            "--internal-port", str(GATEWAYS[port]), "--engines", ",".join(map(str, ENGINE_PORTS)), "--peers", peers,
            cwd=ROOT, env=environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        if process.stdout is None or (await process.stdout.readline()).strip() != b"serving":
            raise RuntimeError(f"the gateway on port {port} did not start")

    async def kill(self, port: int) -> None:
        process = self._running.pop(port)
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    async def stop(self) -> None:
        for port in list(self._running):
            await self.kill(port)


async def _ask(session: aiohttp.ClientSession, ports: list[int], counts: Counts) -> None:
    for attempt, port in enumerate(ports):
        begun = False
        counts.triedAgain += attempt > 0
        try:
            async with session.post(f"http://127.0.0.1:{port}/team/chat/v1/completions", data=BODY) as response:
                response.raise_for_status()
                async for _ in response.content.iter_any():
                    begun = True
        except (aiohttp.ClientError, OSError):
            if begun:
                counts.cut += 1
                return
        else:
            counts.answered += 1
            return
    counts.failed += 1


async def _load(requests: int, counts: Counts, rng: random.Random) -> None:
    """Send requests at RATE, whatever the answers do."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as group:
        for _ in range(requests):
            group.create_task(_ask(session, rng.sample(list(GATEWAYS), len(GATEWAYS)), counts))
            await asyncio.sleep(rng.expovariate(RATE))


async def _kills(requests: int, every_seconds: float) -> dict[str, object]:
    engines, gateways, counts, killed = Engines(), Gateways(), Counts(), 0
    try:
        await asyncio.gather(*(engines.start(port) for port in ENGINE_PORTS))
        await asyncio.gather(*(gateways.start(port) for port in GATEWAYS))
        load = asyncio.create_task(_load(requests, counts, random.Random(1)))
        ports = list(GATEWAYS)
        while not load.done():
            await asyncio.wait([load], timeout=every_seconds)
            if load.done():
                break
            port = ports[killed % len(ports)]
            await gateways.kill(port)
            killed += 1
            await asyncio.sleep(DOWN_SECONDS)
            await gateways.start(port)
        await load
        return {"requests": requests, "kills": killed, **asdict(counts)}
    finally:
        await gateways.stop()
        engines.stop()


def kills(quick: bool) -> dict[str, object]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_kills(1_000, 1.0) if quick else _kills(10_000, 4.0))
