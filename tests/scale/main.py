"""Many services at once (row 11): `PYTHONPATH=tests python -m scale.main --services 1000`.

There is a real control plane, a node that only claims to run pods, and the operator as it is shipped. Every pod has an engine's
page of metrics that moves, and requests go through a gateway (`scale.serving`). It measures the seconds until all are Ready, the
operator's memory and CPU while nothing but load changes, how long an edit waits for its decision while canaries are judged, and the
time and the writes until a restarted operator has decided about every service. Prints a table; exit status 1 when a limit is broken.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from faults.report import store
from rich.console import Console
from rich.table import Table
from scale import poison
from scale.audit import Writes
from scale.measure import Measure, median, p99
from scale.operator import USER, Operator
from scale.serving import PREFIX, serving
from support.cluster.own_plane import OwnPlane, own_plane
from support.private import alone

from pagefleet_local.base.paths import Layout
from pagefleet_local.fleet.install import CHECKOUT
from pagefleet_local.fleet.kubectl import until
from pagefleet_operator.kube.client import Api

SERVICES = "/apis/pagefleet.io/v1alpha1/namespaces/scale/inferenceservices"
CREATED_AT_ONCE, EDITED_AT_ONCE = 16, 4
QUIET_SECONDS = 15.0
JUDGED = 10  # so many edits begin a canary that is judged until the end, and whose evidence is written (faults.idle bounds that)
KEPT = CHECKOUT / "build/scale"  # the operator's log stays here
console = Console(highlight=False)


def main(
    services: Annotated[int, typer.Option(help="how many InferenceServices")] = 1000,
    edits: Annotated[int, typer.Option(help="how many of them are edited")] = 100,
    timeout: Annotated[float, typer.Option(help="seconds until all must be Ready")] = 900.0,
    profile: Annotated[
        Path | None, typer.Option(help="py-spy's folded stacks of the fleet that serves go here")
    ] = None,
    poisoned: Annotated[int, typer.Option(help="so many more that break the schema; only edits are measured then")] = 0,
    private: Annotated[str, typer.Option(help="the name of its folders")] = "scale",
) -> None:
    """Measure the operator with many services, in a network namespace of its own."""
    alone(private)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the engines share a core with this program
        measures = runner.run(_measure(services, edits, timeout, profile, poisoned))
    table = Table("figure", "measured", "limit", title=f"{services} InferenceServices")
    for one in measures:
        limit = "" if one.limit is None else f"<= {one.limit:g} {one.unit}"
        colour = "red" if one.broken else "default"
        table.add_row(one.name, f"[{colour}]{one.value:.2f} {one.unit}[/]", limit)
    console.print(table)
    words = [f"{one.name} {one.value:.1f} {one.unit}".rstrip() for one in measures]
    store(
        "scale" if not poisoned else "poisoned",
        not any(one.broken for one in measures),
        f"{services} services: " + ", ".join(words),
    )
    raise typer.Exit(1 if any(one.broken for one in measures) else 0)


async def _measure(count: int, edits: int, timeout: float, profile: Path | None, poisoned: int) -> list[Measure]:
    # Loopback addresses are no Endpoints: the controllers would try for ever, and fill the API server with it.
    async with own_plane("scale", max_pods=2 * count + 100, pause=1.0, prefix=PREFIX) as plane:
        KEPT.mkdir(parents=True, exist_ok=True)
        operator = Operator(plane.layout, KEPT)
        operator.start()
        try:
            if poisoned:
                return await _beside(plane, count, min(edits, count // 2), poisoned, timeout)
            async with serving(plane, KEPT, count) as answers:
                figures = _figures(
                    plane.api, operator, plane.layout, count, min(edits, count), timeout, profile, answers
                )
                return await figures
        finally:
            operator.stop()


async def _beside(plane: OwnPlane, count: int, edits: int, poisoned: int, timeout: float) -> list[Measure]:
    await _all((_create(plane.api, number) for number in range(count)), CREATED_AT_ONCE)
    await _ready(plane.api, time.monotonic(), count, timeout)
    await quiet(writes_of(plane.layout), timeout)

    async def edited(first: int, last: int) -> list[float]:
        return sorted(await _all((_edit(plane.api, number) for number in range(first, last)), EDITED_AT_ONCE))

    return await poison.compare(plane, poisoned, edited, edits)


async def _figures(
    api: Api,
    operator: Operator,
    layout: Layout,
    count: int,
    edits: int,
    timeout: float,
    profile: Path | None,
    answers: Counter[int],
) -> list[Measure]:
    begun = time.monotonic()
    await _all((_create(api, number) for number in range(count)), CREATED_AT_ONCE)
    created = time.monotonic() - begun
    ready = await _ready(api, begun, count, timeout)
    writes = writes_of(layout)
    await quiet(writes, timeout)
    answers.clear()  # before, not every service had a pod
    cpu, at = operator.cpu(), time.monotonic()
    decisions = await operator.metric("pagefleet_operator_reconcile_seconds_count")
    if profile is not None:
        await _profile(operator, profile)
    await asyncio.sleep(QUIET_SECONDS)
    idle_seconds = time.monotonic() - at
    idle = (operator.cpu() - cpu) / idle_seconds * 100
    rate = (await operator.metric("pagefleet_operator_reconcile_seconds_count") - decisions) / idle_seconds
    now, most = operator.memory()
    waits = sorted(await _all((_edit(api, number) for number in range(edits)), EDITED_AT_ONCE))
    await quiet(writes, timeout)
    resync, repeated = await _restart(operator, writes, count, timeout)
    return [
        Measure("objects created after", created, "s"),
        Measure("all Ready after", ready, "s", 270.0),
        Measure("operator's memory while serving", now, "MiB", 400.0),
        Measure("operator's memory, most", most, "MiB", 400.0),
        Measure("operator's CPU while serving", idle, "% of a core"),
        Measure("decisions while serving", rate, "/s"),
        Measure("edit decided, median", median(waits), "s"),
        Measure("edit decided, p99", p99(waits), "s", 3.0),
        Measure("restart: all decided after", resync, "s", 30.0),
        Measure("restart: writes", float(repeated), "", 0.0),
        Measure("requests", float(answers.total()), ""),
        Measure("requests that failed", float(answers.total() - answers[200]), "", 0.0),
    ]


def _service(number: int, sequences: int = 8) -> dict[str, Any]:
    # An edit of the engine is a rollout; most are decided, and then not continued.
    step = {"weight": 50, "hold": "1h"} if number < JUDGED else {"pause": {}}
    return {
        "apiVersion": "pagefleet.io/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": f"s{number}", "namespace": "scale"},
        "spec": {
            "model": {"source": "file:///model"},
            "engine": {"args": [f"--max-num-seqs={sequences}"]},
            "resources": {"cpu": "10m", "memory": "16Mi"},
            "scaling": {"min": 1, "max": 1},
            "rollout": {"steps": [step], "guard": {}},
        },
    }


async def _create(api: Api, number: int) -> None:
    await api.create(SERVICES, _service(number))


async def _ready(api: Api, begun: float, count: int, timeout: float) -> float:
    async def all_ready() -> bool:
        listed = await api.get(SERVICES)
        ready = sum(_is_ready(item) for item in listed["items"])
        console.print(f"{time.monotonic() - begun:6.0f} s: {ready} of {count} Ready")
        return bool(ready == count)

    await until(all_ready, timeout=timeout, what=f"{count} services are Ready", interval=2.0)
    return time.monotonic() - begun


def _is_ready(item: dict[str, Any]) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


async def _edit(api: Api, number: int) -> float:
    """Make an edit, and return the seconds until its generation is observed."""
    path, begun = f"{SERVICES}/s{number}", time.monotonic()
    edited = await api.merge(path, {"spec": {"engine": {"args": ["--max-num-seqs=16"]}}})

    async def observed() -> bool:
        status = (await api.get(path)).get("status") or {}
        return bool(status.get("observedGeneration") == edited["metadata"]["generation"])

    await until(observed, timeout=60, what=f"the edit of s{number} is decided", interval=0.1)
    return time.monotonic() - begun


async def _restart(operator: Operator, writes: Writes, count: int, timeout: float) -> tuple[float, int]:
    """Restart the operator. Return the seconds until it has decided about each service, and its writes until some time later."""
    operator.stop()
    before = writes.total()
    operator.start()

    left = {f"s{number}" for number in range(count)}

    async def all_decided() -> bool:
        decisions = await operator.metric("pagefleet_operator_reconcile_seconds_count")
        if decisions < count:
            console.print(f"{time.monotonic() - operator.started:6.0f} s after the restart: {decisions:.0f} decisions")
            return False
        left.difference_update(await operator.decided("scale", sorted(left)))
        console.print(
            f"{time.monotonic() - operator.started:6.0f} s after the restart: {count - len(left)} of {count} decided"
        )
        return not left

    await until(all_decided, timeout=timeout, what="every service is decided once", interval=0.5)
    seconds = time.monotonic() - operator.started
    await asyncio.sleep(QUIET_SECONDS)
    return seconds, writes.total() - before


def writes_of(layout: Layout) -> Writes:
    """Return the operator's writes, without those for the canaries that are judged."""
    return Writes(layout.logs, USER, [f"s{number}" for number in range(JUDGED)])


async def quiet(writes: Writes, timeout: float) -> None:
    """Wait until the operator has written nothing for QUIET_SECONDS."""
    last, since = writes.total(), time.monotonic()

    async def silent() -> bool:
        nonlocal last, since
        now = writes.total()
        if now != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since >= QUIET_SECONDS

    await until(silent, timeout=timeout, what="the operator writes nothing any more", interval=1.0)


async def _profile(operator: Operator, file: Path) -> None:
    command = ["py-spy", "record", "-p", str(operator.process.pid), "-d", "15", "-f", "raw", "-o", str(file)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    if await process.wait():
        raise RuntimeError("py-spy failed")


async def _all(coroutines: Iterable[Any], at_once: int) -> list[Any]:
    gate = asyncio.Semaphore(at_once)

    async def one(work: Any) -> Any:
        async with gate:
            return await work

    return list(await asyncio.gather(*(one(work) for work in coroutines)))


if __name__ == "__main__":
    typer.run(main)
