"""The readings of each engine's metrics page: queue, KV pages, adapters. They count other gateways' requests too.

Reads and remembers; never chooses. An old reading is forgotten: a pod that does not answer counts as idle here, because its
readiness and the ejection after failures already keep requests away from it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import aiohttp

from pagefleet_contract import engine_metrics
from pagefleet_gateway.cluster.engines import OWN_ENGINE, Engine, Reader
from pagefleet_gateway.cluster.state import Pod, State

PERIOD_SECONDS = 1.0
TIMEOUT_SECONDS = 1.0
MAX_AGE_SECONDS = 5.0
MAX_BYTES = 1024 * 1024
MAX_SCRAPES = 32  # at the same time
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
    """One engine's load at one scrape."""

    running: float = 0.0  # requests
    waiting: float = 0.0  # requests
    foreign: float = 0.0  # requests, running or waiting, of other gateways
    kv_usage: float = 0.0  # share of KV pages in use, 0 to 1
    adapters: frozenset[str] = frozenset()  # LoRA adapters that it serves now


UNKNOWN = Reading()


class Readings:
    """The last reading of each pod."""

    def __init__(self, in_flight: Callable[[Pod], float] = lambda _: 0.0) -> None:
        """`in_flight` returns how many requests this gateway has in flight on a pod."""
        self._in_flight = in_flight
        self._readings: dict[str, tuple[Reading, float]] = {}  # uid -> (reading, steady seconds)

    def of(self, pod: Pod, now: float) -> Reading:
        """Return the pod's reading; all zero when there is none or it is too old."""
        reading, at = self._readings.get(pod.uid, (UNKNOWN, -MAX_AGE_SECONDS))
        return reading if now - at < MAX_AGE_SECONDS else UNKNOWN

    def put(self, pod: Pod, text: bytes, now: float) -> None:
        reading = reading_in(text, pod.engine)
        if reading is not None:
            foreign = max(0.0, reading.running + reading.waiting - self._in_flight(pod))
            self._readings[pod.uid] = (replace(reading, foreign=foreign), now)

    def retain(self, pods: Mapping[str, Pod]) -> None:
        """Forget pods that are not among `pods`, by uid."""
        self._readings = {uid: reading for uid, reading in self._readings.items() if uid in pods}

    async def follow(self, state: State) -> None:
        """Scrape every ready pod once a second until cancelled."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        slots = asyncio.Semaphore(MAX_SCRAPES)

        async def scrape(session: aiohttp.ClientSession, pod: Pod) -> None:
            try:
                url = f"http://{pod.address}{pod.engine.path}"
                async with slots, session.get(url, allow_redirects=False) as response:
                    if response.status == 200:
                        self.put(pod, await _body(response), time.monotonic())
            except (aiohttp.ClientError, OSError, TimeoutError):
                return  # the reading grows old by itself

        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                pods = {pod.uid: pod for pod in state.pods if pod.may_answer and pod.engine.scraped}
                self.retain(pods)
                await asyncio.gather(*(scrape(session, pod) for pod in pods.values()))
                await asyncio.sleep(PERIOD_SECONDS)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """Return the answer's first MAX_BYTES."""
    parts, size = [], 0
    async for part in response.content.iter_chunked(65536):
        parts.append(part)
        size += len(part)
        if size >= MAX_BYTES:
            break
    return b"".join(parts)


def reading_in(text: bytes, engine: Engine = OWN_ENGINE) -> Reading | None:
    """Return the reading in a Prometheus text, with requests summed over label sets; None when it has none."""
    if engine.running is not None and engine.waiting is not None:
        return _configured_reading(text, engine, engine.running, engine.waiting)
    samples: dict[bytes, list[float]] = {}
    try:
        for name, value in _SAMPLE.findall(text):
            samples.setdefault(name, []).append(float(value))
    except ValueError:
        return None
    if not samples:
        return None
    return Reading(
        running=sum(samples.get(_RUNNING, ())),
        waiting=sum(samples.get(_WAITING, ())),
        kv_usage=max(samples.get(_KV_USAGE, (0.0,))),
        adapters=_adapters(text),
    )


def _configured_reading(text: bytes, engine: Engine, running: Reader, waiting: Reader) -> Reading | None:
    """Read the metrics by the names in the pod's annotation. Without KV pages the pod's cache counts as empty."""
    try:
        run, wait = running.values(text), waiting.values(text)
        usage = max(engine.kv_usage.values(text), default=0.0) if engine.kv_usage else _usage_by_pages(text, engine)
    except ValueError:
        return None
    if not run or not wait:
        return None
    return Reading(running=sum(run), waiting=sum(wait), kv_usage=min(1.0, max(0.0, usage)), adapters=_adapters(text))


def _usage_by_pages(text: bytes, engine: Engine) -> float:
    """Return the share of KV pages in use, from their counts."""
    if engine.kv_pages_total is None or engine.kv_pages_blank is None:
        return 0.0
    total, blank = sum(engine.kv_pages_total.values(text)), sum(engine.kv_pages_blank.values(text))
    cached = sum(engine.kv_pages_cached.values(text)) if engine.kv_pages_cached else 0.0
    return 1.0 - (blank + cached) / total if total > 0 else 0.0


def _adapters(text: bytes) -> frozenset[str]:
    names = {name for listed in _ADAPTERS.findall(text) for name in listed.decode("utf-8", "replace").split(",")}
    return frozenset(names - {""})
