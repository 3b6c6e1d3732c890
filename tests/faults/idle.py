"""Ten quiet minutes (row 1): `PYTHONPATH=tests python -m faults.idle [--seconds 600]`. A control plane of its own has some
services that serve, one whose rollout waits for a person, and one that was rolled back. Once the operator has stopped
writing, it must write nothing for so long, except to the Lease.

Then some busy minutes: engines whose load moves at every reading, requests through a gateway to every service, and a canary that
is judged by them. Now the writes a minute are bounded, for a service that only serves and for the one whose canary is judged."""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import typer
from faults.operator_process import Operator
from faults.outages import GATEWAY_ADDRESS, GATEWAY_PORT, announced, gateway
from faults.proxy import Call
from faults.report import store
from faults.runs import Ground
from rich.console import Console
from support.cluster.own_plane import own_plane
from support.cluster.pod_engines import PodEngines
from support.private import alone

from pagefleet_local.fleet.kubectl import until
from pagefleet_local.fleet.view import View
from pagefleet_operator.domain.rollout.pace import YOUNG_SECONDS
from pagefleet_operator.kube.client import Api

NAMESPACE, PORT, QUIET_SECONDS, TIMEOUT_SECONDS = "idle", 18260, 30.0, 180.0
# Writes a minute for each service. A calm canary is decided about every ten seconds, and its evidence is in the status.
SERVING_WRITES, JUDGED_WRITES, STATUS_SECONDS = 1.0, 12.0, 6.0
JUDGED = "s5"
SERVICES = f"/apis/pagefleet.io/v1alpha1/namespaces/{NAMESPACE}/inferenceservices"
console = Console(highlight=False)


def main(
    seconds: Annotated[float, typer.Option(help="how long nothing may be written")] = 600.0,
    busy: Annotated[float, typer.Option(help="how long engines and gateway are busy")] = 180.0,
    private: Annotated[str, typer.Option(help="the name of its folders")] = "idle",
) -> None:
    """Count the writes of an idle operator."""
    alone(private)
    writes, rates = asyncio.run(_play(seconds, busy))
    words = ", ".join(f"{count} x {what}" for what, count in writes.items()) or "none"
    console.print(f"writes in {seconds:g} s: {words}")
    console.print(f"writes a minute in {busy:g} busy s: {rates}")
    often = [name for name, rate in rates.items() if rate > (JUDGED_WRITES if name == JUDGED else SERVING_WRITES)]
    serving = max((rate for name, rate in rates.items() if name != JUDGED), default=0.0)
    figure = f"{sum(writes.values())} writes in {seconds:g} s, 6 services; busy, at most {serving:.1f} a minute for a service"
    store("idle", not writes and not often, f"{figure}, {rates.get(JUDGED, 0.0):.1f} while its canary is judged")
    raise typer.Exit(1 if writes or often else 0)


async def _play(seconds: float, busy: float) -> tuple[Counter[str], dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        async with own_plane(NAMESPACE) as plane:
            return await _idle(Ground(plane.api, plane.layout, plane.node, Path(folder)), seconds, busy)


async def _idle(ground: Ground, seconds: float, busy: float) -> tuple[Counter[str], dict[str, float]]:
    api, lease = ground.api, "pagefleet-operator"
    async with announced(ground), Operator(ground.layout, ground.folder, NAMESPACE, PORT, lease=lease) as operator:
        await until(operator.ready, timeout=TIMEOUT_SECONDS, what="the operator is ready")
        for number in range(6):
            await api.create(SERVICES, _service(f"s{number}"))
        for number in range(6):
            await _until(api, f"s{number}", lambda v: v.is_true("Ready"))
        for name in ("s0", "s1"):  # one that waits for a person, one that a paging alert rolls back
            await api.merge(f"{SERVICES}/{name}", {"spec": {"engine": {"args": ["--max-num-seqs=4"]}}})
        await _until(api, "s0", lambda v: v.phase == "Paused")
        await _until(api, "s1", lambda v: v.phase == "Paused")
        canary = View(await api.get(f"{SERVICES}/s1")).canary

        async def taken() -> bool:
            return await operator.alert("s1", canary, "page-1")

        await until(taken, timeout=TIMEOUT_SECONDS, what="the page is taken")
        await _until(api, "s1", lambda v: v.phase == "RolledBack")
        await _quiet(operator)
        before = len(operator.proxy.committed)
        await asyncio.sleep(seconds)
        idle = Counter(str(call) for call in operator.proxy.committed[before:] if _counts(call))
        return idle, await _busy(ground, operator, busy) if busy else {}


async def _busy(ground: Ground, operator: Operator, seconds: float) -> dict[str, float]:
    """Return the writes a minute for each service, while everything moves."""
    guard = {"latency": [], "errors": {"maxRate": "1%"}}
    change = {"rollout": {"steps": [{"weight": 50, "hold": "1h"}], "guard": guard}}
    async with gateway(ground, PodEngines(measured=True, busy=True)):
        asking = asyncio.create_task(_ask())
        try:
            await ground.api.merge(
                f"{SERVICES}/{JUDGED}", {"spec": {**change, "engine": {"args": ["--max-num-seqs=4"]}}}
            )
            await _until(ground.api, JUDGED, lambda v: v.weights.get(v.canary) == 50)
            await asyncio.sleep(
                YOUNG_SECONDS + STATUS_SECONDS
            )  # the first half minute of a weight is decided about at every slice
            before = len(operator.proxy.committed)
            await asyncio.sleep(seconds)
            calls = [call for call in operator.proxy.committed[before:] if _counts(call)]
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
    console.print(Counter(map(str, calls)))
    written = Counter(match[1] for call in calls if (match := re.search(r"/(s\d)\b", call.path)))
    return {name: count / seconds * 60 for name, count in sorted(written.items())}


async def _ask() -> None:
    """Send requests to every service, for ever."""
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "hello"}]}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        while True:
            for number in range(6):
                url = f"http://{GATEWAY_ADDRESS}:{GATEWAY_PORT}/{NAMESPACE}/s{number}/v1/chat/completions"
                with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                    async with session.post(url, json=body) as answer:
                        await answer.read()
            await asyncio.sleep(0.1)


def _service(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "pagefleet.io/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": "file:///model"},
            "resources": {"cpu": "10m", "memory": "16Mi"},
            "scaling": {"min": 1, "max": 3},
            "rollout": {"steps": [{"pause": {}}], "guard": {}, "alerts": {"matchLabels": {"severity": "page"}}},
        },
    }


def _counts(call: Call) -> bool:
    return "/leases" not in call.path


async def _until(api: Api, name: str, holds: Any) -> None:
    async def reached() -> bool:
        return bool(holds(View(await api.get(f"{SERVICES}/{name}"))))

    await until(reached, timeout=TIMEOUT_SECONDS, what=f"{name} is where it should be")


async def _quiet(operator: Operator) -> None:
    end, last, since = time.monotonic() + TIMEOUT_SECONDS, -1, time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        now = sum(map(_counts, operator.proxy.committed))
        if now != last:
            last, since = now, time.monotonic()
        if time.monotonic() > end:
            raise TimeoutError("the operator never stopped writing")
        await asyncio.sleep(0.5)


if __name__ == "__main__":
    typer.run(main)
