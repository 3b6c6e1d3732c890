"""Requests and tokens per minute, by API key or header value. Pure: `now` is an argument.

A request is charged before it is sent with the most tokens that it may cost. When it ends, `settle` replaces the charge by
the tokens that it did cost. A charge above what a bucket has left is a debt, so no estimate lets a client have more than
its quota in the long run.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass

from pagefleet_gateway.cluster.service import RateLimit, Service, ServiceKey
from pagefleet_gateway.cluster.steps import Steps, parts
from pagefleet_gateway.limits.api_keys import APIKey
from pagefleet_gateway.limits.buckets import Bucket, Buckets, Scope, digest
from pagefleet_gateway.limits.budgets import Budgets, Spent

MAX_TOKENS = 10_000_000  # that one request is charged with


@dataclass(frozen=True)
class Exceeded:
    """The limit that refuses a request longest, and the seconds until it allows the request."""

    seconds: float
    scope: str  # "the API key 'team-a'"
    unit: str  # "requests" or "tokens"
    per_minute: int
    bucket: tuple[Scope, bytes] = ("", b"")


@dataclass(frozen=True)
class Charge:
    """The buckets from which a request took, and its tokens. It is given back to `settle` once."""

    tokens: int
    of_requests: tuple[tuple[Scope, bytes], ...] = ()
    of_tokens: tuple[tuple[Scope, bytes], ...] = ()


class RateLimits:
    """The buckets of all API keys, and of the header values of all services. `pods`: the gateway pods that share them."""

    def __init__(self) -> None:
        self.buckets = Buckets()
        self.budgets = Budgets()
        self.pods = 1

    def take(
        self, service: Service, headers: Mapping[str, str], tokens: int, now: float, key: APIKey | None = None
    ) -> Exceeded | Spent | Charge:
        """Charge the request when every limit allows it. Else charge nothing and return the limit. A month's budget is not charged
        before: `Charges` counts what a request has cost.
        """
        if key is not None and (spent := self.budgets.spent(key.name, key.tokens_per_month)) is not None:
            return spent
        tokens = min(max(tokens, 0), MAX_TOKENS)
        parts: list[tuple[Bucket, int, APIKey | RateLimit, str, tuple[Scope, bytes]]] = []
        for limit in (*(() if key is None else (key,)), *service.limits):
            for unit, per_minute, amount in _amounts(limit, tokens):
                place = _place(service, headers, limit, unit, per_minute)
                bucket = self.buckets.ensure(*place, per_minute, now, self.pods)
                parts.append((bucket, amount, limit, unit, place))
        waits = [bucket.wait(amount, now, self.pods) for bucket, amount, _, _, _ in parts]
        for bucket, amount, _, _, _ in parts:
            bucket.ask(amount)
        wait = max(waits, default=0.0)
        if wait > 0:
            bucket, _, exceeded, unit, place = parts[waits.index(wait)]
            return Exceeded(wait, _scope(exceeded), unit, round(bucket.per_minute), place)
        for bucket, amount, _, _, _ in parts:
            bucket.take(amount)
        return Charge(
            tokens,
            tuple(place for _, _, _, unit, place in parts if unit == "requests"),
            tuple(place for _, _, _, unit, place in parts if unit == "tokens"),
        )

    def settle(self, charge: Charge, tokens: int, counts: bool = True) -> None:
        """Replace the charged tokens by those that the request cost. `counts` is false for a request that reached no
        engine: it is not one of the requests a minute either."""
        for place in charge.of_tokens:
            bucket = self.buckets.find(*place)
            if bucket is not None:
                bucket.take(min(tokens, MAX_TOKENS) - charge.tokens)
        for place in () if counts else charge.of_requests:
            bucket = self.buckets.find(*place)
            if bucket is not None:
                bucket.take(-1)

    def retain_keys(self, keys: Collection[APIKey]) -> None:
        """Forget the API keys that are not among `keys`, which are those in force."""
        self.budgets.retain({key.name for key in keys})
        self.buckets.retain_keys(
            {_key_name(key, unit, per_minute) for key in keys for unit, per_minute, _ in _amounts(key, 0)}
        )

    def retain_services(self, keys: Container[ServiceKey]) -> Steps:
        """Forget services that are not among `keys`."""
        for part in parts(self.buckets.values):
            for scope in part:
                if tuple(scope.split("/", 1)) not in keys:
                    self.buckets.forget_scope(scope)
            yield


def _place(
    service: Service, headers: Mapping[str, str], limit: APIKey | RateLimit, unit: str, per_minute: int
) -> tuple[Scope, bytes]:
    if isinstance(limit, APIKey):
        return "", _key_name(limit, unit, per_minute)
    value = headers.get(limit.header, "")
    return f"{service.namespace}/{service.name}", digest(limit.header, unit, str(per_minute), value)


def _key_name(key: APIKey, unit: str, per_minute: int) -> bytes:
    return digest(key.name, unit, str(per_minute))


def _amounts(limit: RateLimit | APIKey, tokens: int) -> list[tuple[str, int, int]]:
    units = [("requests", limit.requests_per_minute, 1), ("tokens", limit.tokens_per_minute, tokens)]
    return [(unit, per_minute, amount) for unit, per_minute, amount in units if per_minute > 0]


def _scope(limit: RateLimit | APIKey) -> str:
    return f"the API key {limit.name!r}" if isinstance(limit, APIKey) else f"this value of the header {limit.header!r}"
