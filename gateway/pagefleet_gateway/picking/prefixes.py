"""Which text each pod was sent lately, as block hashes: an estimate of what its prefix cache holds.

Remembers, and never chooses. Bounded per pod, least recently used first out, as the engines' caches are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

CAPACITY = 8192  # blocks per pod: 512k tokens, about a GPU's KV cache


class Prefixes:
    """An LRU of block hashes per pod. Kept by pod uid, so a restarted pod starts cold."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._pods: dict[str, OrderedDict[bytes, None]] = {}

    def matched(self, uid: str, blocks: Sequence[bytes]) -> int:
        """How many blocks from the first on the pod was sent already."""
        known = self._pods.get(uid)
        if known is None:
            return 0
        for count, block in enumerate(blocks):
            if block not in known:
                return count
        return len(blocks)

    def record(self, uid: str, blocks: Sequence[bytes]) -> None:
        """The pod is sent these blocks now. The last is touched first: a prefix outlives what follows it."""
        known = self._pods.setdefault(uid, OrderedDict())
        for block in reversed(blocks):
            known[block] = None
            known.move_to_end(block)
        while len(known) > self._capacity:
            known.popitem(last=False)

    def keep(self, uids: Collection[str]) -> None:
        """Forget pods that are gone."""
        self._pods = {uid: known for uid, known in self._pods.items() if uid in uids}
