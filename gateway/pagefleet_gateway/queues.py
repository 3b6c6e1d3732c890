"""How many requests wait in each engine, read from its /metrics: those of other gateways and clients too.

Reads and remembers; never chooses. A value is forgotten when it is old: a pod that does not answer counts as
idle here, because its readiness and the ejection after failures already keep requests away from it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping

import aiohttp

from .state import Pod, State

PERIOD_SECONDS = 1.0
TIMEOUT_SECONDS = 1.0
FRESH_SECONDS = 5.0
MAX_BYTES = 1024 * 1024
AT_ONCE = 32  # pods asked at the same time
_WAITING = re.compile(rb"^pagefleet_num_requests_waiting(?:\{[^}\n]*\})? ([0-9.eE+]+)\s*$", re.MULTILINE)


class Queues:
    """The last reading of each pod."""

    def __init__(self) -> None:
        self._readings: dict[str, tuple[float, float]] = {}  # uid -> (waiting, steady seconds)

    def waiting(self, pod: Pod, now: float) -> float:
        """Requests waiting in the pod's engine, 0 when nothing fresh is known."""
        value, taken = self._readings.get(pod.uid, (0.0, -FRESH_SECONDS))
        return value if now - taken < FRESH_SECONDS else 0.0

    def put(self, pod: Pod, text: bytes, now: float) -> None:
        value = waiting_in(text)
        if value is not None:
            self._readings[pod.uid] = (value, now)

    def keep(self, alive: Mapping[str, Pod]) -> None:
        self._readings = {uid: reading for uid, reading in self._readings.items() if uid in alive}

    async def follow(self, state: State) -> None:
        """Ask every ready pod once a second until cancelled."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        slots = asyncio.Semaphore(AT_ONCE)

        async def ask(session: aiohttp.ClientSession, pod: Pod) -> None:
            try:
                async with slots, session.get(f"http://{pod.address}/metrics") as response:
                    if response.status == 200:
                        self.put(pod, await _body(response), time.monotonic())
            except (aiohttp.ClientError, OSError, TimeoutError):
                return  # the reading grows old by itself

        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                pods = {pod.uid: pod for pod in state.pods if pod.ready}
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


def waiting_in(text: bytes) -> float | None:
    """The sum of `pagefleet_num_requests_waiting` in a Prometheus text; None when it has none."""
    try:
        values = [float(value) for value in _WAITING.findall(text)]
    except ValueError:
        return None
    return sum(values) if values else None
