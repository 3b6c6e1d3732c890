"""observe -> decide -> apply for one InferenceService, and the queue that decides when.

Reconciling is level-triggered: an event says only that a service is due, never what happened.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import aiohttp

from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.plan import SpareOrder
from pagefleet_operator.domain.status.status import Status
from pagefleet_operator.kube.apply import Applier
from pagefleet_operator.kube.client import ApiError
from pagefleet_operator.kube.store import ServiceKey
from pagefleet_operator.observe import Gatherer
from pagefleet_operator.web.own_metrics import Metrics

WORKERS, MAX_OF_A_TENANT = 32, 8  # decisions at the same time, and those of one namespace among them
MIN_PAUSE, MAX_PAUSE = 0.5, 15.0  # seconds; the end of an outage is noticed at most MAX_PAUSE late
CONFLICT = 409
log = logging.getLogger(__name__)


class Reconciler:
    """Reconciles one service at a time.

    After each decision that is stored three callbacks are called: `asleep` with whether the service is at zero replicas, `shown` with
    the observation, the status and the time (for the status page), `order` with the orders for warm spares.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        applier: Applier,
        metrics: Metrics,
        asleep: Callable[[ServiceKey, bool], None],
        shown: Callable[[Observation, Status, float], None],
        order: Callable[[ServiceKey, tuple[SpareOrder, ...]], Awaitable[None]],
    ) -> None:
        self._order = order
        self._gatherer, self._applier, self._metrics = gatherer, applier, metrics
        self._asleep, self._shown = asleep, shown

    async def reconcile(self, key: ServiceKey) -> float | None:
        """Decide on a service and apply the plan. Returns the seconds until it is due again; None when it is gone."""
        namespace, name = key
        service = self._gatherer.service(namespace, name)
        if service is None or "deletionTimestamp" in service["metadata"]:
            self._metrics.forget(namespace, name)
            self._gatherer.forget(namespace, name)
            self._asleep(key, False)
            return None
        observation = await self._gatherer.observe(service)
        now = time.time()
        plan = decide(observation, now)
        failure = await self._applier.apply(service, plan)
        await self._order(key, plan.spares)
        self._metrics.planned(namespace, name, plan)
        self._metrics.load.planned(observation, plan)
        self._metrics.llm_cost.planned(observation, plan)
        self._asleep(key, plan.asleep)
        self._shown(observation, plan.status, now)
        if failure is not None:  # the decision is stored, and holds; what failed is tried again
            raise failure
        return plan.requeue


class Queue:
    """Services that are due, soonest first. One worker at a time handles a service; a failing one is retried more and more
    slowly. Services of one namespace whose pods do not answer leave workers for the others."""

    def __init__(self, work: Callable[[ServiceKey], Awaitable[float | None]], metrics: Metrics) -> None:
        self._work, self._metrics = work, metrics
        self._due: dict[ServiceKey, float] = {}
        # The same, soonest first. An entry that `_due` contradicts is out of date. Busy services are pushed when done, and so
        # are those that wait because their namespace has its share of the workers.
        self._heap: list[tuple[float, ServiceKey]] = []
        self._busy: set[ServiceKey] = set()
        self._working = Counter[str]()  # by namespace
        self._waiting: dict[str, set[ServiceKey]] = {}
        self._failures: dict[ServiceKey, int] = {}
        self._changed = asyncio.Event()

    def add(self, key: ServiceKey, delay: float = 0.0, *, first: bool = False) -> None:
        """Make a service due in `delay` seconds, or sooner where it already is. `first` puts it before every other one."""
        when = float("-inf") if first else time.monotonic() + delay
        if when < self._due.get(key, math.inf):
            self._due[key] = when
            heapq.heappush(self._heap, (when, key))
        self._changed.set()

    def _late(self) -> float:
        """The number of services that are due already. Every other service is due at some later time."""
        now = time.monotonic()
        return float(sum(when <= now for when in self._due.values()))

    async def run(self, *needed: asyncio.Event) -> None:
        """Work for ever, once all events of `needed` are set. Services that become due earlier wait in the queue."""
        for event in needed:
            await event.wait()
        self._metrics.queue.set_function(self._late)  # an operator that stands by owes no decision
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        while True:
            key = await self._next()
            self._busy.add(key)
            self._working[key[0]] += 1
            try:
                await self._one(key)
            finally:
                self._busy.discard(key)
                self._working[key[0]] -= 1
                for freed in {key, *self._waiting.pop(key[0], ())}:
                    if freed in self._due:
                        heapq.heappush(self._heap, (self._due[freed], freed))
                self._changed.set()

    async def _next(self) -> ServiceKey:
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

    def _soonest(self) -> tuple[float, ServiceKey] | None:
        """The soonest service that no worker handles now. Its entry stays in the heap."""
        while self._heap:
            when, key = self._heap[0]
            current = self._due.get(key) == when and key not in self._busy
            if current and self._working[key[0]] < MAX_OF_A_TENANT:
                return when, key
            if current:
                self._waiting.setdefault(key[0], set()).add(key)
            heapq.heappop(self._heap)
        return None

    async def _one(self, key: ServiceKey) -> None:
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

    def _failed(self, key: ServiceKey, error: Exception) -> None:
        count = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(MAX_PAUSE, MIN_PAUSE * 2.0 ** (count - 1))
        self._metrics.errors.labels(type(error).__name__).inc()
        log.warning(
            "%s/%s cannot be reconciled: %s; the next try is in %.1f s", *key, error or type(error).__name__, pause
        )
        self.add(key, pause)
