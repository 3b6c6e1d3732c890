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


@dataclass(frozen=True)
class Exceeded:
    """The limit that refuses a request longest, and the seconds until it allows the request."""

    seconds: float
    scope: str  # "the API key 'team-a'"
    unit: str  # "requests" or "tokens"
    per_minute: int


class RateLimits:
    """The buckets of all API keys, and of the header values of all services."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[object, ...], Bucket] = OrderedDict()

    def take(
        self, service: Service, headers: Mapping[str, str], tokens: int, now: float, key: APIKey | None = None
    ) -> Exceeded | None:
        """Charge the request and return None when every limit allows it. Else charge nothing and return the limit."""
        charges: list[tuple[Bucket, int, APIKey | RateLimit, str]] = []
        if key is not None:
            for unit, per_minute, amount in _amounts(key, tokens):
                charges.append((self._bucket((key.name, unit, per_minute), per_minute, now), amount, key, unit))
        for limit in service.limits:
            value = headers.get(limit.header, "")
            for unit, per_minute, amount in _amounts(limit, tokens):
                bucket_key = (service.key, limit.header, unit, per_minute, value)
                charges.append((self._bucket(bucket_key, per_minute, now), amount, limit, unit))
        waits = [bucket.wait(amount, now) for bucket, amount, _, _ in charges]
        wait = max(waits, default=0.0)
        if wait > 0:
            bucket, _, limit_or_key, unit = charges[waits.index(wait)]
            return Exceeded(wait, _scope(limit_or_key), unit, round(bucket.capacity))
        for bucket, amount, _, _ in charges:
            bucket.take(amount)
        return None

    def _bucket(self, key: tuple[object, ...], per_minute: int, now: float) -> Bucket:
        bucket = self._buckets.setdefault(key, Bucket(per_minute, per_minute, now))
        self._buckets.move_to_end(key)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return bucket


def _amounts(limit: RateLimit | APIKey, tokens: int) -> list[tuple[str, int, int]]:
    units = [("requests", limit.requests_per_minute, 1), ("tokens", limit.tokens_per_minute, tokens)]
    return [(unit, per_minute, amount) for unit, per_minute, amount in units if per_minute > 0]


def _scope(limit: RateLimit | APIKey) -> str:
    return f"the API key {limit.name!r}" if isinstance(limit, APIKey) else f"this value of the header {limit.header!r}"
