"""The time that the operator spends on reading the answers of each service's pods.

These answers come from tenants. A service that uses up its time, or its tenant's (a namespace is a tenant), is read again
when it has time again; until then its pods count as unread, with that cause. So a tenant whose pods send the worst pages that
are allowed delays no other tenant, however many services and pods it has (`bench/tenants.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import aiohttp

from pagefleet_operator.kube.store import ServiceKey
from pagefleet_operator.metrics.fetching import FetchError, Question, fetch

PERIOD_SECONDS = 2.0  # between two decisions about a busy service
BASE_SECONDS, POD_SECONDS = 0.05, 0.004  # a service's time in a period, and what each of its pods adds
TENANT_SECONDS = 0.2  # all services of a namespace together in a period
BYTE_SECONDS = 2e-9  # to receive a byte: 2 ms for 1 MiB
MAX_ASKED = 64  # pods of a tenant that are asked at the same time
TURN_SECONDS = 0.003  # the longest that one answer keeps the event loop
MAX_ACCOUNTS = 10_000
T = TypeVar("T")


@dataclass
class Allowance:
    """Time that comes in at `size` seconds a period. `left` is what is there; below zero there is none."""

    size: float
    left: float
    at: float

    def refill(self, size: float, now: float) -> None:
        self.size = size
        self.left = min(size, self.left + (now - self.at) / PERIOD_SECONDS * size)
        self.at = now


@dataclass
class Tenant:
    """A namespace: its time, and the places of those of its pods that are being asked."""

    time: Allowance
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_ASKED))


@dataclass
class Account:
    """A service's time within its tenant's."""

    clock: Callable[[], float]
    time: Allowance
    tenant: Tenant

    @property
    def overdrawn(self) -> str:
        """The reason why nothing more is read for the service now, "" while it has time."""
        for whose, allowance in (("this service's pods", self.time), ("this namespace's pods", self.tenant.time)):
            if allowance.left <= 0:
                return (
                    f"not read: the answers of {whose} take more than {allowance.size * 1000:.0f} ms "
                    f"of the operator's time in {PERIOD_SECONDS:g} s"
                )
        return ""

    def charge(self, seconds: float) -> None:
        self.time.left -= seconds
        self.tenant.time.left -= seconds

    def receive(self, number: int) -> None:
        """Charge the bytes of an answer."""
        self.charge(number * BYTE_SECONDS)

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Charge the time of a block that does not await."""
        began = self.clock()
        try:
            yield
        finally:
            self.charge(self.clock() - began)


class UnaskedError(FetchError):
    """The service has no time left, so its pod is not asked."""


async def fetch_charged(session: aiohttp.ClientSession, question: Question, account: Account) -> bytes:
    """The body of a pod's answer, charged to the pod's service. Raises FetchError, and UnaskedError without a request."""
    async with account.tenant.places:
        if account.overdrawn:
            raise UnaskedError(f"is {account.overdrawn}")
        try:
            body = await fetch(session, question)
        except FetchError as error:
            account.receive(error.received)
            raise
    account.receive(len(body))
    return body


async def taking_turns(items: Iterable[T], account: Account) -> AsyncIterator[T]:
    """The items, charged to the account. Every TURN_SECONDS the other tasks of the event loop run."""
    began = account.clock()
    for item in items:
        yield item
        now = account.clock()
        if now - began > TURN_SECONDS:
            account.charge(now - began)
            await asyncio.sleep(0)
            began = account.clock()
    account.charge(account.clock() - began)


def unlimited() -> Account:
    """The account of a reader whose time nobody counts."""
    endless = Allowance(math.inf, math.inf, 0.0)
    return Account(time.perf_counter, endless, Tenant(endless))


class Accounts:
    """One account for each service."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._services: dict[ServiceKey, Allowance] = {}
        self._tenants: dict[str, Tenant] = {}

    def open(self, key: ServiceKey, pods: int) -> Account:
        """The account of a service that has `pods` pods, with the time that has come in since it was opened last."""
        now, size = self._clock(), BASE_SECONDS + POD_SECONDS * pods
        if len(self._services) >= MAX_ACCOUNTS:
            self._services.clear()
            self._tenants.clear()
        own = self._services.setdefault(key, Allowance(size, size, now))
        own.refill(size, now)
        tenant = self._tenants.setdefault(key[0], Tenant(Allowance(TENANT_SECONDS, TENANT_SECONDS, now)))
        tenant.time.refill(TENANT_SECONDS, now)
        return Account(self._clock, own, tenant)

    def forget(self, key: ServiceKey) -> None:
        self._services.pop(key, None)
        if not any(namespace == key[0] for namespace, _ in self._services):
            self._tenants.pop(key[0], None)
