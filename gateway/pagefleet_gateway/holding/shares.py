"""The tokens that were let go for each tenant of a service, by all gateways: who has had the fewest goes first. Pure.

Source: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024 (the virtual token counter). A tenant of which nothing
waited begins with at least the fewest tokens of those that wait: nobody saves up turns. Every gateway counts what the others tell,
so the counts differ only by what is on its way. Tenants are named by digests, because clients choose what names them.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping

from pagefleet_gateway.limits.buckets import digest

LEAD = 512  # tokens by which a tenant may be ahead of one that waits in another gateway
MAX_TENANTS = 1024  # of one class that are remembered
MAX_CLASSES = 64  # of one service that are remembered
MAX_TOKENS = 1 << 48
CLASS = re.compile("-?[0-9]{1,10}")  # a class as `Service.priority` counts them


def tenant_of(value: str) -> str:
    """Return the name of a tenant in every gateway: 16 hexadecimal digits."""
    return digest("tenant", value).hex()[:16]


class Shares:
    """The counts of one service, while requests for it wait in any gateway."""

    def __init__(self) -> None:
        self._tokens: dict[int, OrderedDict[str, int]] = {}
        self._news: Counter[tuple[int, str]] = Counter()  # what this gateway has let go since `take_news`

    def of(self, priority: int, tenant: str) -> int:
        """Return a tenant's tokens."""
        counts = self._tokens.get(priority)
        return 0 if counts is None else counts.get(tenant, 0)

    def arrive(self, priority: int, tenant: str, waiting: Collection[str]) -> None:
        """Begin to count a tenant of which a request comes, while requests of the tenants `waiting` wait in any gateway."""
        if tenant not in waiting and waiting:
            self._set(priority, tenant, max(self.of(priority, tenant), min(self.of(priority, one) for one in waiting)))

    def remember(self, priority: int, tenant: str, tokens: int) -> None:
        """Count a tenant again that was forgotten while its requests wait: more tenants do than are remembered."""
        self._set(priority, tenant, tokens)

    def charge(self, priority: int, tenant: str, tokens: int) -> None:
        """Count a request of so many tokens that this gateway lets go."""
        self._set(priority, tenant, self.of(priority, tenant) + tokens)
        self._news[priority, tenant] += tokens

    def take_news(self) -> dict[str, int]:
        """Return what this gateway has let go since the last call."""
        news, self._news = self._news, Counter()
        return {_name(*place): tokens for place, tokens in news.items()}

    def all(self) -> dict[str, int]:
        """Return all counts, without what `take_news` will return."""
        return {
            _name(priority, tenant): tokens - self._news[priority, tenant]
            for priority, counts in self._tokens.items()
            for tenant, tokens in counts.items()
        }

    def hear(self, served: object, *, whole: bool) -> None:
        """Count what another gateway has let go; with `whole`, its counts of all gateways are a least value of ours."""
        for name, tokens in served.items() if isinstance(served, Mapping) else ():
            place = _read(name)
            if place is not None and type(tokens) is int and 0 <= tokens <= MAX_TOKENS:
                known = self.of(*place)
                self._set(*place, max(known, tokens) if whole else known + tokens)

    def behind(self, priority: int, tenant: str, others: Iterable[str]) -> bool:
        """Return whether one of the others has had so few tokens that it goes before the tenant."""
        own = self.of(priority, tenant)
        return any(self.of(priority, other) + LEAD < own for other in others)

    def _set(self, priority: int, tenant: str, tokens: int) -> None:
        counts = self._tokens.pop(priority, None) or OrderedDict()
        self._tokens[priority] = counts
        if len(self._tokens) > MAX_CLASSES:
            del self._tokens[next(iter(self._tokens))]  # the one that was counted least recently
        counts[tenant] = tokens
        counts.move_to_end(tenant)
        if len(counts) > MAX_TENANTS:
            counts.popitem(last=False)


def _name(priority: int, tenant: str) -> str:
    return f"{priority}/{tenant}"


def _read(name: object) -> tuple[int, str] | None:
    priority, _, tenant = name.partition("/") if isinstance(name, str) else ("", "", "")
    return (int(priority), tenant) if CLASS.fullmatch(priority) and len(tenant) == 16 else None
