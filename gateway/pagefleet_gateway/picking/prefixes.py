"""The text that each pod got lately, as block hashes: an estimate of what its prefix cache holds.

Remembers, and never chooses. Bounded per pod; the least recently used block leaves first, as in the engines' caches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

CAPACITY = 8192  # blocks per pod: 512k tokens, about a GPU's KV cache


class Prefixes:
    """An LRU of block hashes per pod uid, so a restarted pod starts cold."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._pods: dict[str, OrderedDict[bytes, None]] = {}

    def matched(self, uid: str, blocks: Sequence[bytes]) -> int:
        """Return how many blocks, from the first on, the pod got already."""
        cached = self._pods.get(uid)
        if cached is None:
            return 0
        for count, block in enumerate(blocks):
            if block not in cached:
                return count
        return len(blocks)

    def record(self, uid: str, blocks: Sequence[bytes]) -> None:
        """Count that the pod gets these blocks now. The last is touched first: a prefix outlives what follows it."""
        cached = self._pods.setdefault(uid, OrderedDict())
        for block in reversed(blocks):
            cached[block] = None
            cached.move_to_end(block)
        while len(cached) > self._capacity:
            cached.popitem(last=False)

    def retain(self, uids: Collection[str]) -> None:
        """Forget pods that are not among `uids`."""
        self._pods = {uid: cached for uid, cached in self._pods.items() if uid in uids}
