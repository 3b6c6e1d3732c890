"""Wakes services at zero: while any service sleeps, asks the gateways twice a second for the services with held requests.

Each gateway gets one small request, however many services sleep. It gets none while no service sleeps.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping

import aiohttp

from pagefleet_contract.addresses import authority
from pagefleet_contract.names import GATEWAY_INTERNAL_PORT
from pagefleet_operator.kube.client import ApiError
from pagefleet_operator.kube.store import ServiceKey
from pagefleet_operator.metrics.fetching import FetchError, Question, fetch

PERIOD_SECONDS, LISTED_SECONDS, TIMEOUT_SECONDS = 0.5, 5.0, 2.0
MAX_BYTES = 256 << 10  # some thousand services with held requests
log = logging.getLogger(__name__)


class Wakes:
    """`gateways` lists the gateways' addresses, and raises ApiError or aiohttp.ClientError where it cannot; `wake` is called for a
    sleeping service with held requests."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        gateways: Callable[[], Awaitable[list[str]]],
        wake: Callable[[ServiceKey], None],
    ) -> None:
        self._session, self._gateways, self._wake = session, gateways, wake
        self._asleep: set[ServiceKey] = set()
        self._some = asyncio.Event()

    def note(self, key: ServiceKey, asleep: bool) -> None:
        """Remember whether the last decision left a service asleep."""
        if asleep:
            self._asleep.add(key)
            self._some.set()
        else:
            self._asleep.discard(key)

    async def run(self) -> None:
        """Ask until cancelled."""
        loop, addresses, listed = asyncio.get_running_loop(), [], float("-inf")
        while True:
            if not self._asleep:
                self._some.clear()
                await self._some.wait()
            if loop.time() - listed > LISTED_SECONDS:
                try:
                    addresses, listed = await self._gateways(), loop.time()
                except (ApiError, aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                    log.warning("cannot list the gateways: %s", error or type(error).__name__)
            answers = await asyncio.gather(*(self._held(address) for address in addresses))
            for key in set().union(*answers) & self._asleep:
                self._wake(key)
            await asyncio.sleep(PERIOD_SECONDS)

    async def _held(self, address: str) -> set[ServiceKey]:
        question = Question(f"http://{authority(address, GATEWAY_INTERNAL_PORT)}/held", TIMEOUT_SECONDS, MAX_BYTES)
        try:
            return keys(json.loads(await fetch(self._session, question)))
        except (FetchError, ValueError, RecursionError) as error:
            log.debug("gateway %s: its held requests cannot be read: %s", address, error or type(error).__name__)
            return set()


def keys(document: object) -> set[ServiceKey]:
    """The services of `{"held": {"<namespace>/<service>": count}}`; entries that cannot be read are left out."""
    held = document.get("held") if isinstance(document, Mapping) else None
    services = set()
    for name, count in (held if isinstance(held, Mapping) else {}).items():
        namespace, slash, service = str(name).partition("/")
        if slash and isinstance(count, int) and count > 0:
            services.add((namespace, service))
    return services
