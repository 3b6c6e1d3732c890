"""The gateway's time to the first token beside a client's own clock, request by request, for each kind of engine."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

import aiohttp
import uvloop
from bench.gatewaybench.stub import HEADERS
from bench.gatewaybench.systems import ROOT, environment
from bench.gatewaybench.traffic import engines

from pagefleet_gateway.app import Gateway
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.settings import Settings

PORTS = (19301, 19302, 19303, 19304)
GATEWAY_PORT = 19380
FIRST_MS = 400
RATE = 40.0  # requests a second
PATH = "/team/chat/v1/completions"


async def client(requests: int) -> dict[str, float]:
    """Stream, open loop. Return the seconds to the first token by request id, by this process's clock."""
    body = json.dumps({"model": "m", "prompt": "hi", "max_tokens": 3, "stream": True}).encode()
    felt: dict[str, float] = {}

    async def ask(http: aiohttp.ClientSession) -> None:
        begun = time.perf_counter()
        async with http.post(f"http://127.0.0.1:{GATEWAY_PORT}{PATH}", data=body) as answer:
            async for line in answer.content:
                if b'"text"' in line:
                    felt.setdefault(answer.headers["x-request-id"], time.perf_counter() - begun)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        tasks = []
        for _ in range(requests):
            tasks.append(asyncio.create_task(ask(http)))
            await asyncio.sleep(random.expovariate(RATE))
        await asyncio.gather(*tasks)
    return felt


async def _compared(requests: int) -> dict[str, object]:
    state, measured = State(), dict[str, float]()

    def emit(line: bytes) -> None:
        document = json.loads(line)
        if document["code"] == 200 and document["ttft_us"] is not None:
            measured[document["request_id"]] = float(document["ttft_us"]) / 1e6

    settings = Settings(port=GATEWAY_PORT, internal_port=0, address="127.0.0.1", settle_seconds=0, drain_seconds=1)
    gateway = Gateway(settings, state, emit)
    try:
        state.replace_pods(Pod(f"u{port}", f"p{port}", "team", "chat", "a", f"127.0.0.1:{port}") for port in PORTS)
        state.put_service(Service("team", "chat", "m", (("a", 100),)))
        await gateway.start()
        async with asyncio.timeout(30):
            while not state.snapshot.pods:
                await asyncio.sleep(0.02)
        command = [sys.executable, "-m", "bench.firsttokenbench.truth", str(requests)]
        asking = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=environment(), stdout=asyncio.subprocess.PIPE
        )
        felt: dict[str, float] = json.loads((await asking.communicate())[0])
        async with asyncio.timeout(10):
            while len(measured) < requests:
                await asyncio.sleep(0.05)
    finally:
        await gateway.close()
    errors = sorted(abs(measured[name] - seconds) for name, seconds in felt.items())
    # A request is within its limit when this is 1 or less.
    excess = sorted(abs(measured[name] - seconds) / max(0.005, 0.05 * seconds) for name, seconds in felt.items())
    at = int(len(errors) * 0.95)
    return {
        "requests": len(felt),
        "clientMs": round(sorted(felt.values())[len(felt) // 2] * 1e3, 1),
        "errorMs": {"p50": round(errors[len(errors) // 2] * 1e3, 2), "p95": round(errors[at] * 1e3, 2)},
        "errorOverLimit": round(excess[at], 3),
    }


def truth(quick: bool) -> dict[str, object]:
    shown: dict[str, object] = {}
    for headers in HEADERS:
        arguments = ("--first-ms", str(FIRST_MS), "--headers", headers)
        with engines(PORTS, *arguments), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            shown[headers] = runner.run(_compared(80 if quick else 600))
    return shown


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as own:
        print(json.dumps(own.run(client(int(sys.argv[1])))))
