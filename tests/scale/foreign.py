"""The operator in a shared cluster: `PYTHONPATH=tests python -m scale.foreign --pods 20000`.

There is a real control plane, 20 InferenceServices that are Ready, and 20,000 pods of others, of about 6 KB each, that no
scheduler handles. It measures the operator's memory, its CPU when idle, its CPU while 50 of the foreign pods change each
second, and the time from its start until it has decided about every service: without the foreign pods and with them. Prints
a table; exit status 1 when the foreign pods cost more than the limits allow.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from faults.report import store
from rich.console import Console
from rich.table import Table
from scale.main import CREATED_AT_ONCE, KEPT, QUIET_SECONDS, _all, _create, _ready, quiet, writes_of
from scale.measure import Measure, median
from scale.operator import Operator
from support.cluster.own_plane import OwnPlane, own_plane
from support.private import alone

from pagefleet_contract.names import MANAGED_SELECTOR
from pagefleet_contract.reflector import CHUNK
from pagefleet_local.fleet.kubectl import until

NAMESPACE = "others"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
PADDING = {f"example.com/note-{number}": "x" * 200 for number in range(20)}
CHANGES_PER_SECOND = 50
TIMEOUT, SETTLING_SECONDS = 600.0, 30.0
console = Console(highlight=False)


@dataclass(frozen=True)
class Figures:
    """`memory` is in MiB, `start` in seconds, `idle` and `churn` in percent of a core. `listed` is the time in seconds that the
    API server takes for one list of our pods, which it searches all pods for."""

    memory: float
    peak: float
    start: float
    idle: float
    churn: float
    listed: float


def main(
    pods: Annotated[int, typer.Option(help="how many pods of others")] = 20_000,
    services: Annotated[int, typer.Option(help="how many InferenceServices")] = 20,
    private: Annotated[str, typer.Option(help="the name of its folders")] = "scale",
) -> None:
    """Measure the operator beside pods of others, in a network namespace of its own."""
    alone(private)
    before, beside = asyncio.run(_measure(pods, services))
    measures = [
        Measure("memory", beside.memory - before.memory, "MiB", 20.0),
        Measure("most memory", beside.peak - before.peak, "MiB", 20.0),
        Measure("start until all are decided", beside.start - before.start, "s", 2.0 + 3 * beside.listed),
        Measure("one list of our pods", beside.listed - before.listed, "s"),
        Measure("CPU when idle", beside.idle - before.idle, "% of a core", 2.0),
        Measure("CPU while others' pods change", beside.churn - before.churn, "% of a core", 2.0),
    ]
    table = Table(
        "figure", "without", f"with {pods:,}", "more", "limit", title=f"{services} services, {pods:,} foreign pods"
    )
    values = [(before.memory, beside.memory), (before.peak, beside.peak), (before.start, beside.start),
              (before.listed, beside.listed),
              (before.idle, beside.idle), (before.churn, beside.churn)]  # fmt: skip
    for one, (without, present) in zip(measures, values, strict=True):
        table.add_row(
            one.name,
            f"{without:.1f} {one.unit}",
            f"{present:.1f} {one.unit}",
            f"{one.value:.1f}",
            f"<= {one.limit:.1f}" if one.limit else "",
        )
    console.print(table)
    broken = any(one.broken for one in measures)
    store(
        "foreign",
        not broken,
        f"{pods:,} foreign pods: " + ", ".join(f"{one.name} {one.value:+.1f} {one.unit}" for one in measures),
    )
    raise typer.Exit(1 if broken else 0)


async def _measure(pods: int, services: int) -> tuple[Figures, Figures]:
    async with own_plane("scale", max_pods=2 * services + 100, pause=1.0, prefix="10.245") as plane:
        KEPT.mkdir(parents=True, exist_ok=True)
        await plane.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        await plane.api.create(PODS.replace("/pods", "/serviceaccounts"), {"metadata": {"name": "foreign"}})
        operator = Operator(plane.layout, KEPT)
        operator.start()
        try:
            await _all((_create(plane.api, number) for number in range(services)), CREATED_AT_ONCE)
            await _ready(plane.api, time.monotonic(), services, TIMEOUT)
            before = await _figures(plane, operator, services, 0)
            begun = time.monotonic()
            await _all((plane.api.create(PODS, _pod(number)) for number in range(pods)), CREATED_AT_ONCE)
            console.print(f"{pods:,} pods created in {time.monotonic() - begun:.0f} s")
            await asyncio.sleep(SETTLING_SECONDS)  # the API server and etcd still write
            return before, await _figures(plane, operator, services, pods)
        finally:
            operator.stop()


async def _figures(plane: OwnPlane, operator: Operator, services: int, pods: int) -> Figures:
    """Restart the operator and measure it."""
    operator.stop()
    operator.start()

    async def all_decided() -> bool:
        return await operator.metric("pagefleet_operator_reconcile_seconds_count") >= services

    await until(all_decided, timeout=TIMEOUT, what="every service is decided once", interval=0.05)
    start = time.monotonic() - operator.started
    await quiet(writes_of(plane.layout), TIMEOUT)
    idle = await _cpu(operator, asyncio.sleep(QUIET_SECONDS))
    churn = await _cpu(operator, _change(plane, pods) if pods else asyncio.sleep(QUIET_SECONDS))
    memory, peak = operator.memory()
    return Figures(memory, peak, start, idle, churn, await _listed(plane))


async def _listed(plane: OwnPlane) -> float:
    """The median of five lists of our pods, as the operator asks for them."""
    took = []
    for _ in range(5):
        began = time.monotonic()
        await plane.api.get("/api/v1/pods", labelSelector=MANAGED_SELECTOR, limit=str(CHUNK))
        took.append(time.monotonic() - began)
    return median(sorted(took))


async def _cpu(operator: Operator, work: Any) -> float:
    """The operator's share of a core while `work` goes on, in percent."""
    cpu, at = operator.cpu(), time.monotonic()
    await work
    return (operator.cpu() - cpu) / (time.monotonic() - at) * 100


async def _change(plane: OwnPlane, pods: int) -> None:
    """Change CHANGES_PER_SECOND foreign pods each second."""
    for second in range(int(QUIET_SECONDS)):
        began = time.monotonic()
        numbers = (second * CHANGES_PER_SECOND + place for place in range(CHANGES_PER_SECOND))
        body = {"metadata": {"annotations": {"example.com/changed": str(second)}}}
        await _all((plane.api.merge(f"{PODS}/foreign-{number % pods}", body) for number in numbers), CREATED_AT_ONCE)
        await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - began)))


def _pod(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"foreign-{number}",
            "namespace": NAMESPACE,
            "labels": {"app": "other"},
            "annotations": PADDING,
        },
        "spec": {
            "schedulerName": "nobody",
            "serviceAccountName": "foreign",
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "registry.example/other:1"}],
        },
    }


if __name__ == "__main__":
    typer.run(main)
