"""What each engine says of itself on /metrics: queue, KV pages, adapters. It knows of other gateways' requests too.

Reads and remembers; never chooses. A reading is forgotten when it is old: a pod that does not answer counts as
idle here, because its readiness and the ejection after failures already keep requests away from it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import aiohttp

from pagefleet_contract import engine_metrics
from pagefleet_gateway.cluster.engines import OURS, Engine, Reader
from pagefleet_gateway.cluster.state import Pod, State

PERIOD_SECONDS = 1.0
TIMEOUT_SECONDS = 1.0
FRESH_SECONDS = 5.0
MAX_BYTES = 1024 * 1024
AT_ONCE = 32  # pods asked at the same time
# vLLM's names, and ours that mirror them.
_RUNNING, _WAITING, _KV_USAGE, _LORA_INFO = (
    name.removeprefix(engine_metrics.PREFIX).encode()
    for name in (engine_metrics.RUNNING, engine_metrics.WAITING, engine_metrics.KV_USAGE, engine_metrics.LORA_INFO)
)
_PREFIX = f"^(?:{engine_metrics.PREFIX}|{engine_metrics.VLLM_PREFIX})".encode()
_SAMPLE = re.compile(
    _PREFIX + b"(" + b"|".join((_RUNNING, _WAITING, _KV_USAGE)) + rb")(?:\{[^}\n]*\})? ([0-9.eE+-]+)\s*$",
    re.MULTILINE,
)
_ADAPTERS = re.compile(
    _PREFIX + _LORA_INFO + rb"\{[^}\n]*" + engine_metrics.RUNNING_ADAPTERS.encode() + rb'="([^"]*)"', re.MULTILINE
)


@dataclass(frozen=True)
class Reading:
    running: float = 0.0  # requests
    waiting: float = 0.0  # requests
    foreign: float = 0.0  # requests, running or waiting, that this gateway did not send
    kv_usage: float = 0.0  # share of KV pages in use, 0 to 1
    adapters: frozenset[str] = frozenset()  # LoRA adapters it serves now


UNKNOWN = Reading()


class Readings:
    """The last reading of each pod."""

    def __init__(self, own: Callable[[Pod], float] = lambda _: 0.0) -> None:
        """`own`: how many requests this gateway has in flight on a pod."""
        self._own = own
        self._readings: dict[str, tuple[Reading, float]] = {}  # uid -> (reading, steady seconds)

    def of(self, pod: Pod, now: float) -> Reading:
        """The pod's reading; all zero when nothing fresh is known."""
        reading, taken = self._readings.get(pod.uid, (UNKNOWN, -FRESH_SECONDS))
        return reading if now - taken < FRESH_SECONDS else UNKNOWN

    def put(self, pod: Pod, text: bytes, now: float) -> None:
        reading = reading_in(text, pod.engine)
        if reading is not None:
            foreign = max(0.0, reading.running + reading.waiting - self._own(pod))
            self._readings[pod.uid] = (replace(reading, foreign=foreign), now)

    def keep(self, alive: Mapping[str, Pod]) -> None:
        self._readings = {uid: reading for uid, reading in self._readings.items() if uid in alive}

    async def follow(self, state: State) -> None:
        """Ask every ready pod once a second until cancelled."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        slots = asyncio.Semaphore(AT_ONCE)

        async def ask(session: aiohttp.ClientSession, pod: Pod) -> None:
            try:
                async with slots, session.get(f"http://{pod.address}{pod.engine.path}") as response:
                    if response.status == 200:
                        self.put(pod, await _body(response), time.monotonic())
            except (aiohttp.ClientError, OSError, TimeoutError):
                return  # the reading grows old by itself

        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                pods = {pod.uid: pod for pod in state.pods if pod.may_answer and pod.engine.known}
                self.keep(pods)
                await asyncio.gather(*(ask(session, pod) for pod in pods.values()))
                await asyncio.sleep(PERIOD_SECONDS)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """The answer's first MAX_BYTES."""
    parts, size = [], 0
    async for part in response.content.iter_chunked(65536):
        parts.append(part)
        size += len(part)
        if size >= MAX_BYTES:
            break
    return b"".join(parts)


def reading_in(text: bytes, engine: Engine = OURS) -> Reading | None:
    """The reading in a Prometheus text, requests summed over its label sets; None when it has none."""
    if engine.running is not None and engine.waiting is not None:
        return _named(text, engine, engine.running, engine.waiting)
    found: dict[bytes, list[float]] = {}
    try:
        for name, value in _SAMPLE.findall(text):
            found.setdefault(name, []).append(float(value))
    except ValueError:
        return None
    if not found:
        return None
    return Reading(
        running=sum(found.get(_RUNNING, ())),
        waiting=sum(found.get(_WAITING, ())),
        kv_usage=max(found.get(_KV_USAGE, (0.0,))),
        adapters=_adapters(text),
    )


def _named(text: bytes, engine: Engine, running: Reader, waiting: Reader) -> Reading | None:
    """By the names that the operator gave; without KV pages the pod's cache counts as empty."""
    try:
        run, wait = running.values(text), waiting.values(text)
        usage = max(engine.usage.values(text), default=0.0) if engine.usage else _used(text, engine)
    except ValueError:
        return None
    if not run or not wait:
        return None
    return Reading(running=sum(run), waiting=sum(wait), kv_usage=min(1.0, max(0.0, usage)), adapters=_adapters(text))


def _used(text: bytes, engine: Engine) -> float:
    """The share of KV pages in use, by their counts."""
    if engine.pages is None or engine.free is None:
        return 0.0
    total, free = sum(engine.pages.values(text)), sum(engine.free.values(text))
    cached = sum(engine.cached.values(text)) if engine.cached else 0.0
    return 1.0 - (free + cached) / total if total > 0 else 0.0


def _adapters(text: bytes) -> frozenset[str]:
    names = {name for found in _ADAPTERS.findall(text) for name in found.decode("utf-8", "replace").split(",")}
    return frozenset(names - {""})
