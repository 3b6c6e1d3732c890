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
from subprocess import DEVNULL

import uvloop
from bench.gatewaybench.stalls import ENGINE, _beside, _gateway, _pick

from pagefleet_gateway.app import Gateway
from pagefleet_gateway.cluster.state import Pod, Service

SERVICES, PODS_EACH = 5_000, 2
CHANGES = 20
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
