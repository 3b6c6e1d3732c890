"""The time that the operator spends on reading the answers of each service's pods.

These answers come from tenants. A service that uses up its time is read again when it has time again; until then its pods
count as unread, with that cause. So a tenant whose pods send the worst page that is allowed delays no other service.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from pagefleet_operator.kube.store import ServiceKey

PERIOD_SECONDS = 2.0  # between two decisions about a busy service
BASE_SECONDS, POD_SECONDS = 0.05, 0.002  # a service's time in a period, and what each of its pods adds
BYTE_SECONDS = 2e-9  # to receive a byte: 2 ms for 1 MiB
TURN_SECONDS = 0.003  # the longest that one answer keeps the event loop
MAX_SERVICES = 10_000
T = TypeVar("T")


@dataclass
class Account:
    """`left` is the time in seconds that a service has; below zero it has none."""

    clock: Callable[[], float]
    size: float = BASE_SECONDS
    left: float = BASE_SECONDS
    at: float = 0.0

    @property
    def overdrawn(self) -> str:
        """The reason why nothing more is read for the service now, "" while it has time."""
        if self.left > 0:
            return ""
        return (
            f"not read: the answers of this service's pods take more than {self.size * 1000:.0f} ms "
            f"of the operator's time in {PERIOD_SECONDS:g} s"
        )

    def receive(self, number: int) -> None:
        """Charge the bytes of an answer."""
        self.left -= number * BYTE_SECONDS

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Charge the time of a block that does not await."""
        began = self.clock()
        try:
            yield
        finally:
            self.left -= self.clock() - began

    def refill(self, pods: int) -> None:
        now = self.clock()
        self.size = BASE_SECONDS + POD_SECONDS * pods
        self.left = min(self.size, self.left + (now - self.at) / PERIOD_SECONDS * self.size)
        self.at = now


async def taking_turns(items: Iterable[T], account: Account) -> AsyncIterator[T]:
    """The items, charged to the account. Every TURN_SECONDS the other tasks of the event loop run."""
    began = account.clock()
    for item in items:
        yield item
        now = account.clock()
        if now - began > TURN_SECONDS:
            account.left -= now - began
            await asyncio.sleep(0)
            began = account.clock()
    account.left -= account.clock() - began


def unlimited() -> Account:
    """The account of a reader whose time nobody counts."""
    return Account(time.perf_counter, math.inf, math.inf)


class Accounts:
    """One account for each service."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._accounts: dict[ServiceKey, Account] = {}

    def open(self, key: ServiceKey, pods: int) -> Account:
        """The account of a service that has `pods` pods, with the time that has come in since it was opened last."""
        if len(self._accounts) >= MAX_SERVICES:
            self._accounts.clear()
        account = self._accounts.setdefault(key, Account(self._clock, at=self._clock()))
        account.refill(pods)
        return account

    def forget(self, key: ServiceKey) -> None:
        self._accounts.pop(key, None)
