"""The parts of `scaling_cluster.py`: each takes a fleet, returns named figures (seconds and counts), and cleans up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from pagefleet_local.fleet.kubectl import until
from pagefleet_local.fleet.view import View
from scalingbench.field import NAMESPACE, Field, PodState, Stream, asleep, clients, gathered, serving, startup

Figures = dict[str, float | int | str]
START_SECONDS = 300.0
PATIENT = {"outputTokens": 2048, "promptTokens": 512, "queued": 256}


def _complete(replicas: int, spares: int = 0) -> Callable[[View, list[PodState]], bool]:
    return lambda view, pods: (
        view.is_true("Ready") and serving(pods, spare=False) == replicas and asleep(view) >= spares
    )


async def wake(field: Field, streams: int) -> Figures:
    """Measure from `kubectl scale` to a woken spare that is Ready, and to the new replica that it stands in for."""
    name = "wake"
    await field.apply(name, {"min": 1, "max": 2, "mode": "external", "warmSpares": 1})
    await field.when(_complete(1, 1), name, "a replica and a sleeping spare", 2 * START_SECONDS)
    figures: Figures = {}
    began = await field.scale(name, 2)
    stood_in = await field.when(lambda _, pods: serving(pods) >= 2, name, "the spare serves", START_SECONDS)
    figures["scale-up to a woken spare, s"] = round(stood_in - began, 1)
    own = await field.when(lambda _, pods: serving(pods, spare=False) == 2, name, "the replica serves", START_SECONDS)
    figures["scale-up to the new replica, s"] = round(own - began, 1)
    async with clients() as session:
        tasks = [asyncio.create_task(field.stream(session, name, 64)) for _ in range(streams // 10)]
        await field.when(lambda view, pods: asleep(view) == 1, name, "the spare sleeps again", START_SECONDS)
        figures |= {f"while it goes to rest: {key}": value for key, value in (await gathered(tasks)).items()}
    await field.remove(name)
    return figures


async def burst(field: Field, streams: int, *, spares: int = 0) -> Figures:
    """Measure from the first of a wave of requests to a second engine that serves."""
    name = f"burst-{spares}"
    await field.apply(name, {"min": 1, "max": 2, "warmSpares": spares, "panic": {"threshold": 2, "window": "6s"}})
    await field.when(_complete(1, spares), name, "one replica", 2 * START_SECONDS)
    async with clients() as session:
        began, done = time.monotonic(), asyncio.Event()

        async def user() -> None:
            while not done.is_set():
                await field.stream(session, name, 160)

        users = [asyncio.create_task(user()) for _ in range(24)]
        served = await field.when(lambda _, pods: serving(pods) >= 2, name, "a second engine", START_SECONDS)
        done.set()
        await asyncio.gather(*users)
    figures: Figures = {"burst to a second engine, s": round(served - began, 1)}
    figures["start-up time as learned, s"] = startup(await field.view(name))
    await field.remove(name)
    return figures


async def down(field: Field, streams: int) -> Figures:
    """Scale from two replicas to one in the middle of long streams: every one of them must end whole."""
    name = "down"
    await field.apply(
        name, {"min": 2, "max": 2, "mode": "external"}, limits=PATIENT, kvCache={"pageSize": 16, "pages": 2048},
        args=["--max-num-seqs=128"],
    )  # fmt: skip
    await field.when(_complete(2), name, "two replicas", 2 * START_SECONDS)
    async with clients() as session:
        tasks = [asyncio.create_task(field.stream(session, name, 96, f"Note {n}.")) for n in range(streams)]
        await _all_open(field, tasks)
        began = await field.scale(name, 1)
        gone = asyncio.create_task(
            field.when(lambda _, pods: len(pods) == 1, name, "one pod is left", 1800)
        )  # fmt: skip
        open_then = sum(1 for task in tasks if not task.done())
        figures: Figures = {"open streams when it shrank": open_then, **(await gathered(tasks))}
        figures["scale-down to the pod's end, s"] = round(await gone - began, 1)
    await field.remove(name)
    return figures


async def _all_open(field: Field, tasks: list[asyncio.Task[Stream]]) -> None:
    """Every stream has been accepted by an engine: the sum of what runs and waits there."""
    pods = await field.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector="pagefleet.io/service=down")
    addresses = [item["status"]["podIP"] for item in pods["items"]]

    async def accepted() -> bool:
        async with clients() as session:
            texts = [await (await session.get(f"http://{address}:8000/metrics")).text() for address in addresses]
        names = ("pagefleet_num_requests_running{", "pagefleet_num_requests_waiting{")
        lines = [line for text in texts for line in text.splitlines() if line.startswith(names)]
        held = sum(float(line.rsplit(" ", 1)[1]) for line in lines)
        return held + sum(1 for task in tasks if task.done()) >= len(tasks)

    await until(accepted, timeout=120, what="the engines have every stream", interval=0.2)


async def zero(field: Field, streams: int, *, spares: int = 0) -> Figures:
    """A request to a service at zero: its first token beside the start-up time of the pod that was started for it."""
    name = f"zero-{spares}"
    await field.apply(name, {"min": 0, "max": 1, "idleToZero": "20s", "warmSpares": spares})
    await field.when(
        lambda view, _: view.condition("Ready")["reason"] == "Idle" and asleep(view) >= spares,
        name, "it sleeps", 2 * START_SECONDS,
    )  # fmt: skip
    await field.when(lambda _, pods: all(pod.spare for pod in pods), name, "its pods are gone", START_SECONDS)
    async with clients() as session:
        watch = asyncio.create_task(_own_pod(field, name))
        answer = await field.stream(session, name, 8)
        created, ready = await watch
    first = answer.first if answer.first is not None else float("nan")
    figures: Figures = {"zero to the first token, s": round(first, 2), "its answer is whole": int(answer.whole)}
    figures["the new pod from created to ready, s"] = round(ready - created, 2)
    figures["first token after the start-up time, s"] = round(first - (ready - created), 2)
    await field.remove(name)
    return figures


async def _own_pod(field: Field, name: str) -> tuple[float, float]:
    """The times at which a replica that is no spare is first observed, and first observed to be ready."""
    created = await field.when(lambda _, pods: any(not p.spare for p in pods), name, "a pod", START_SECONDS)
    ready = await field.when(lambda _, pods: serving(pods, spare=False) > 0, name, "it is ready", START_SECONDS)
    return created, ready


async def node(field: Field, streams: int) -> Figures:
    """`kubectl drain` of the node with streams on it. It is the only one, so it is uncordoned once the first pod has
    been evicted: its replacement must be ready before the budget lets the second one go."""
    name = "drained"
    await field.apply(name, {"min": 2, "max": 2, "mode": "external"}, limits=PATIENT, args=["--max-num-seqs=64"])
    await field.when(_complete(2), name, "two replicas", 2 * START_SECONDS)
    first = {pod.name for pod in await field.pods(name)}
    fewest, done = 2, asyncio.Event()
    async with clients() as session:

        async def watch() -> None:
            nonlocal fewest
            while not done.is_set():
                fewest = min(fewest, serving(await field.pods(name)))
                await asyncio.sleep(0.2)

        watching = asyncio.create_task(watch())
        tasks = [asyncio.create_task(field.stream(session, name, 96, f"Note {n}.")) for n in range(streams // 10)]
        await field.when(lambda *_: True, name, "", 1)
        began = time.monotonic()
        drain = asyncio.create_task(
            field.kubectl.run(
                "drain", field.node, f"--pod-selector=pagefleet.io/service={name}", "--delete-emptydir-data",
                "--ignore-daemonsets", "--timeout=900s",
            )
        )  # fmt: skip
        try:
            await field.when(
                lambda _, pods: any(pod.stopping for pod in pods) or not first <= {pod.name for pod in pods},
                name, "the first is evicted", 120,
            )  # fmt: skip
        finally:
            await field.kubectl.run("uncordon", field.node)
        await drain
        figures: Figures = {"kubectl drain, s": round(time.monotonic() - began, 1), **(await gathered(tasks))}
        await field.when(_complete(2), name, "two replicas again", START_SECONDS)
        done.set()
        await watching
    figures["fewest ready replicas meanwhile"] = fewest
    figures["pods that were moved"] = len(first - {pod.name for pod in await field.pods(name)})
    await field.remove(name)
    return figures


PARTS: Mapping[str, Callable[[Field, int], Awaitable[Figures]]] = {
    "wake": wake, "burst": burst, "burst-spare": partial(burst, spares=1), "zero": zero,
    "zero-spare": partial(zero, spares=1), "down": down, "node": node,
}  # fmt: skip
