"""The order of held requests: strict priority between classes, and within one the tenant that has had the fewest tokens. Pure.

A tenant with many or with long requests takes its share of the work, and no more while others wait (shares.py).
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from pagefleet_gateway.holding.shares import Shares

T = TypeVar("T")
Turn = tuple[int, int, str]  # a tenant's tokens, its place among those with as many, and its name
SPARE_TURNS = 64  # that are not in force any more and may be left in a heap besides as many as are in force


@dataclass(eq=False)
class Entry(Generic[T]):
    """One request in the queue. `priority`: 0 goes first."""

    item: T
    priority: int
    tenant: str
    cost: int  # tokens
    size: int  # bytes
    lane: Hashable = None  # entries of one lane can go at the same times; another lane need not wait for them


@dataclass
class _Class(Generic[T]):
    """The tenants of one priority. Of those with equally few tokens the first has the turn.

    `turns` is a heap, so that thousands of tenants cost a turn no more than a few do. While a tenant waits, its tokens only grow: a
    turn that comes too early is put back when it is looked at. `places` has the place of each tenant's turn that is in force.
    """

    entries: int = 0
    bytes: int = 0
    tenants: OrderedDict[str, deque[Entry[T]]] = field(default_factory=OrderedDict)
    turns: list[Turn] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)

    def queue_up(self, tenant: str, tokens: int, place: int) -> None:
        """Give a tenant the last turn among those with as many tokens."""
        self.places[tenant] = place
        heapq.heappush(self.turns, (tokens, place, tenant))
        if len(self.turns) > 2 * len(self.places) + SPARE_TURNS:
            self.turns = [turn for turn in self.turns if self.places.get(turn[2]) == turn[1]]
            heapq.heapify(self.turns)


@dataclass(frozen=True)
class Others:
    """What waits for the same service in other gateways, how many of it are of lower classes than the new entry, and the
    tenants that wait there in its own class."""

    entries: int = 0
    bytes: int = 0
    lower_entries: int = 0
    tenants: Collection[str] = ()


NO_OTHERS = Others()


class FairQueue(Generic[T]):
    """Bounded by entries and bytes. A full queue gives up its last entry of a lower class for one of a higher class."""

    def __init__(self, max_entries: int, max_bytes: int, shares: Shares | None = None) -> None:
        self._shares = shares or Shares()
        self.max_entries, self.max_bytes = max_entries, max_bytes
        self._classes: dict[int, _Class[T]] = {}
        self._count = self.bytes = 0
        self._lanes: Counter[Hashable] = Counter()  # entries by lane
        self._places = itertools.count()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry[T]]:
        for group in self._classes.values():
            for entries in group.tenants.values():
                yield from entries

    def of_class(self, priority: int) -> tuple[int, int]:
        """Return the entries of a priority, and their bytes."""
        group = self._classes.get(priority)
        return (0, 0) if group is None else (group.entries, group.bytes)

    def tenants(self, priority: int) -> Collection[str]:
        """Return the tenants of which an entry of a priority waits."""
        group = self._classes.get(priority)
        return () if group is None else group.tenants

    @property
    def first_priority(self) -> int | None:
        """Return the most important priority that waits, None for an empty queue."""
        return min(self._classes, default=None)

    def push(self, entry: Entry[T], others: Others = NO_OTHERS) -> list[Entry[T]] | None:
        """Add an entry. Return the entries that it displaced, or None when there is no room for it.

        The bounds hold for this queue and `others` together. Where that is not enough, others give up entries of lower classes.
        """
        displaced: list[Entry[T]] = []
        count, size = self._count + 1 + others.entries, self.bytes + entry.size + others.bytes
        lower: list[Entry[T]] = []
        if count > self.max_entries or size > self.max_bytes:
            lower = sorted(
                (other for other in self if other.priority > entry.priority), key=lambda other: other.priority
            )
        while count > self.max_entries or size > self.max_bytes:
            if not lower:
                if size > self.max_bytes or count - others.lower_entries > self.max_entries:
                    return None
                break
            displaced.append(lower.pop())
            count, size = count - 1, size - displaced[-1].size
        for other in displaced:
            self.remove(other)
        group = self._classes.setdefault(entry.priority, _Class())
        if entry.tenant not in group.tenants:
            first = self._first(group, entry.priority, ())  # of those that wait the least tokens count alone
            waiting = {*others.tenants} if first is None else {*others.tenants, first.tenant}
            self._shares.arrive(entry.priority, entry.tenant, waiting)
            group.tenants[entry.tenant] = deque()
            self._queue_up(group, entry.priority, entry.tenant)
        group.tenants[entry.tenant].append(entry)
        self._count, self.bytes = self._count + 1, self.bytes + entry.size
        group.entries, group.bytes = group.entries + 1, group.bytes + entry.size
        self._lanes[entry.lane] += 1
        return displaced

    def last(self, priority: int, count: int) -> list[Entry[T]]:
        """Return up to `count` entries of a priority, those of its last tenant first, the newest first."""
        tenants = self._classes[priority].tenants if priority in self._classes else {}
        newest = (entry for tenant in reversed(list(tenants)) for entry in reversed(tenants[tenant]))
        return list(islice(newest, count))

    def has_lane(self, lane: Hashable) -> bool:
        """Return whether an entry of the lane waits."""
        return lane in self._lanes

    def peek(self, blocked: Collection[Hashable] = ()) -> Entry[T] | None:
        """Return the entry whose turn it is among those of no blocked lane, and leave it there. None without such an entry."""
        if all(lane in blocked for lane in self._lanes):
            return None
        found = (self._first(self._classes[priority], priority, blocked) for priority in sorted(self._classes))
        return next((entry for entry in found if entry is not None), None)

    def _first(self, group: _Class[T], priority: int, blocked: Collection[Hashable]) -> Entry[T] | None:
        """Return the entry whose turn it is in a class."""
        passed, turns, head = list[Turn](), group.turns, None
        while turns and head is None:
            tokens, place, tenant = turns[0]
            if group.places.get(tenant) != place:
                heapq.heappop(turns)
            elif (now := self._shares.of(priority, tenant)) > tokens:
                heapq.heapreplace(turns, (now, place, tenant))
            else:
                if now < tokens:
                    self._shares.remember(priority, tenant, tokens)
                head = next((entry for entry in group.tenants[tenant] if entry.lane not in blocked), None)
                if head is None:
                    passed.append(heapq.heappop(turns))
        for turn in passed:
            heapq.heappush(turns, turn)
        return head

    def _queue_up(self, group: _Class[T], priority: int, tenant: str) -> None:
        group.queue_up(tenant, self._shares.of(priority, tenant), next(self._places))

    def pop(self) -> Entry[T] | None:
        """Remove the entry whose turn it is, and charge its tenant."""
        entry = self.peek()
        if entry is not None:
            self.take(entry)
        return entry

    def take(self, entry: Entry[T]) -> None:
        """Remove the entry that `peek` returned, and charge its tenant."""
        group = self._classes.get(entry.priority)
        if group is None or entry not in group.tenants.get(entry.tenant, ()):
            return
        self._shares.charge(entry.priority, entry.tenant, max(entry.cost, 1))
        group.tenants.move_to_end(entry.tenant)
        self.remove(entry)
        if entry.tenant in group.tenants:
            self._queue_up(group, entry.priority, entry.tenant)

    def remove(self, entry: Entry[T]) -> None:
        """Remove an entry wherever it is. Does nothing when the entry is not there any more."""
        group = self._classes.get(entry.priority)
        if group is None or entry not in group.tenants.get(entry.tenant, ()):
            return
        group.tenants[entry.tenant].remove(entry)
        self._count, self.bytes = self._count - 1, self.bytes - entry.size
        group.entries, group.bytes = group.entries - 1, group.bytes - entry.size
        self._lanes[entry.lane] -= 1
        if not self._lanes[entry.lane]:
            del self._lanes[entry.lane]
        if not group.tenants[entry.tenant]:
            del group.tenants[entry.tenant], group.places[entry.tenant]
        if not group.tenants:
            del self._classes[entry.priority]
