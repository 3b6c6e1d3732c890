"""Carries out the orders for warm spares: writes the readiness gate of a pod, and asks its engine to sleep or to wake.

This module remembers only which engines are being asked now. The next decision observes the outcome.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Iterable

import aiohttp

from pagefleet_contract.addresses import authority
from pagefleet_contract.names import AWAKE_GATE, ENGINE_PORT, SLEEP_LEVEL, SLEEP_PATH, WAKE_PATH
from pagefleet_operator.domain.status.codec import time_text
from pagefleet_operator.domain.status.plan import SpareOrder
from pagefleet_operator.kube import paths
from pagefleet_operator.kube.client import FAILURES, Api, Fence
from pagefleet_operator.kube.store import ServiceKey, Store

ENGINE_SECONDS = 120.0  # waking loads weights back from where sleep has put them
BUSY = 409  # requests are open, or pages in use
SLEEP = f"{SLEEP_PATH}?level={SLEEP_LEVEL}"
log = logging.getLogger(__name__)


class SpareOrders:
    """`may_write` raises when this process does not hold the lease; the writes of `api` ask it by themselves. `answered` is called with the service whose spare has
    obeyed its order."""

    def __init__(
        self,
        api: Api,
        store: Store,
        session: aiohttp.ClientSession,
        may_write: Fence,
        answered: Callable[[ServiceKey], None],
    ) -> None:
        self._api, self._store, self._session = api, store, session
        self._may_write, self._answered = may_write, answered
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def carry_out(self, key: ServiceKey, orders: Iterable[SpareOrder]) -> None:
        """Write the readiness gates, and ask engines in the background."""
        for order in orders:
            self._may_write()
            if order.opened is not None:
                await self._gate(key[0], order.pod, opened=order.opened)
            if order.asleep is not None and order.address and order.address not in self._asking:
                task = asyncio.create_task(self._ask(key, order.address, SLEEP if order.asleep else WAKE_PATH))
                self._asking[order.address] = task
                task.add_done_callback(functools.partial(self._done, order.address))

    def _done(self, address: str, _: asyncio.Task[None]) -> None:
        self._asking.pop(address, None)

    async def _gate(self, namespace: str, pod: str, *, opened: bool) -> None:
        condition = {
            "type": AWAKE_GATE,
            "status": "True" if opened else "False",
            "reason": "StandsIn" if opened else "Rests",
            "lastTransitionTime": time_text(time.time())[:19] + "Z",
        }
        path = f"{paths.named('v1', 'Pod', namespace, pod)}/status"
        try:
            self._store.upsert("Pod", await self._api.merge_lists(path, {"status": {"conditions": [condition]}}))
        except FAILURES as error:  # the pod is gone or terminating: the next decision observes what is there
            log.warning("spare %s keeps its readiness gate: %s", pod, error or type(error).__name__)

    async def _ask(self, key: ServiceKey, address: str, path: str) -> None:
        try:
            timeout = aiohttp.ClientTimeout(total=ENGINE_SECONDS)
            url = f"http://{authority(address, ENGINE_PORT)}{path}"
            async with self._session.post(url, timeout=timeout, allow_redirects=False) as response:
                if response.status >= 300:
                    level = logging.DEBUG if response.status == BUSY else logging.WARNING
                    log.log(level, "spare %s answers %s with %s", address, path, response.status)
                    return
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.warning("spare %s does not answer %s: %s", address, path, error or type(error).__name__)
            return
        self._answered(key)
