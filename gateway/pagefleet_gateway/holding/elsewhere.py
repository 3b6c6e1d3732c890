"""The requests that wait in the other gateways, as they tell of them. Pure.

Total: a row that is malformed is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pagefleet_gateway.cluster.service import ServiceKey

MAX_SERVICES, MAX_CLASSES = 20_000, 64  # that one gateway may tell about
MAX_TENANTS = 64  # of one class that a gateway tells about: those that go first
MAX_COUNT = 1 << 48


Arrived = set[tuple[int, str]]  # classes and tenants


@dataclass(frozen=True)
class Waiting:
    """The requests of one class that wait in a gateway, and their bytes. `unbound` of them may go to any pod with traffic, and
    `tenants` are whose they are."""

    priority: int  # the smaller, the more important; as `Service.priority` counts
    requests: int
    bytes: int
    unbound: int
    tenants: tuple[str, ...] = ()

    @property
    def row(self) -> list[object]:
        return [self.priority, self.requests, self.bytes, self.unbound, list(self.tenants)]


class Elsewhere:
    """What waits in the other gateways, by gateway and service."""

    def __init__(self) -> None:
        self._told: dict[str, dict[ServiceKey, tuple[Waiting, ...]]] = {}

    def replace(self, gateway: str, rows: object) -> dict[ServiceKey, Arrived]:
        """Take over everything that waits in a gateway. Return the services that it told of, as `update` does."""
        self.forget(gateway)
        return self.update(gateway, rows)

    def update(self, gateway: str, rows: object) -> dict[ServiceKey, Arrived]:
        """Take over what has changed in a gateway. Return the services that it told of, with the tenants of which nothing waited
        elsewhere before."""
        told = self._told.setdefault(gateway, {})
        changed: dict[ServiceKey, Arrived] = {}
        for name, classes in rows.items() if isinstance(rows, Mapping) else ():
            namespace, _, service = name.partition("/") if isinstance(name, str) else ("", "", "")
            if not service or not isinstance(classes, list) or len(classes) > MAX_CLASSES:
                continue
            key, waiting = (namespace, service), tuple(one for row in classes if (one := _read(row)) is not None)
            before = {(one.priority, tenant) for _, one in self.of(key) for tenant in one.tenants}
            changed[key] = {(one.priority, tenant) for one in waiting for tenant in one.tenants} - before
            told.pop(key, None)
            if waiting and len(told) < MAX_SERVICES:
                told[key] = waiting
        return changed

    def forget(self, gateway: str) -> None:
        """Forget a gateway that is gone or silent: what waits there ends with it, or is not known."""
        self._told.pop(gateway, None)

    def of(self, key: ServiceKey) -> Iterator[tuple[str, Waiting]]:
        """Return what waits for a service, each with its gateway."""
        for gateway, told in self._told.items():
            for waiting in told.get(key, ()):
                yield gateway, waiting

    def first(self, key: ServiceKey) -> int | None:
        """Return the most important class of which a request waits elsewhere for any pod, None for none."""
        return min((waiting.priority for _, waiting in self.of(key) if waiting.unbound), default=None)

    def sums(self, key: ServiceKey, priority: int) -> tuple[int, int, int]:
        """Return the requests and bytes that wait elsewhere, and how many of the requests are less important than a class."""
        found = [waiting for _, waiting in self.of(key)]
        lower = sum(waiting.requests for waiting in found if waiting.priority > priority)
        return sum(waiting.requests for waiting in found), sum(waiting.bytes for waiting in found), lower

    def of_class(self, key: ServiceKey, priority: int) -> tuple[int, int]:
        """Return the requests of a class that wait elsewhere, and their bytes."""
        found = [waiting for _, waiting in self.of(key) if waiting.priority == priority]
        return sum(waiting.requests for waiting in found), sum(waiting.bytes for waiting in found)

    def tenants(self, key: ServiceKey, priority: int) -> set[str]:
        """Return the tenants of a class of which a request waits elsewhere for any pod."""
        return {tenant for _, waiting in self.of(key) if waiting.priority == priority for tenant in waiting.tenants}

    def waits(self, key: ServiceKey) -> bool:
        """Return whether any request for a service waits elsewhere."""
        return any(key in told for told in self._told.values())


def surplus(own: str, key: ServiceKey, mine: tuple[Waiting, ...], elsewhere: Elsewhere, bound: int) -> tuple[int, int]:
    """Return the class of which this gateway gives requests up, and how many, so that at most `bound` wait in all gateways.

    The least important class gives up first, and of its gateways the first by name. The most important class that waits gives up
    none: it was there within the bound, or came at the same time.
    """
    everywhere = [*((own, waiting) for waiting in mine), *elsewhere.of(key)]
    over = sum(waiting.requests for _, waiting in everywhere) - bound
    first = min((waiting.priority for _, waiting in everywhere), default=0)
    for gateway, waiting in sorted(everywhere, key=lambda entry: (-entry[1].priority, entry[0])):
        if over <= 0 or waiting.priority <= first:
            break
        if gateway == own:
            return waiting.priority, min(over, waiting.requests)
        over -= waiting.requests
    return 0, 0


def _read(row: object) -> Waiting | None:
    """Read a row. A gateway of an older version tells no tenants."""
    if not isinstance(row, list) or len(row) not in (4, 5):
        return None
    if not all(type(value) is int and abs(value) <= MAX_COUNT for value in row[:4]) or min(row[1:4]) < 0 or not row[1]:
        return None
    tenants = row[4][:MAX_TENANTS] if len(row) > 4 and isinstance(row[4], list) else ()
    return Waiting(row[0], row[1], row[2], row[3], tuple(one for one in tenants if isinstance(one, str)))
