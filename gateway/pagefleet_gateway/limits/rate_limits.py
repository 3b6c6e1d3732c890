"""Requests and tokens per minute, by API key or tenant: token buckets. Pure: `now` is an argument.

A bucket holds a minute's worth and fills steadily (Turner, "New directions in communications", IEEE Communications
Magazine 1986). Tokens are the prompt's and the answer's maximum, as the picker estimates them. Each gateway pod has its own
buckets.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_gateway.cluster.state import RateLimit, Service
from pagefleet_gateway.limits.api_keys import APIKey

MAX_BUCKETS = 50_000  # clients choose the header values: beyond these the longest unused bucket is forgotten


@dataclass
class Bucket:
    """`level` of `capacity` at time `at`, filling by `capacity` a minute."""

    capacity: float
    level: float
    at: float

    def wait(self, amount: float, now: float) -> float:
        """Return the seconds until `amount` may be taken. An amount above the capacity waits for a full bucket, not for ever."""
        self.level = min(self.capacity, self.level + max(0.0, now - self.at) * self.capacity / 60)
        self.at = max(self.at, now)
        return max(0.0, min(amount, self.capacity) - self.level) * 60 / self.capacity

    def take(self, amount: float) -> None:
        """Take `amount`. An amount above the capacity leaves a debt, and the next request waits for it."""
        self.level -= amount


class RateLimits:
    """The buckets of all API keys, and of the header values of all services."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[object, ...], Bucket] = OrderedDict()

    def take(
        self, service: Service, headers: Mapping[str, str], tokens: int, now: float, key: APIKey | None = None
    ) -> float:
        """Charge the request and return 0 when every limit allows it. Else charge nothing and return the seconds to wait."""
        charges = []
        if key is not None:
            for kind, per_minute, amount in _amounts(key, tokens):
                charges.append((self._bucket((key.name, kind, per_minute), per_minute, now), amount))
        for limit in service.limits:
            value = headers.get(limit.header, "")
            for kind, per_minute, amount in _amounts(limit, tokens):
                charges.append(
                    (self._bucket((service.key, limit.header, kind, per_minute, value), per_minute, now), amount)
                )
        wait = max((bucket.wait(amount, now) for bucket, amount in charges), default=0.0)
        if wait <= 0:
            for bucket, amount in charges:
                bucket.take(amount)
        return wait

    def _bucket(self, key: tuple[object, ...], per_minute: int, now: float) -> Bucket:
        bucket = self._buckets.setdefault(key, Bucket(per_minute, per_minute, now))
        self._buckets.move_to_end(key)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return bucket


def _amounts(limit: RateLimit | APIKey, tokens: int) -> list[tuple[str, int, int]]:
    kinds = [("requests", limit.requests_per_minute, 1), ("tokens", limit.tokens_per_minute, tokens)]
    return [(kind, per_minute, amount) for kind, per_minute, amount in kinds if per_minute > 0]
