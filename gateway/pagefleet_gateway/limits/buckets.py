"""Token buckets and where they are stored: bounded, by digests of a fixed size. Pure: `now` is an argument.

A bucket holds a minute's worth and fills steadily (Turner, "New directions in communications", IEEE Communications
Magazine 1986). Several gateway pods share a quota: each one has a bucket of its own, and sharing.py moves levels between
them. API keys are named by the gateway's operator and have a store of their own. Clients choose header values, so only
those are bounded by forgetting: the longest unused value of the service that has the most.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

MAX_VALUES = 50_000  # buckets of header values, of all services together
DEMAND_SECONDS = 5.0  # the demand on a bucket fades with this time constant
LEAST_DEMAND = 1e-3  # of the quota, from which on a bucket is shared
FRESH_SECONDS = 3.0  # what other gateway pods reported is in force for this long

Scope = str  # "" for API keys, else namespace/name of the service whose header values are limited


def digest(*parts: str) -> bytes:
    """Return the 16 bytes that name a bucket in every gateway pod. Secrets among the parts cannot be read from it."""
    joined = "\0".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass
class Bucket:
    """`level` of `per_minute` at time `at`. A negative level is a debt, and the next request waits for it."""

    per_minute: float
    level: float
    at: float
    created: float = 0.0
    withdrawn: bool = False  # what it began with was taken back: another gateway pod had a bucket before
    demand: float = 0.0  # the amounts asked lately, refused ones too
    others: float | None = None  # the level of all other gateway pods together; None: they did not report it
    others_at: float = -math.inf
    exchanged_at: float = -math.inf  # when any other gateway pod reported its level last

    def capacity(self, now: float, pods: int) -> float:
        """Return how full this bucket may be: the part of the quota that no other gateway pod has."""
        if pods <= 1:
            return self.per_minute
        if self.others is None or now > self.others_at + FRESH_SECONDS:
            return self.per_minute / pods
        return max(0.0, min(self.per_minute, self.per_minute - self.others))

    def fill(self, now: float, pods: int) -> None:
        """Fill for the time that has passed. Each of `pods` gateway pods gets an equal part of the rate."""
        elapsed = max(0.0, now - self.at)
        self.demand = self._asked(now)
        self.at = max(self.at, now)
        capacity = self.capacity(now, pods)
        filled = min(self.level + elapsed * self.per_minute / pods / 60, capacity)
        if now > self.exchanged_at + FRESH_SECONDS:
            self.level = filled  # the others fill theirs now, so what is above this pod's part is theirs
        else:
            self.level = min(max(self.level, filled), self.per_minute)

    def share_asked(self, now: float) -> float:
        """Return the demand as a share of the quota, as `fill` would leave it."""
        return self._asked(now) / self.per_minute

    def _asked(self, now: float) -> float:
        """Return the demand, which has faded since the bucket was filled last."""
        return self.demand * math.exp(-max(0.0, now - self.at) / DEMAND_SECONDS)

    def wait(self, amount: float, now: float, pods: int = 1) -> float:
        """Return the seconds until `amount` may be taken. An amount above what fits waits for a full bucket, not for ever."""
        self.fill(now, pods)
        fits = max(self.capacity(now, pods), self.per_minute / pods)
        return max(0.0, min(amount, fits) - self.level) * 60 * pods / self.per_minute

    def take(self, amount: float) -> None:
        self.level -= amount

    def ask(self, amount: float) -> None:
        """Count the demand, whether or not the amount is then taken."""
        self.demand = min(self.demand + amount, self.per_minute)


@dataclass
class Buckets:
    keys: dict[bytes, Bucket] = field(default_factory=dict)  # of API keys
    values: dict[Scope, OrderedDict[bytes, Bucket]] = field(default_factory=dict)  # of header values
    _count: int = 0

    def find(self, scope: Scope, name: bytes) -> Bucket | None:
        store = self.values.get(scope) if scope else self.keys
        return None if store is None else store.get(name)

    def ensure(self, scope: Scope, name: bytes, per_minute: float, now: float, pods: int) -> Bucket:
        """Return the bucket. A new one begins with this gateway pod's equal part of the quota."""
        store = self.values.setdefault(scope, OrderedDict()) if scope else self.keys
        bucket = store.get(name)
        if bucket is None:
            bucket = store[name] = Bucket(per_minute, per_minute / pods, now, created=now)
            if scope:
                self._count += 1
                self._bound()
        elif isinstance(store, OrderedDict):
            store.move_to_end(name)
        return bucket

    def active(self, now: float, pods: int) -> Iterator[tuple[float, Scope, bytes, Bucket]]:
        """Yield the buckets that were asked lately or are in debt, each with the share of its quota that is asked for."""
        for scope, store in (("", self.keys), *self.values.items()):
            for name, bucket in store.items():
                if bucket.level < 0:
                    bucket.fill(now, pods)  # the debt may be paid
                asked = bucket.share_asked(now)
                if asked > LEAST_DEMAND or bucket.level < 0:
                    yield asked, scope, name, bucket

    def retain_keys(self, names: Collection[bytes]) -> None:
        """Forget API keys' buckets that are not among `names`."""
        self.keys = {name: bucket for name, bucket in self.keys.items() if name in names}

    def forget_scope(self, scope: Scope) -> None:
        """Forget a service's buckets."""
        self._count -= len(self.values.pop(scope, ()))

    def _bound(self) -> None:
        if self._count > MAX_VALUES:
            max(self.values.values(), key=len).popitem(last=False)
            self._count -= 1
