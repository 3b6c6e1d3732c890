"""How long the picking loop is not free beside 10,000 pods in 5,000 services, and what the gateway costs at rest with 100 pods.

A real gateway with its Envoy. Every pod has an address of its own on the loopback network, and one process answers the scrapes of all of
them, as engines do. `stall` and `late` are stalls.py's. `cores` is the processor time of the picker's process, Envoy apart.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from subprocess import DEVNULL

import msgspec
import uvloop
from bench.gatewaybench.stalls import ENGINE, _beside, _gateway, _pick, _scrapes

from pagefleet_gateway.app import Gateway
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod
from pagefleet_gateway.sharing.news import News

SERVICES, PODS_EACH = 5_000, 2
CHANGES = 20
REQUESTS_PER_SECOND = 400
PAGE = '(b"vllm:num_requests_running 2\\nvllm:num_requests_waiting 0\\nvllm:kv_cache_usage_perc 0.3\\n" + b"# HELP x of an engine\\n" * 400)'


def many_pods(quick: bool) -> dict[str, object]:
    """Stalls while the pods are read, while they change, and while nothing does."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_many(500 if quick else SERVICES, 5 if quick else CHANGES))


def idle(quick: bool) -> dict[str, object]:
    """Cores that the gateway uses while no request comes, with 100 pods that it scrapes."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_idle(5.0 if quick else 20.0))


async def _many(services: int, changes: int) -> dict[str, object]:
    async with _engines() as port, _gateway() as gateway:
        pods = _pods(services, PODS_EACH, port)
        figures: dict[str, object] = {"pods": len(pods), "services": services}

        async def measure(name: str, work: Callable[[], Awaitable[object]]) -> None:
            figures[name] = await _beside(work)

        await measure("first pods", lambda: _arrive(gateway, pods))
        await measure("rest", lambda: asyncio.sleep(12.0))  # sweeps, scrapes and slices
        await measure("pods change", lambda: _change(gateway, pods[:changes]))
        await measure("services change", lambda: _change_services(gateway, services, changes))
        await measure("requests", lambda: _request_all(gateway, services))
        await measure("rest after requests", lambda: asyncio.sleep(12.0))
        await measure("scrape", lambda: _scrapes(gateway, 2))
        await measure("a gateway joins", lambda: _join(gateway))
        await measure("listed again", lambda: _list_again(gateway))
        used, began = time.process_time(), time.monotonic()
        await asyncio.sleep(10.0)
        figures["cores at rest"] = round((time.process_time() - used) / (time.monotonic() - began), 3)
        figures["fresh"] = _fresh(gateway, pods)
        return figures


async def _idle(seconds: float) -> dict[str, object]:
    async with _engines() as port, _gateway() as gateway:
        pods = _pods(10, 10, port)
        await _arrive(gateway, pods)
        await asyncio.sleep(3.0)
        used, began = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        cores = round((time.process_time() - used) / (time.monotonic() - began), 3)
        return {"pods": len(pods), "cores": cores, "fresh": _fresh(gateway, pods)}


def _fresh(gateway: Gateway, pods: Sequence[Pod]) -> int:
    """Count pods whose reading is at most five seconds old."""
    return sum(gateway.readings.of(pod, time.monotonic()).running > 0 for pod in pods)


def _pods(services: int, each: int, port: int) -> list[Pod]:
    return [
        Pod(f"{one}-{two}", f"p{one}-{two}", "bench", f"s{one}", "a", f"127.{1 + number // 62_500}.{number // 250 % 250}.{number % 250 + 1}:{port}")
        for one in range(services)
        for two in range(each)
        if (number := one * each + two) >= 0
    ]  # fmt: skip


async def _arrive(gateway: Gateway, pods: Sequence[Pod]) -> None:
    """As the watch does: the first list, and then what changes."""
    services = {(pod.namespace, pod.service): pod for pod in pods}
    gateway.state.replace_services(Service(*key, key[1], (("a", 100),)) for key in services)
    gateway.state.replace_pods(pods)
    await _until_served(gateway, pods[-1])
    if reason := gateway.not_ready_reason():  # as the kubelet asks
        raise RuntimeError(reason)


async def _change(gateway: Gateway, pods: Sequence[Pod]) -> None:
    """A pod after another is no longer ready and ready again, goes, and comes again."""
    for number, pod in enumerate(pods):
        gateway.state.put_pod(replace(pod, ready=False))
        await asyncio.sleep(0.05)
        gateway.state.put_pod(pod)
        await _pick(gateway, f"/bench/s{number + len(pods)}/v1/completions", b'{"prompt": "x", "stream": true}')
        gateway.state.remove_pod(pod.uid)
        await asyncio.sleep(0.05)
        gateway.state.put_pod(replace(pod, uid=f"{pod.uid}-again"))
        await _until_served(gateway, replace(pod, uid=f"{pod.uid}-again"))


async def _change_services(gateway: Gateway, services: int, changes: int) -> None:
    """A service after another gets other weights, goes, and comes again."""
    for number in range(changes):
        service = gateway.state.services["bench", f"s{number}"]
        other = f"/bench/s{services - 1 - number}/v1/completions"
        for change in (
            partial(gateway.state.put_service, replace(service, weights=(("a", 90), ("b", 10)))),
            partial(gateway.state.remove_service, service.key),
            partial(gateway.state.put_service, service),
        ):
            change()
            await _pick(gateway, other, b'{"prompt": "x", "stream": true}')
            await asyncio.sleep(0.05)


async def _request_all(gateway: Gateway, services: int) -> None:
    """Give every service a request, and half of them one more: REQUESTS_PER_SECOND in all."""
    began = time.monotonic()
    for number in range(services * 3 // 2):
        await _pick(gateway, f"/bench/s{number % services}/v1/completions", b'{"prompt": "x", "stream": true}')
        await asyncio.sleep(max(0.0, began + number / REQUESTS_PER_SECOND - time.monotonic()))


async def _join(gateway: Gateway) -> None:
    """Another gateway comes and hears everything, and tells as much."""
    room, first = gateway.newsroom, News(whole=True)
    for _ in room.gather(first, time.monotonic()):
        await asyncio.sleep(0)
    message = msgspec.msgpack.encode(first.message())
    await asyncio.sleep(0)
    for _ in room.take_over("other", msgspec.msgpack.decode(message), time.monotonic()):
        await asyncio.sleep(0)
    room.forget("other")


async def _list_again(gateway: Gateway) -> None:
    """The API server no longer knows the version of the last list, and the watch lists everything anew."""
    gateway.state.replace_services([replace(service) for service in gateway.state.services.values()])
    gateway.state.replace_pods([replace(pod) for pod in gateway.state.pods])


async def _until_served(gateway: Gateway, pod: Pod) -> None:
    async with asyncio.timeout(120):
        while pod not in gateway.state.snapshot.pods.get((pod.namespace, pod.service), {}).get(pod.revision, ()):
            await asyncio.sleep(0.02)


@asynccontextmanager
async def _engines() -> AsyncIterator[int]:
    """One process on every address of the loopback network; yields its port."""
    text = ENGINE.format(page=PAGE).replace('"127.0.0.1", 0', '"0.0.0.0", 0')
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", text, stdout=asyncio.subprocess.PIPE, stderr=DEVNULL
    )
    try:
        if process.stdout is None:
            raise RuntimeError("the engines' stdout is no pipe")
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()
