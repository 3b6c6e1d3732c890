"""The order in which held requests go on: strict priority between classes, deficit round robin between tenants. Pure.

Source: Shreedhar and Varghese, "Efficient Fair Queueing Using Deficit Round Robin", SIGCOMM 1995, with tokens as the
cost: a tenant with many or with long requests takes its share of the work, and no more while others wait.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

QUANTUM = 512  # tokens a tenant may send in a round
MAX_COST = 32 * QUANTUM  # a longer request counts as this: a round must end

T = TypeVar("T")


@dataclass(eq=False)
class Entry(Generic[T]):
    """One request in the queue. `priority`: 0 goes first."""

    item: T
    priority: int
    tenant: str
    cost: int  # tokens
    size: int  # bytes


@dataclass
class _Class(Generic[T]):
    """One priority's tenants, the first one's turn first."""

    tenants: OrderedDict[str, deque[Entry[T]]] = field(default_factory=OrderedDict)
    deficits: dict[str, int] = field(default_factory=dict)


class FairQueue(Generic[T]):
    """Bounded by entries and bytes. A full queue gives up its last entry of a lower class for one of a higher."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._classes: dict[int, _Class[T]] = {}
        self._count = self.bytes = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry[T]]:
        for kind in self._classes.values():
            for entries in kind.tenants.values():
                yield from entries

    def push(self, entry: Entry[T]) -> list[Entry[T]] | None:
        """Take an entry in. Returns those displaced by it, or None when there is no room for it."""
        displaced: list[Entry[T]] = []
        count, size = self._count + 1, self.bytes + entry.size
        lower: list[Entry[T]] = []
        if count > self._max_entries or size > self._max_bytes:
            lower = sorted(
                (other for other in self if other.priority > entry.priority), key=lambda other: other.priority
            )
        while count > self._max_entries or size > self._max_bytes:
            if not lower:
                return None
            displaced.append(lower.pop())
            count, size = count - 1, size - displaced[-1].size
        for other in displaced:
            self.remove(other)
        kind = self._classes.setdefault(entry.priority, _Class())
        kind.tenants.setdefault(entry.tenant, deque()).append(entry)
        self._count, self.bytes = count, size
        return displaced

    def peek(self) -> Entry[T] | None:
        """The entry whose turn it is; it stays. None when the queue is empty."""
        if not self._classes:
            return None
        kind = self._classes[min(self._classes)]
        while True:
            tenant, entries = next(iter(kind.tenants.items()))
            if kind.deficits.get(tenant, 0) >= _cost(entries[0]):
                return entries[0]
            kind.deficits[tenant] = kind.deficits.get(tenant, 0) + QUANTUM
            if kind.deficits[tenant] < _cost(entries[0]):
                kind.tenants.move_to_end(tenant)

    def pop(self) -> Entry[T] | None:
        """Take out the entry whose turn it is and charge its tenant."""
        entry = self.peek()
        if entry is not None:
            kind = self._classes[entry.priority]
            kind.deficits[entry.tenant] -= _cost(entry)
            following = list(kind.tenants[entry.tenant])[1:2]
            if following and kind.deficits[entry.tenant] < _cost(following[0]):
                kind.tenants.move_to_end(entry.tenant)
            self.remove(entry)
        return entry

    def remove(self, entry: Entry[T]) -> None:
        """Take out an entry wherever it is; nothing when it is not there any more."""
        kind = self._classes.get(entry.priority)
        if kind is None or entry not in kind.tenants.get(entry.tenant, ()):
            return
        kind.tenants[entry.tenant].remove(entry)
        self._count, self.bytes = self._count - 1, self.bytes - entry.size
        if not kind.tenants[entry.tenant]:
            # An idle tenant saves nothing up.
            del kind.tenants[entry.tenant]
            kind.deficits.pop(entry.tenant, None)
        if not kind.tenants:
            del self._classes[entry.priority]


def _cost(entry: Entry[T]) -> int:
    return min(max(entry.cost, 1), MAX_COST)
