"""Whose turn it is among the requests that wait in all gateways: what the others tell, and what each tenant has had. Pure.

A more important request of another gateway goes first, and within a class one of a tenant that has had less.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping

from pagefleet_gateway.cluster.service import ServiceKey
from pagefleet_gateway.holding.elsewhere import MAX_TENANTS, Arrived, Elsewhere
from pagefleet_gateway.holding.fair_queue import Others
from pagefleet_gateway.holding.shares import Shares


class Turns:
    """`here(service, priority)` returns the tenants of which requests of a class wait in this gateway."""

    def __init__(self, here: Callable[[ServiceKey, int], Collection[str]]) -> None:
        self._here = here
        self.elsewhere = Elsewhere()
        self._shares: dict[ServiceKey, Shares] = {}  # of the services for which requests wait in any gateway

    def shares(self, key: ServiceKey) -> Shares:
        """Return the counts of a service for which a request waits."""
        return self._shares.setdefault(key, Shares())

    def forget_idle(self, key: ServiceKey) -> None:
        """Forget the counts of a service of which nothing waits here, unless something waits elsewhere."""
        if not self.elsewhere.waits(key):
            self._shares.pop(key, None)

    def served(self) -> dict[str, dict[str, int]]:
        """Return the tokens that tenants have had, by `namespace/name`, without what `take_served` will return."""
        return {"/".join(key): shares.all() for key, shares in self._shares.items()}

    def take_served(self) -> dict[str, dict[str, int]]:
        """Return the tokens that this gateway has let go since the last call, by `namespace/name`."""
        return {"/".join(key): news for key, shares in self._shares.items() if (news := shares.take_news())}

    def hear(self, gateway: str, rows: object, served: object, *, whole: bool) -> Collection[ServiceKey]:
        """Take over what waits in another gateway, and what tenants got there. Return the services that it told of."""
        changed = self.elsewhere.replace(gateway, rows) if whole else self.elsewhere.update(gateway, rows)
        for key, arrived in changed.items():
            self._arrive_elsewhere(key, arrived)
        for name, counts in served.items() if isinstance(served, Mapping) else ():
            namespace, _, service = name.partition("/") if isinstance(name, str) else ("", "", "")
            if (shares := self._shares.get((namespace, service))) is not None:
                shares.hear(counts, whole=whole)
        return changed.keys()

    def forget(self, gateway: str) -> Collection[ServiceKey]:
        """Forget what waits in a gateway that is gone or silent. Return the services of which something waited in any."""
        self.elsewhere.forget(gateway)
        return list(self._shares)

    def first(self, key: ServiceKey, priority: int, tenants: Collection[str]) -> tuple[str, ...]:
        """Return those of the tenants that go first, as many as another gateway is told of."""
        shares = self.shares(key)
        return tuple(heapq.nsmallest(MAX_TENANTS, sorted(tenants), key=lambda tenant: shares.of(priority, tenant)))

    def arrive(self, key: ServiceKey, priority: int, tenant: str) -> None:
        """Begin to count a tenant of which a request comes."""
        if (shares := self._shares.get(key)) is not None:
            shares.arrive(priority, tenant, {*self._here(key, priority), *self.elsewhere.tenants(key, priority)})

    def charge(self, key: ServiceKey, priority: int, tenant: str, tokens: int) -> None:
        """Count a request that did not have to wait, while others do."""
        if (shares := self._shares.get(key)) is not None:
            shares.charge(priority, tenant, max(tokens, 1))

    def others(self, key: ServiceKey, priority: int) -> Others:
        """Return what waits elsewhere for a service, for a new request of a class."""
        return Others(*self.elsewhere.sums(key, priority), self.elsewhere.tenants(key, priority))

    def goes_later(self, key: ServiceKey, priority: int, tenant: str) -> bool:
        """Return whether a request of another gateway, which any pod may answer, goes before one of this class and tenant."""
        first = self.elsewhere.first(key)
        if first is None or first > priority:
            return False
        shares = self._shares.get(key)
        others = self.elsewhere.tenants(key, priority)
        return first < priority or (shares is not None and shares.behind(priority, tenant, others))

    def _arrive_elsewhere(self, key: ServiceKey, arrived: Arrived) -> None:
        for priority, tenant in arrived:
            there = self.elsewhere.tenants(key, priority) - {other for one, other in arrived if one == priority}
            self.shares(key).arrive(priority, tenant, {*self._here(key, priority), *there})
