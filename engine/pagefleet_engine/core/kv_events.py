"""The changes of the prefix cache, and the events that tell others of them in vLLM's form. Pure.

The form is that of vLLM 0.32 (`vllm/distributed/kv_events.py`, `vllm/v1/core/block_pool.py`): a batch is an array in msgpack, an event
a map with its `type`. A block is a KV page. Its hash in an event is the last 64 bits of the page's own, big-endian, as vLLM's are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from pagefleet_engine.core.sequence import TokenSequence

MEDIUM = "GPU"  # vLLM's word for the pages that the engine computes with, whatever device they are on
ExtraKeys = tuple[str, ...] | None


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks that follow each other: the first one follows `parent_block_hash`, none where it begins a prompt.

    `token_ids` are those of all blocks. `lora_id` is the number of the adapter's version; an adapter that is loaded again has another.
    `extra_keys`, one entry for each block: the adapter's name, and with a prompt's first block its cache salt.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[ExtraKeys] | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """No block is cached any more."""


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    """`ts`: seconds since 1970. There is one scheduler, so the rank is always 0."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


@dataclass(frozen=True)
class Stored:
    """A page that can be found from now on. `parent` is the hash of the page before it, None for a prompt's first one."""

    digest: bytes
    parent: bytes | None
    tokens: tuple[int, ...]
    adapter: str | None  # with its version: NAME#NUMBER
    cache_salt: str

    def extra_keys(self) -> ExtraKeys:
        keys = [] if self.adapter is None else [self.adapter.rpartition("#")[0]]
        if self.parent is None and self.cache_salt:
            keys.append(self.cache_salt)
        return tuple(keys) or None


@dataclass(frozen=True)
class Removed:
    """A page that cannot be found any more."""

    digest: bytes


@dataclass(frozen=True)
class Cleared:
    """The cache is empty."""


Change = Stored | Removed | Cleared


class Journal:
    """Collects the changes of a pool in their order until somebody takes them."""

    def __init__(self, page_size: int) -> None:
        self._size = page_size
        self._changes: list[Change] = []

    def stored(self, sequence: TokenSequence, index: int) -> None:
        """Note that the page `index` of a sequence has become known by its hash."""
        tokens = tuple(sequence.tokens[index * self._size : (index + 1) * self._size])
        parent = sequence.hashes[index - 1] if index else None
        request = sequence.request
        self._changes.append(Stored(sequence.hashes[index], parent, tokens, request.adapter, request.cache_salt))

    def removed(self, digest: bytes) -> None:
        self._changes.append(Removed(digest))

    def cleared(self) -> None:
        """Note that the cache is empty. What was noted before and not taken does not matter any more."""
        self._changes = [Cleared()]

    def take(self) -> list[Change]:
        changes, self._changes = self._changes, []
        return changes


def block_hash(digest: bytes) -> int:
    """Return the hash of a page as events have it."""
    return int.from_bytes(digest[-8:], "big")


def events_of(changes: Iterable[Change]) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
    """Return the events of changes in their order: one for pages that follow each other, one for pages that left one after another."""
    events: list[BlockStored | BlockRemoved | AllBlocksCleared] = []
    last: Change | None = None
    for change in changes:
        latest = events[-1] if events else None
        match change:
            case Cleared():
                events.append(AllBlocksCleared())
            case Removed(digest):
                if isinstance(latest, BlockRemoved):
                    latest.block_hashes.append(block_hash(digest))
                else:
                    events.append(BlockRemoved([block_hash(digest)], MEDIUM))
            case Stored():
                follows = isinstance(last, Stored) and change.parent == last.digest and change.adapter == last.adapter
                if follows and isinstance(latest, BlockStored) and latest.extra_keys is not None:
                    latest.block_hashes.append(block_hash(change.digest))
                    latest.token_ids.extend(change.tokens)
                    latest.extra_keys.append(change.extra_keys())
                else:
                    events.append(_stored(change))
        last = change
    return events


def _stored(change: Stored) -> BlockStored:
    name, _, number = (change.adapter or "").rpartition("#")
    return BlockStored(
        block_hashes=[block_hash(change.digest)],
        parent_block_hash=None if change.parent is None else block_hash(change.parent),
        token_ids=list(change.tokens),
        block_size=len(change.tokens),
        lora_id=int(number) if number else None,
        medium=MEDIUM,
        lora_name=name or None,
        extra_keys=[change.extra_keys()],
    )
