"""Kills pods and moves weights while requests run, and counts the requests that fail.

Envoy is real, and so is the picker in this process. Engines are processes that are killed while they hold requests without
a first token. Nothing reports a kill to the gateway: it has to detect it. Every kill and every weight change comes while
requests run.

`streams` has answers of 200 tokens. Two of eight pods die at once, and new ones come at other addresses a moment later, as after the
loss of a node. A stream that had begun on one of the two cannot go on, but its client must see that it has not ended well.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys

import uvloop
from bench.gatewaybench.systems import ROOT, environment

from pagefleet_gateway.app import Gateway
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.settings import Settings

PORTS = {"a": (19201, 19202, 19203, 19204), "b": (19205, 19206, 19207, 19208)}
GATEWAY_PORT = 19180
WEIGHTS = ((100, 0), (90, 10), (50, 50), (10, 90), (0, 100), (50, 50))
FIRST_MS = 40  # an engine's time to its first token: requests in it then die before one
TOKENS, INTERVAL_MS, DEAD, UNNOTICED_SECONDS = 200, 5, 2, 0.5
CUT = ("cut off", "ended with an error")  # how a client sees that a stream has not ended well


class Engines:
    """One process per pod; `kill` ends some at once."""

    def __init__(self, interval_ms: float = 0.0) -> None:
        self._interval = str(interval_ms)
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    async def start(self, port: int) -> None:
        command = [sys.executable, "-m", "bench.gatewaybench.stub", "--ports", str(port), "--first-ms", str(FIRST_MS),
                   "--interval-ms", self._interval]  # fmt: skip
        process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE)
        self._running[port] = process
        if process.stdout is None:
            raise RuntimeError("an engine has no stdout")
        line = await asyncio.to_thread(process.stdout.readline)
        if line.strip() != b"serving":
            raise RuntimeError(f"the engine on port {port} did not start")

    async def kill(self, *ports: int) -> None:
        """Kill them at once; nothing takes their addresses."""
        processes = [self._running.pop(port) for port in ports]
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)
        for process in processes:
            await asyncio.to_thread(process.wait)

    def stop(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


async def _churn(times: int, rate: float, seconds_each: float) -> dict[str, object]:
    state, engines = State(), Engines()
    settings = Settings(port=GATEWAY_PORT, internal_port=0, address="127.0.0.1", settle_seconds=0, drain_seconds=1)
    gateway = Gateway(settings, state, lambda _: None)
    every = [(revision, port) for revision, ports in PORTS.items() for port in ports]
    load: asyncio.subprocess.Process | None = None
    try:
        await asyncio.gather(*(engines.start(port) for _, port in every))
        state.replace_pods(pod(revision, port) for revision, port in every)
        serve(state, WEIGHTS[0])
        await gateway.start()
        async with asyncio.timeout(30):
            while len(state.snapshot.pods.get(("team", "chat"), {})) < len(PORTS):
                await asyncio.sleep(0.02)
        plan = {
            "port": GATEWAY_PORT,
            "path": "/team/chat/v1/completions",
            "rate": rate,
            "seconds": times * seconds_each + 2,
            "warm": 0.0,
            "small": True,
        }
        load = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.gatewaybench.load", json.dumps(plan),
            cwd=ROOT, env=environment(), stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        await asyncio.sleep(1.0)
        rng, weights = random.Random(1), itertools.cycle(WEIGHTS)
        hit = 0
        for _ in range(times):
            began = asyncio.get_running_loop().time()
            serve(state, next(weights))
            _, port = rng.choice(every)
            hit += gateway.ledger.in_flight(next(pod for pod in state.pods if pod.address.endswith(f":{port}")))
            await engines.kill(port)
            await engines.start(port)  # another takes its address
            await asyncio.sleep(max(0.0, began + seconds_each - asyncio.get_running_loop().time()))
        results = json.loads((await load.communicate())[0])
        outcomes = {key: results[key] for key in ("answered", "failed", "unanswered", "statuses")}
        return {"kills": times, "weightChanges": times, "inFlightWhenKilled": hit, **outcomes}
    finally:
        if load is not None and load.returncode is None:
            load.kill()
        await gateway.close()
        engines.stop()


async def _streams(times: int, rate: float, seconds_each: float) -> dict[str, object]:
    state, engines = State(), Engines(INTERVAL_MS)
    settings = Settings(port=GATEWAY_PORT, internal_port=0, address="127.0.0.1", settle_seconds=0, drain_seconds=1)
    gateway = Gateway(settings, state, lambda _: None)
    serving = [(revision, port) for revision, ports in PORTS.items() for port in ports]
    fresh = itertools.count(max(port for _, port in serving) + 1)
    load: asyncio.subprocess.Process | None = None
    try:
        await asyncio.gather(*(engines.start(port) for _, port in serving))
        state.replace_pods(pod(*one) for one in serving)
        serve(state, (50, 50))
        await gateway.start()
        async with asyncio.timeout(30):
            while len(state.snapshot.pods.get(("team", "chat"), {})) < len(PORTS):
                await asyncio.sleep(0.02)
        seconds = times * seconds_each + 2
        # No body comes twice: one whose request two engines died of in turn, without an answer between, is refused.
        plan = {"port": GATEWAY_PORT, "path": "/team/chat/v1/completions", "rate": rate, "seconds": seconds, "warm": 0.0,
                "small": True, "tokens": TOKENS, "bodies": round(2 * rate * seconds)}  # fmt: skip
        load = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.gatewaybench.load", json.dumps(plan),
            cwd=ROOT, env=environment(), stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        await asyncio.sleep(1.0)
        rng, hit = random.Random(1), 0
        for _ in range(times):
            began = asyncio.get_running_loop().time()
            dying = rng.sample(serving, DEAD)
            hit += sum(gateway.ledger.in_flight(pod(*one)) for one in dying)
            await engines.kill(*(port for _, port in dying))
            await asyncio.sleep(UNNOTICED_SECONDS)
            coming = [(revision, next(fresh)) for revision, _ in dying]
            await asyncio.gather(*(engines.start(port) for _, port in coming))
            serving = [one for one in serving if one not in dying] + coming
            state.replace_pods(pod(*one) for one in serving)
            await asyncio.sleep(max(0.0, began + seconds_each - asyncio.get_running_loop().time()))
        results = json.loads((await load.communicate())[0])
        cut = sum(results["statuses"].get(how, 0) for how in CUT)
        short = results["statuses"].get("ended short", 0)
        lost = results["failed"] - cut - short
        return {
            "kills": DEAD * times, "inFlightWhenKilled": hit, "answered": results["answered"], "cut": cut, "endedShort": short,
            "lost": lost, "unanswered": results["unanswered"], "statuses": results["statuses"],
        }  # fmt: skip
    finally:
        if load is not None and load.returncode is None:
            load.kill()
        await gateway.close()
        engines.stop()


def pod(revision: str, port: int) -> Pod:
    return Pod(f"u{port}", f"p{port}", "team", "chat", revision, f"127.0.0.1:{port}")


def serve(state: State, weights: tuple[int, int]) -> None:
    state.put_service(Service("team", "chat", "m", tuple(zip(PORTS, weights, strict=True))))


def churn(quick: bool) -> dict[str, object]:
    times = 20 if quick else 200
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_churn(times, rate=100.0, seconds_each=0.4))


def churned_streams(quick: bool) -> dict[str, object]:
    times = 5 if quick else 40
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_streams(times, rate=20.0, seconds_each=3.0))
