"""Ten quiet minutes (row 1): `PYTHONPATH=tests python -m faults.idle [--seconds 600]`. A control plane of its own has some
services that serve, one whose rollout waits for a person, and one that was rolled back. Once the operator has stopped
writing, it must write nothing for so long, except to the Lease."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from faults.operator_process import Operator
from faults.proxy import Call
from faults.report import store
from rich.console import Console
from support.cluster.own_plane import own_plane
from support.private import alone

from pagefleet_local.base.paths import Layout
from pagefleet_local.fleet.kubectl import until
from pagefleet_local.fleet.view import View
from pagefleet_operator.kube.client import Api

NAMESPACE, PORT, QUIET_SECONDS, TIMEOUT_SECONDS = "idle", 18260, 30.0, 180.0
SERVICES = f"/apis/pagefleet.io/v1alpha1/namespaces/{NAMESPACE}/inferenceservices"
console = Console(highlight=False)


def main(
    seconds: Annotated[float, typer.Option(help="how long nothing may be written")] = 600.0,
    private: Annotated[str, typer.Option(help="the name of its folders")] = "idle",
) -> None:
    """Count the writes of an idle operator."""
    alone(private)
    writes = asyncio.run(_play(seconds))
    words = ", ".join(f"{count} x {what}" for what, count in writes.items()) or "none"
    console.print(f"writes in {seconds:g} s: {words}")
    store("idle", not writes, f"{sum(writes.values())} writes in {seconds:g} s, 6 services")
    raise typer.Exit(1 if writes else 0)


async def _play(seconds: float) -> Counter[str]:
    async with own_plane(NAMESPACE) as plane:
        return await _idle(plane.api, plane.layout, seconds)


async def _idle(api: Api, layout: Layout, seconds: float) -> Counter[str]:
    with tempfile.TemporaryDirectory() as folder:
        async with Operator(layout, Path(folder), NAMESPACE, PORT, lease="pagefleet-operator") as operator:
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
            return Counter(str(call) for call in operator.proxy.committed[before:] if _counts(call))


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
