"""Requests and tokens per minute, by API key or tenant: token buckets. Pure: `now` is an argument.

A bucket holds a minute's worth and fills steadily (Turner, "New directions in communications", IEEE Communications
Magazine 1986). Tokens are the prompt's and the most the answer may have, as the picker estimates them. Per gateway pod.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_gateway.cluster.state import Limit, Service
from pagefleet_gateway.limits.api_keys import APIKey

MAX_KEYS = 50_000  # clients choose the keys: beyond these the longest unused are forgotten


@dataclass
class Bucket:
    """`level` of `capacity` at time `at`, filling by `capacity` a minute."""

    capacity: float
    level: float
    at: float

    def wait(self, amount: float, now: float) -> float:
        """Seconds until `amount` may be taken. What exceeds the capacity waits for a full bucket, not for ever."""
        self.level = min(self.capacity, self.level + max(0.0, now - self.at) * self.capacity / 60)
        self.at = max(self.at, now)
        return max(0.0, min(amount, self.capacity) - self.level) * 60 / self.capacity

    def take(self, amount: float) -> None:
        """A request above the capacity leaves a debt: the next one waits for it."""
        self.level -= amount


class RateLimits:
    """The buckets of all API keys, and of all services' header values."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[object, ...], Bucket] = OrderedDict()

    def take(
        self, service: Service, headers: Mapping[str, str], tokens: int, now: float, key: APIKey | None = None
    ) -> float:
        """0 when every limit allows the request, which then counts; else the seconds to wait, and it does not."""
        taken = []
        if key is not None:
            for kind, most, amount in _amounts(key, tokens):
                taken.append((self._bucket((key.name, kind, most), most, now), amount))
        for limit in service.limits:
            value = headers.get(limit.header, "")
            for kind, most, amount in _amounts(limit, tokens):
                taken.append((self._bucket((service.key, limit.header, kind, most, value), most, now), amount))
        longest = max((bucket.wait(amount, now) for bucket, amount in taken), default=0.0)
        if longest <= 0:
            for bucket, amount in taken:
                bucket.take(amount)
        return longest

    def _bucket(self, key: tuple[object, ...], most: int, now: float) -> Bucket:
        bucket = self._buckets.setdefault(key, Bucket(most, most, now))
        self._buckets.move_to_end(key)
        if len(self._buckets) > MAX_KEYS:
            self._buckets.popitem(last=False)
        return bucket


def _amounts(limit: Limit | APIKey, tokens: int) -> list[tuple[str, int, int]]:
    kinds = [("requests", limit.requests_per_minute, 1), ("tokens", limit.tokens_per_minute, tokens)]
    return [(kind, most, amount) for kind, most, amount in kinds if most > 0]
