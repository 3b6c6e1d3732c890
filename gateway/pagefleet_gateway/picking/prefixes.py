"""The text that each pod got lately, as block hashes: an estimate of what its prefix cache holds.

Remembers, and never chooses. Bounded per cache; the least recently used block leaves first, as in the engines' caches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

CAPACITY = 8192  # blocks per cache: 512k tokens, about a GPU's KV cache


class Prefixes:
    """An LRU of block hashes per cache: a pod's container, so that one which started again starts cold."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._caches: dict[str, OrderedDict[bytes, None]] = {}

    def matched(self, cache: str, blocks: Sequence[bytes]) -> int:
        """Return how many blocks, from the first on, the cache's pod got already."""
        cached = self._caches.get(cache)
        if cached is None:
            return 0
        for count, block in enumerate(blocks):
            if block not in cached:
                return count
        return len(blocks)

    def record(self, cache: str, blocks: Sequence[bytes]) -> None:
        """Count that the cache's pod gets these blocks now. The last is touched first: a prefix outlives what follows it."""
        cached = self._caches.setdefault(cache, OrderedDict())
        for block in reversed(blocks):
            cached[block] = None
            cached.move_to_end(block)
        while len(cached) > self._capacity:
            cached.popitem(last=False)

    def retain(self, caches: Collection[str]) -> None:
        """Forget caches that are not among `caches`."""
        self._caches = {name: cached for name, cached in self._caches.items() if name in caches}
