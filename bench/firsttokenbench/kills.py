"""Engines that are killed in the midst of a prompt after they have sent their headers, behind two gateways."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process

import uvloop
from bench.gatewaybench.systems import ROOT, environment

PORTS = tuple(range(19401, 19409))
GATEWAYS = (19480, 19481)
FIRST_MS = 60.0  # 30 to 90: the next attempt ends before the next kill, so two retries are enough
RATE = 60.0  # requests a second, at each gateway
EVERY = 0.25  # seconds from one kill to the next
PATH = "/team/chat/v1/completions"


async def program(*words: str) -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-m", *words, cwd=ROOT, env=environment(), stdout=PIPE)


class Engines:
    """The running engines' process ids by port."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.running: dict[int, int] = {}

    async def follow(self) -> None:
        if self._process.stdout is None:
            raise RuntimeError("the engines have no stdout")
        async for line in self._process.stdout:
            port, child = map(int, line.split())
            self.running[port] = child

    def kill(self, rng: random.Random) -> None:
        os.kill(self.running.pop(rng.choice(sorted(self.running))), signal.SIGKILL)


async def load(port: int, seconds: float) -> dict[str, object]:
    plan = {"port": port, "path": PATH, "rate": RATE, "seconds": seconds, "warm": 0.0, "small": True, "seed": port}
    process = await program("bench.gatewaybench.load", json.dumps(plan))
    measured: dict[str, object] = json.loads((await process.communicate())[0])
    return measured


async def _kills(times: int) -> dict[str, object]:
    processes: list[Process] = []
    retried = 0
    engines = Engines(await program("bench.firsttokenbench.engines", ",".join(map(str, PORTS)), "first", str(FIRST_MS)))
    following = asyncio.create_task(engines.follow())
    try:
        async with asyncio.timeout(60):
            while len(engines.running) < len(PORTS):
                await asyncio.sleep(0.05)
        for port in GATEWAYS:
            words = ("--port", str(port), "--engines", ",".join(map(str, PORTS)), "--workers", "1")
            processes.append(await program("bench.gatewaybench.serve", *words))
        for gateway in processes:
            if gateway.stdout is None or (await asyncio.wait_for(gateway.stdout.readline(), 60)).strip() != b"serving":
                raise RuntimeError("a gateway did not start")
        loads = [asyncio.create_task(load(port, times * EVERY + 2)) for port in GATEWAYS]
        await asyncio.sleep(1.0)
        rng = random.Random(1)
        for _ in range(times):
            engines.kill(rng)
            await asyncio.sleep(EVERY)
        results = await asyncio.gather(*loads)
        for gateway in processes:
            gateway.terminate()
            if gateway.stdout is not None:
                retried += int((await gateway.stdout.readline()).split()[1])
    finally:
        for process in (*processes, engines._process):
            if process.returncode is None:
                process.terminate()
            await process.wait()
        following.cancel()
    sums = {key: sum(int(str(one[key])) for one in results) for key in ("answered", "failed", "unanswered")}
    return {
        "kills": times,
        "gateways": len(GATEWAYS),
        "retried": retried,
        **sums,
        "statuses": [one["statuses"] for one in results],
    }


def kills(quick: bool) -> dict[str, object]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_kills(60 if quick else 1000))
