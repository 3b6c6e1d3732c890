"""The text that each pod got lately, as block hashes: an estimate of what its prefix cache holds.

Remembers, and never chooses. Bounded per cache, by what the engine says that its cache holds; the least recently used block leaves
first, as in the engines' caches. All caches together are bounded too, each by an equal part.
The hashes are the same in every gateway, so that one gateway can tell the others which blocks it has sent to which pod.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Container, Iterable, Sequence
from itertools import islice

from pagefleet_gateway.cluster.state import Pod
from pagefleet_gateway.cluster.steps import Steps, parts
from pagefleet_gateway.picking.prompts.request_cost import BLOCK_TOKENS, LONG_BLOCK_TOKENS, LONG_MARK

CAPACITY = 8192  # blocks of 64 tokens in a cache whose size is not known: 512k tokens, about a GPU's KV cache
MAX_CAPACITY = 32_768  # blocks that are remembered of any cache: 2M tokens
TOTAL = 1 << 21  # blocks that are remembered of all caches: 150 bytes each
SWEPT = 100  # blocks of a cache that one sweep forgets, so that it stays short
LONG_UNITS = LONG_BLOCK_TOKENS // BLOCK_TOKENS  # a larger block counts as so many
HASH_BYTES = 16
LOOKS = 32  # pods that show how deep a prompt may be cached
MAX_NEWS = 65_536  # blocks in one message to another gateway; it never learns of those that do not fit

RETOLD = 4  # a block is told again when so small a part of its cache is new since: else it would be forgotten elsewhere

Cached = OrderedDict[bytes, int]  # the oldest block first, each with what the cache had counted when it was told last


class Prefixes:
    """An LRU of block hashes per cache: a pod's container, so that one which started again starts cold."""

    def __init__(self, capacity: int = CAPACITY, total: int = TOTAL) -> None:
        self._capacity, self._total = capacity, total
        self._capacities: dict[str, int] = {}  # of the caches whose size is known
        self._caches: dict[str, Cached] = {}
        self._units: dict[str, int] = {}  # what each cache's blocks count
        self._counted: dict[str, int] = {}  # what all blocks together count that each cache ever got
        self._news: dict[str, list[bytes]] = {}  # blocks to tell of since `take_news`
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

    def resize(self, cache: str, tokens: float) -> None:
        """Remember of a cache no more than this many tokens, which its engine states."""
        self._capacities[cache] = max(1, min(MAX_CAPACITY, int(tokens) // BLOCK_TOKENS))
        if cache in self._caches:
            self._evict(cache)

    def record(self, cache: str, blocks: Sequence[bytes]) -> None:
        """Count that the cache's pod gets these blocks now. The last is touched first: a prefix outlives what follows it."""
        new = self._touch(cache, reversed(blocks))
        if new and self._news_count + len(new) <= MAX_NEWS:
            self._news.setdefault(cache, []).extend(new)
            self._news_count += len(new)

    def hear(self, cache: str, hashes: bytes) -> None:
        """Take over the blocks that another gateway has sent to a pod: their hashes, one after the other."""
        blocks = (hashes[at : at + HASH_BYTES] for at in range(0, len(hashes) - HASH_BYTES + 1, HASH_BYTES))
        self._touch(cache, blocks, heard=True)

    def take_news(self) -> dict[str, bytes]:
        """Return the blocks that are new since the last call, by cache: their hashes, one after the other."""
        news, self._news, self._news_count = self._news, {}, 0
        return {cache: b"".join(blocks) for cache, blocks in news.items()}

    @property
    def caches(self) -> Collection[str]:
        """Return the names of the caches."""
        return self._caches.keys()

    def latest(self, caches: Iterable[str], of: int) -> dict[str, bytes]:
        """Return the most recently used blocks of some of `of` caches, in the shape of `take_news`, for a gateway that is new."""
        each = MAX_NEWS // max(1, of)
        found = {cache: self._caches[cache] for cache in caches if cache in self._caches}
        return {cache: b"".join(reversed(list(islice(reversed(own), each)))) for cache, own in found.items()}

    def _touch(self, cache: str, blocks: Iterable[bytes], heard: bool = False) -> list[bytes]:
        """Make these the most recently used blocks, the last one the most. Return those that other gateways should hear of: the
        new ones, and those of which they have not heard for long."""
        cached = self._caches.setdefault(cache, OrderedDict())
        counted = self._counted.get(cache, 0)
        oldest = counted - self._room(cache) // RETOLD
        tell, units = [], 0
        for block in blocks:
            told = cached.get(block)
            if told is None:
                units += _units(block)
            if told is None or told < oldest:
                tell.append(block)
                told = counted
            cached[block] = counted if heard else told
            cached.move_to_end(block)
        self._counted[cache] = counted + units
        self._units[cache] = self._units.get(cache, 0) + units
        self._evict(cache)
        return tell

    def _room(self, cache: str) -> int:
        """Return how many blocks are remembered of a cache."""
        own = self._capacities.get(cache, self._capacity)
        return max(1, min(own, self._total // max(1, len(self._caches))))

    def _evict(self, cache: str, count: int = MAX_CAPACITY) -> None:
        """Forget the least recently used blocks that the cache has no room for, `count` at most."""
        cached, units, most = self._caches[cache], self._units[cache], self._room(cache)
        while units > most and count:
            units -= _units(cached.popitem(last=False)[0])
            count -= 1
        self._units[cache] = units

    def retain(self, caches: Container[str]) -> Steps:
        """Forget caches that are not among `caches`, and blocks of others that have no room any more."""
        for part in parts({**self._caches, **self._capacities, **self._news}):
            for name in [name for name in part if name not in caches]:
                for table in (self._caches, self._counted, self._units, self._capacities, self._news):
                    table.pop(name, None)
            for name in part:
                if name in self._caches:
                    self._evict(name, SWEPT)
            yield


def _units(block: bytes) -> int:
    return LONG_UNITS if block.endswith(LONG_MARK) else 1


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
