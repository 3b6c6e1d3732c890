"""How several gateway pods share one quota: each has an equal part of the rate, and levels move to where they are asked for.

A gateway pod whose buckets are asked for sends their level and demand to every other one, several times a second. The other
one takes from its own level what evens the two out in proportion to their demands, and answers with it. What is granted
leaves one bucket before it enters the other, so a lost answer loses a grant and never makes one. A gateway pod that dies
takes its level along: the others have the whole rate as soon as it is known to be gone.

Pure: pagefleet_gateway/sharing/quotas.py sends and receives. Total: whatever another pod sends that is no number is left out.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from operator import itemgetter

from pagefleet_gateway.limits.buckets import Bucket, Scope
from pagefleet_gateway.limits.rate_limits import RateLimits

MAX_BUCKETS = 512  # in one message; those that are asked for most
YOUNG_SECONDS = 120.0  # a gateway pod this young may find that another one has a bucket of the same client already

Rows = list[list[object]]  # one list per bucket


@dataclass
class _Reports:
    """The last reported level of each other pod for one bucket, and when it came."""

    levels: dict[str, tuple[float, float]] = field(default_factory=dict)


class Sharing:
    """The exchange of one gateway pod with the others. `started`: when this pod began."""

    def __init__(self, limits: RateLimits, started: float) -> None:
        self._limits, self._started = limits, started
        self._reports: dict[bytes, _Reports] = {}
        self._left_out: set[bytes] = set()  # the names of active buckets that the last message had no room for
        self.peers: frozenset[str] = frozenset()  # the other gateway pods

    def set_peers(self, peers: frozenset[str]) -> None:
        """Share with these pods from now on."""
        self.peers = peers
        self._limits.pods = 1 + len(peers)

    def ask(self, now: float) -> Rows:
        """Return the buckets that are asked for most: scope, name, limit, level and demand of each."""
        active = list(self._limits.buckets.active(now, self._limits.pods))
        names = {name for _, _, name, _ in active}
        self._reports = {name: reports for name, reports in self._reports.items() if name in names}
        rows: Rows = []
        # Clients choose how many there are, so only those that are sent are looked at closely.
        most = heapq.nlargest(MAX_BUCKETS, active, key=itemgetter(0))
        self._left_out = names - {name for _, _, name, _ in most}
        for _, scope, name, bucket in most:
            bucket.fill(now, self._limits.pods)
            rows.append([scope, name.hex(), bucket.per_minute, bucket.level, bucket.demand])
        return rows

    def asks(self, name: bytes) -> bool:
        """Return whether the next exchange probably has a bucket: where there are too many, some are left out."""
        return name not in self._left_out

    def answer(self, peer: str, rows: object, now: float) -> Rows:
        """Grant levels to another pod. Return for each bucket: scope, name, grant, the level that is left, and its age."""
        answers: Rows = []
        for row in rows[:MAX_BUCKETS] if isinstance(rows, list) else ():
            read = _read(row, 5)
            if read is None or read[2] <= 0:
                continue
            scope, name, per_minute, level, demand = read[0], read[1], read[2], row[3], row[4]
            if not _numbers(level, demand):
                continue
            bucket = self._limits.buckets.find(scope, name)
            age = 0.0 if bucket is None else now - bucket.created
            if bucket is None:
                bucket = self._limits.buckets.ensure(scope, name, per_minute, now, self._limits.pods)
            bucket.fill(now, self._limits.pods)
            granted = _grant(bucket, level, demand)
            bucket.take(granted)
            self._report(peer, name, bucket, level + granted, now)
            answers.append([scope, name.hex(), granted, bucket.level, age])
        return answers

    def receive(self, peer: str, rows: object, now: float) -> None:
        """Add what another pod granted."""
        for row in rows[:MAX_BUCKETS] if isinstance(rows, list) else ():
            read = _read(row, 5)
            bucket = None if read is None else self._limits.buckets.find(read[0], read[1])
            if read is None or bucket is None or not _numbers(row[3], row[4]):
                continue
            bucket.fill(now, self._limits.pods)
            granted = max(0.0, min(read[2], bucket.per_minute))
            bucket.take(-granted)
            self._withdraw_start(bucket, row[4], now)
            self._report(peer, read[1], bucket, row[3], now)

    def _withdraw_start(self, bucket: Bucket, age: float, now: float) -> None:
        """Take back what a young pod's new bucket began with where another pod has one that is older than this pod."""
        own_age = now - self._started
        if not bucket.withdrawn and own_age < YOUNG_SECONDS and age > own_age + 1.0:
            bucket.withdrawn = True
            bucket.take(bucket.per_minute / self._limits.pods)

    def _report(self, peer: str, name: bytes, bucket: Bucket, level: float, now: float) -> None:
        reports = self._reports.setdefault(name, _Reports()).levels
        reports[peer] = (level, now)
        bucket.exchanged_at = now
        known = [reports[other] for other in self.peers if other in reports]
        if len(known) == len(self.peers):
            bucket.others = sum(level for level, _ in known)
            bucket.others_at = min(at for _, at in known)


def _grant(bucket: Bucket, level: float, demand: float) -> float:
    """Return how much of the bucket another pod with this level and demand gets."""
    if demand <= 0:
        return 0.0
    fair = (bucket.level + level) * demand / (demand + bucket.demand)
    return max(0.0, min(fair - level, bucket.level))


def _read(row: object, length: int) -> tuple[Scope, bytes, float] | None:
    if not isinstance(row, list) or len(row) != length or not isinstance(row[0], str) or not isinstance(row[1], str):
        return None
    try:
        name = bytes.fromhex(row[1])
    except ValueError:
        return None
    return (row[0], name, float(row[2])) if len(name) == 16 and _numbers(row[2]) else None


def _numbers(*values: object) -> bool:
    return all(isinstance(value, (int, float)) and math.isfinite(value) for value in values)
