"""The text that each pod got lately, as block hashes: an estimate of what its prefix cache holds.

Remembers, and never chooses. Bounded per cache; the least recently used block leaves first, as in the engines' caches.
The hashes are the same in every gateway, so that one gateway can tell the others which blocks it has sent to which pod.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from pagefleet_gateway.cluster.state import Pod

CAPACITY = 8192  # blocks per cache: 512k tokens, about a GPU's KV cache
HASH_BYTES = 16
LOOKS = 32  # pods that show how deep a prompt may be cached
MAX_NEWS = 65_536  # blocks in one message to another gateway; it never learns of those that do not fit

Cached = OrderedDict[bytes, None]  # the oldest block first


class Prefixes:
    """An LRU of block hashes per cache: a pod's container, so that one which started again starts cold."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._caches: dict[str, Cached] = {}
        self._news: dict[str, list[bytes]] = {}  # blocks that are new to a cache since `take_news`
        self._news_count = 0

    def matched(self, cache: str, blocks: Sequence[bytes]) -> int:
        """Return how many blocks, from the first on, the cache's pod got already."""
        cached = self._caches.get(cache)
        return 0 if cached is None else _depth(cached, blocks)

    def longest(self, pods: Sequence[Pod], blocks: Sequence[bytes], count: int) -> list[Pod]:
        """Return the pods with the longest beginnings of `blocks`, and where they are fewer than `count`, some with shorter ones.

        Few looks at all pods: some of them show how deep to look at the others.
        """
        if not blocks:
            return []
        find, first = self._caches.get, blocks[0]
        holders = [(held, pod) for pod in pods if (held := find(pod.cache)) is not None and first in held]
        some = holders[:: len(holders) // LOOKS + 1]
        low = max((_depth(held, blocks) for held, _ in some), default=1) - 1  # the deepest block that some have
        high, more = len(blocks), holders
        if low:
            holders = _having(holders, blocks[low])
        if low + 1 < high:
            longer = _having(holders, blocks[low + 1])
            low, holders, high = (low + 1, longer, high) if longer else (low, holders, low + 1)
        while high - low > 1:
            middle = (low + high) // 2
            longer = _having(holders, blocks[middle])
            low, holders, high = (middle, longer, high) if longer else (low, holders, middle)
        if len(holders) < count:
            holders = [*holders, *more[: count - len(holders)]]
        return [pod for _, pod in holders]

    def record(self, cache: str, blocks: Sequence[bytes]) -> None:
        """Count that the cache's pod gets these blocks now. The last is touched first: a prefix outlives what follows it."""
        new = self._touch(cache, reversed(blocks))
        if new and self._news_count + len(new) <= MAX_NEWS:
            self._news.setdefault(cache, []).extend(new)
            self._news_count += len(new)

    def hear(self, cache: str, hashes: bytes) -> None:
        """Take over the blocks that another gateway has sent to a pod: their hashes, one after the other."""
        self._touch(cache, (hashes[at : at + HASH_BYTES] for at in range(0, len(hashes) - HASH_BYTES + 1, HASH_BYTES)))

    def take_news(self) -> dict[str, bytes]:
        """Return the blocks that are new since the last call, by cache: their hashes, one after the other."""
        news, self._news, self._news_count = self._news, {}, 0
        return {cache: b"".join(blocks) for cache, blocks in news.items()}

    def latest(self) -> dict[str, bytes]:
        """Return the most recently used blocks of all caches, in the shape of `take_news`, for a gateway that is new."""
        each = MAX_NEWS // max(1, len(self._caches))
        return {
            cache: b"".join(reversed(list(islice(reversed(cached), each)))) for cache, cached in self._caches.items()
        }

    def _touch(self, cache: str, blocks: Iterable[bytes]) -> list[bytes]:
        """Make these the most recently used blocks, the last one the most. Return those that are new."""
        cached = self._caches.setdefault(cache, OrderedDict())
        new = []
        for block in blocks:
            if block not in cached:
                new.append(block)
            cached[block] = None
            cached.move_to_end(block)
        while len(cached) > self._capacity:
            cached.popitem(last=False)
        return new

    def retain(self, caches: Collection[str]) -> None:
        """Forget caches that are not among `caches`."""
        self._caches = {name: cached for name, cached in self._caches.items() if name in caches}
        self._news = {name: blocks for name, blocks in self._news.items() if name in caches}


def _having(holders: list[tuple[Cached, Pod]], block: bytes) -> list[tuple[Cached, Pod]]:
    return [entry for entry in holders if block in entry[0]]


def _depth(cached: Cached, blocks: Sequence[bytes]) -> int:
    """Return how many blocks a cache holds, by bisection: a block outlives those that follow it."""
    if not blocks or blocks[0] not in cached:
        return 0
    if blocks[-1] in cached:
        return len(blocks)
    low, high = 0, len(blocks) - 1  # block `low` is there and `high` is not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if blocks[middle] in cached else (low, middle)
    return high
