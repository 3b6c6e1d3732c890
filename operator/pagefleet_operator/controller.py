"""gather -> decide -> apply for one InferenceService, and the queue that decides when. Level-triggered: an event only
says that a service is due, never what happened."""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import time
from collections.abc import Awaitable, Callable

import aiohttp

from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.plan import SpareOrder
from pagefleet_operator.domain.status.status import Status
from pagefleet_operator.kube.apply import Applier
from pagefleet_operator.kube.client import ApiError
from pagefleet_operator.observe import Gatherer
from pagefleet_operator.web.own_metrics import Metrics

Key = tuple[str, str]
WORKERS = 8
FIRST_PAUSE, LAST_PAUSE = 0.5, 15.0  # seconds; the last is how late an outage's end may be noticed
CONFLICT = 409
log = logging.getLogger(__name__)


class Reconciler:
    """`asleep` is told after each decision whether the service is at zero, `shown` what was seen and written;
    `order` tells the warm spares what they are to do."""

    def __init__(
        self,
        gatherer: Gatherer,
        applier: Applier,
        metrics: Metrics,
        asleep: Callable[[Key, bool], None],
        shown: Callable[[Observation, Status, float], None],
        order: Callable[[Key, tuple[SpareOrder, ...]], Awaitable[None]],
    ) -> None:
        self._order = order
        self._gatherer, self._applier, self._metrics = gatherer, applier, metrics
        self._asleep, self._shown = asleep, shown

    async def reconcile(self, key: Key) -> float | None:
        """Seconds until the next decision is due; None when the service is gone."""
        namespace, name = key
        service = self._gatherer.service(namespace, name)
        if service is None or "deletionTimestamp" in service["metadata"]:
            self._metrics.forget(namespace, name)
            self._gatherer.forget(namespace, name)
            self._asleep(key, False)
            return None
        seen = await self._gatherer.observe(service)
        now = time.time()
        plan = decide(seen, now)
        await self._applier.apply(service, plan)
        await self._order(key, plan.spares)
        self._metrics.planned(namespace, name, plan)
        self._metrics.load.planned(seen, plan)
        self._asleep(key, plan.asleep)
        self._shown(seen, plan.status, now)
        return plan.requeue


class Queue:
    """Services due, each worked on by one worker at a time, soonest first. A failing one waits longer and longer."""

    def __init__(self, work: Callable[[Key], Awaitable[float | None]], metrics: Metrics) -> None:
        self._work, self._metrics = work, metrics
        self._due: dict[Key, float] = {}
        # The same, soonest first; an entry that `_due` contradicts is out of date. Those of busy services come later.
        self._heap: list[tuple[float, Key]] = []
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()

    def add(self, key: Key, delay: float = 0.0, *, first: bool = False) -> None:
        """Due in `delay` seconds, or sooner when it already is; `first`: before all that is late already."""
        when = float("-inf") if first else time.monotonic() + delay
        if when < self._due.get(key, math.inf):
            self._due[key] = when
            heapq.heappush(self._heap, (when, key))
        self._metrics.queue.set(len(self._due))
        self._changed.set()

    async def run(self, *needed: asyncio.Event) -> None:
        """For ever, from when all of `needed` are set; what becomes due before that is kept."""
        for event in needed:
            await event.wait()
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        while True:
            key = await self._next()
            self._busy.add(key)
            try:
                await self._one(key)
            finally:
                self._busy.discard(key)
                if key in self._due:
                    heapq.heappush(self._heap, (self._due[key], key))
                self._changed.set()

    async def _next(self) -> Key:
        while True:
            self._changed.clear()
            now, soonest = time.monotonic(), self._soonest()
            if soonest is not None and soonest[0] <= now:
                del self._due[soonest[1]]
                return soonest[1]
            try:
                async with asyncio.timeout(None if soonest is None else soonest[0] - now):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _soonest(self) -> tuple[float, Key] | None:
        """Of the services that nobody works on; it stays in the heap."""
        while self._heap:
            when, key = self._heap[0]
            if self._due.get(key) == when and key not in self._busy:
                return when, key
            heapq.heappop(self._heap)
        return None

    async def _one(self, key: Key) -> None:
        try:
            with self._metrics.reconciles.time():
                delay = await self._work(key)
        except ApiError as error:
            if error.status == CONFLICT:  # somebody else wrote first: decide again on what is there now
                self.add(key, 0.05)
                return
            self._failed(key, error)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._failed(key, error)
        except Exception as error:
            log.exception("a decision about %s/%s failed", *key)
            self._failed(key, error)
        else:
            self._failures.pop(key, None)
            if delay is not None:
                self.add(key, delay)

    def _failed(self, key: Key, error: Exception) -> None:
        count = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(LAST_PAUSE, FIRST_PAUSE * 2.0 ** (count - 1))
        self._metrics.errors.labels(type(error).__name__).inc()
        log.warning("%s/%s: %s; again in %.1f s", *key, error or type(error).__name__, pause)
        self.add(key, pause)
