"""Memory under load (`make soak`): `PYTHONPATH=tests python -m faults.soak [--minutes 360]`. The operator, a gateway with its
Envoy and a real engine run under steady streams, some of which their clients leave. Every process' resident memory is read
every few seconds. The report is the slope of a straight line through it, after the first fifth, and the days until a pod
reaches its memory limit at that slope. Growth is judged in runs of an hour or more."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Annotated

import aiohttp
import typer
from faults.growth import growth, limits, together
from faults.operator_process import Operator
from faults.outages import GATEWAY_ADDRESS, GATEWAY_PORT, gateway
from faults.report import store
from faults.runs import Ground
from rich.console import Console
from rich.table import Table
from support.cluster.own_plane import own_plane
from support.cluster.pod_engines import PORT as MODEL_PORT
from support.engine.api_process import NAME as MODEL
from support.engine.api_process import command, make_model
from support.private import alone

from pagefleet_local.fleet.install import CHECKOUT
from pagefleet_local.fleet.kubectl import until
from pagefleet_local.fleet.view import View

NAMESPACE, NAME, OPERATOR_PORT = "soak", "soak", 18250
SERVICES = f"/apis/pagefleet.io/v1alpha1/namespaces/{NAMESPACE}/inferenceservices"
SAMPLES = CHECKOUT / "build/soak/samples.json"
SAMPLE_SECONDS = 5.0
# A pod must not reach its memory limit in so many days. What a shorter run measures is warm-up.
MIN_DAYS, JUDGED_MINUTES = 30.0, 60.0
PODS = {"operator": ("operator",), "gateway": ("gateway", "Envoy"), "engine": ("engine's API", "engine")}
console = Console(highlight=False)


@dataclass
class Load:
    """Opens streams through the gateway; every seventh client leaves after its first bytes."""

    at_once: int
    ended: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        """Open streams, for ever."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            await asyncio.gather(*(self._client(session, number) for number in range(self.at_once)))

    async def _client(self, session: aiohttp.ClientSession, number: int) -> None:
        chance = random.Random(number)
        while True:
            try:
                self.ended[await self._ask(session, chance)] += 1
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self.ended[type(error).__name__] += 1
                await asyncio.sleep(0.5)

    async def _ask(self, session: aiohttp.ClientSession, chance: random.Random) -> str:
        url = f"http://{GATEWAY_ADDRESS}:{GATEWAY_PORT}/{NAMESPACE}/{NAME}/v1/chat/completions"
        words = " ".join(chance.choice(("one", "two", "three")) for _ in range(chance.randint(1, 120)))
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": words}],
            "max_tokens": chance.randint(1, 64),
            "stream": True,
        }
        async with session.post(url, json=body) as answer:
            if answer.status != 200:
                await answer.read()
                return str(answer.status)
            if chance.random() < 1 / 7:
                await answer.content.readany()
                answer.close()
                return "left"
            return "done" if b"[DONE]" in await answer.read() else "cut"


@dataclass
class Memory:
    """The readings of each process by name: seconds and MiB."""

    samples: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def take(self, processes: Mapping[str, int], at: float) -> None:
        for name, pid in processes.items():
            match = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
            if match is not None:
                self.samples.setdefault(name, []).append((at, int(match[1]) / 1024))

    def write(self, path: Path) -> None:
        """Write JSON: for each process, pairs of seconds since the first reading and MiB."""
        path.parent.mkdir(parents=True, exist_ok=True)
        began = min(taken[0][0] for taken in self.samples.values())
        path.write_text(
            json.dumps({name: [(at - began, size) for at, size in taken] for name, taken in self.samples.items()})
        )


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for task in tasks for word in task.read_text().split()]


