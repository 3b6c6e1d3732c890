"""Requests the engines' metrics pages: each service by itself, so that no service's pods delay another's readings.

A service has so many requests at a time, so many bytes and so much of the event loop's time in each round. What does not
fit comes first in the next round. All services together have so many requests begun in a second: with more pods each is read less
often, and the event loop stays free. No redirect is followed and no compressed answer is read: an engine is its tenant's
program, and neither its target nor its size is known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import aiohttp

from pagefleet_gateway.cluster.readings import Readings
from pagefleet_gateway.cluster.service import ServiceKey
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.cluster.steps import forget, parts

PERIOD_SECONDS = 1.0
TIMEOUT_SECONDS = 1.0
MAX_BYTES = 1024 * 1024  # of one page
PER_SECOND = 1_000  # requests of all services: a third of a core
STEP_SECONDS = 0.002  # rounds begin after each other in such steps
_HEADERS = {"accept": "text/plain", "accept-encoding": "identity"}


@dataclass(frozen=True)
class Limits:
    """What one service may use in a round."""

    requests: int = 4  # at the same time
    size: int = 16 * 1024 * 1024  # bytes
    seconds: float = 0.02  # of the event loop, for reading its pages


@dataclass
class Round:
    """The part of its limits that a service has left in its round."""

    size: int
    seconds: float

    @property
    def spent(self) -> bool:
        return self.size <= 0 or self.seconds <= 0


class Scrapes:
    """The scraping of every ready pod. `follow` runs until cancelled."""

    def __init__(self, state: State, readings: Readings, limits: Limits | None = None) -> None:
        self._state, self._readings, self._limits = state, readings, limits or Limits()
        self._rounds: dict[ServiceKey, asyncio.Task[None]] = {}  # under way
        self._reading = asyncio.Lock()  # of one page at a time: between two of them picks get their turn
        self._asked: dict[str, float] = {}  # by uid: the steady time of the last request

    async def follow(self) -> None:
        """Begin a round of each service once a second, or as often as PER_SECOND allows. A service whose round is not over begins none."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        # A connection that is not used in the next round costs more memory than a new one costs time. And the library closes all
        # idle ones at once: 30 ms of the loop for a thousand.
        keeping = aiohttp.TCPConnector(limit=0, keepalive_timeout=2 * PERIOD_SECONDS)
        closing = aiohttp.TCPConnector(limit=0, force_close=True)
        async with (
            aiohttp.ClientSession(connector=keeping, timeout=timeout, auto_decompress=False) as kept,
            aiohttp.ClientSession(connector=closing, timeout=timeout, auto_decompress=False) as once,
            asyncio.TaskGroup() as group,
        ):
            session = kept
            while True:
                began = due = time.monotonic()
                if not PER_SECOND // 2 < (count := len(self._state.known.by_uid)) <= PER_SECOND:
                    session = once if count > PER_SECOND else kept
                for keys in parts(self._state.known.by_service):
                    for key in keys:
                        pods = self._scraped(key)
                        if pods and key not in self._rounds:
                            self._rounds[key] = task = group.create_task(self._round(session, pods))
                            task.add_done_callback(partial(self._forget, key))
                        # A loop that was busy catches up on nothing.
                        due = max(due, time.monotonic() - STEP_SECONDS) + len(pods) / PER_SECOND
                        if (early := due - time.monotonic()) > STEP_SECONDS:
                            await asyncio.sleep(early)
                    await asyncio.sleep(0)
                uids = self._state.known.by_uid
                for _ in chain(self._readings.retain(uids), forget(self._asked, uids)):
                    await asyncio.sleep(0)
                await asyncio.sleep(max(0.0, began + PERIOD_SECONDS - time.monotonic()))

    def _forget(self, key: ServiceKey, _: asyncio.Task[None]) -> None:
        self._rounds.pop(key, None)

    def _scraped(self, key: ServiceKey) -> list[Pod]:
        """Return the service's pods whose pages are read."""
        pods = self._state.known.by_service.get(key, {}).values()
        return [pod for pod in pods if pod.may_answer and pod.engine.scraped]

    async def _round(self, session: aiohttp.ClientSession, pods: Sequence[Pod]) -> None:
        # Popped from the end: those that waited longest come first.
        waiting = sorted(pods, key=lambda pod: -self._asked.get(pod.uid, 0.0))
        left = Round(self._limits.size, self._limits.seconds)

        async def worker() -> None:
            while waiting and not left.spent:
                await self._scrape(session, waiting.pop(), left)

        await asyncio.gather(*(worker() for _ in range(min(self._limits.requests, len(waiting)))))

    async def _scrape(self, session: aiohttp.ClientSession, pod: Pod, left: Round) -> None:
        self._asked[pod.uid] = time.monotonic()
        url = f"http://{pod.address}{pod.engine.path}"
        try:
            async with session.get(url, allow_redirects=False, headers=_HEADERS) as response:
                plain = response.headers.get("content-encoding", "identity") == "identity"
                if response.status == 200 and plain:
                    page = await _page(response, left)
                    async with self._reading:
                        began = time.perf_counter()
                        self._readings.put(pod, page, time.monotonic())
                        left.seconds -= time.perf_counter() - began
                        await asyncio.sleep(0)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return  # the reading grows old by itself


async def _page(response: aiohttp.ClientResponse, left: Round) -> bytes:
    """Return the page. Raises ValueError for one that is too large: half a page is no reading."""
    parts, size = [], 0
    async for part in response.content.iter_chunked(65536):
        parts.append(part)
        size += len(part)
        left.size -= len(part)
        if size > MAX_BYTES or left.size < 0:
            raise ValueError("the page is larger than its limit")
        await asyncio.sleep(0)  # between two reads other work gets its turn
    return b"".join(parts)