def main(
    minutes: Annotated[float, typer.Option(help="how long")] = 360.0,
    at_once: Annotated[int, typer.Option(help="streams at the same time")] = 8,
    private: Annotated[str, typer.Option(help="the name of its folders")] = "soak",
) -> None:
    """Put a fleet's processes under load and report how their memory grows."""
    alone(private)
    memory, load = asyncio.run(_play(minutes * 60, at_once))
    table = Table("process", "MiB at the end", "MiB per hour", "standard error", title=f"{minutes:g} minutes")
    words, days = [], {}
    for name, samples in memory.samples.items():
        one = growth(samples)
        table.add_row(name, f"{one.size:.1f}", f"{one.slope:+.2f}", f"{one.error:.2f}")
        words.append(f"{name} {one.size:.0f} MiB {one.slope:+.1f} +- {one.error:.1f} MiB/h")
    console.print(table)
    for pod, limit in limits(CHECKOUT).items():
        days[pod] = growth(together(memory.samples[name] for name in PODS[pod])).days(limit)
        words.append(
            f"the {pod}'s pod reaches {limit:.0f} MiB {f'in {days[pod]:.0f} days' if isfinite(days[pod]) else 'never'}"
        )
        console.print(words[-1])
    bad = {what: count for what, count in load.ended.items() if what not in ("done", "left")}
    console.print(f"requests: {dict(load.ended)}")
    judged = minutes >= JUDGED_MINUTES
    if not judged:
        console.print(f"growth is not judged: the run was shorter than {JUDGED_MINUTES:g} minutes")
        words.append("too short to judge growth")
    passed = not bad and (not judged or min(days.values()) >= MIN_DAYS)
    store(
        "soak",
        passed,
        f"{minutes:g} min, {sum(load.ended.values())} requests, {bad or 'no'} failures: " + ", ".join(words),
    )
    raise typer.Exit(0 if passed else 1)


async def _play(seconds: float, at_once: int) -> tuple[Memory, Load]:
    with tempfile.TemporaryDirectory() as folder:
        async with own_plane(NAMESPACE) as plane:
            return await _soak(Ground(plane.api, plane.layout, plane.node, Path(folder)), seconds, at_once)


async def _soak(ground: Ground, seconds: float, at_once: int) -> tuple[Memory, Load]:
    """The engine stands for every pod: it listens on all addresses of the loopback."""
    words = command(make_model(ground.folder / "model"), MODEL_PORT, "--num-pages=2048", "--host=0.0.0.0")
    with (ground.folder / "engine.log").open("w") as log:
        engine = await asyncio.create_subprocess_exec(
            *words, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    try:
        await until(_engine_ready, timeout=120, what="the engine is ready")
        operator = Operator(ground.layout, ground.folder, NAMESPACE, OPERATOR_PORT)
        async with operator, gateway(ground) as front:
            await ground.api.create(SERVICES, _service())

            async def ready() -> bool:
                return View(await ground.api.get(f"{SERVICES}/{NAME}")).is_true("Ready")

            await until(ready, timeout=120, what="the service is Ready")
            load, memory, began = Load(at_once), Memory(), time.monotonic()
            processes = _processes(operator, front, engine.pid)
            asking = asyncio.create_task(load.run())
            try:
                while time.monotonic() - began < seconds:
                    memory.take(processes, time.monotonic())
                    await asyncio.sleep(SAMPLE_SECONDS)
                    if len(memory.samples["operator"]) % 12 == 0:
                        memory.write(SAMPLES)
                        console.print(f"{time.monotonic() - began:.0f} s: {dict(load.ended)}")
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            return memory, load
    finally:
        engine.terminate()
        await asyncio.wait_for(engine.wait(), 60)


def _processes(operator: Operator, front: int, engine: int) -> dict[str, int]:
    return {
        "operator": operator.pid,
        "gateway": front,
        "Envoy": _named(children(front), "envoy"),
        "engine's API": engine,
        "engine": children(engine)[0],
    }


def _named(pids: Sequence[int], name: str) -> int:
    return next(pid for pid in pids if name in Path(f"/proc/{pid}/comm").read_text())


async def _engine_ready() -> bool:
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{MODEL_PORT}/ready") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, OSError):
        return False


def _service() -> dict[str, object]:
    return {
        "apiVersion": "pagefleet.io/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"source": "file:///model", "servedName": MODEL},
            "resources": {"cpu": "10m", "memory": "16Mi"},
            "scaling": {"min": 1, "max": 2},
        },
    }


if __name__ == "__main__":
    typer.run(main)
