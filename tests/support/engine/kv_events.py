"""A reader of KV events that is written from vLLM's wire format alone: it decodes batches, checks every hash against the tokens that
came with it, and holds the set of blocks that the events leave. Nothing of the engine's own reader or writer is used but the hash."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from pagefleet_engine.core.blocks import page_hashes, root_hash

WAIT_MS = 20_000
END = 0xFFFF_FFFF_FFFF_FFFF


class BlockStored(msgspec.Struct, tag=True):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    block_hashes: list[int | bytes]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


decoder = msgspec.msgpack.Decoder(Batch)


@dataclass
class View:
    """What an engine has cached, as its events say. `ever`: the whole hashes of all blocks that were ever stored, by the events' own."""

    blocks: dict[int | bytes, BlockStored] = field(default_factory=dict)
    ever: dict[int | bytes, bytes] = field(default_factory=dict)
    removed: int = 0
    cleared: int = 0

    def take(self, payload: bytes) -> Batch:
        """Take a batch in. Raises AssertionError for an event that does not fit what came before it."""
        batch = decoder.decode(payload)
        for event in batch.events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved(block_hashes):
                    for block in block_hashes:
                        del self.blocks[block]
                    self.removed += len(block_hashes)
                case AllBlocksCleared():
                    self.blocks.clear()
                    self.cleared += 1
        return batch

    def _store(self, event: BlockStored) -> None:
        """Compute the hashes from the tokens, the parent, the adapter and the salt, and compare."""
        size, keys = event.block_size, event.extra_keys or [None] * len(event.block_hashes)
        assert event.medium == "GPU"
        assert len(event.token_ids) == size * len(event.block_hashes) and len(keys) == len(event.block_hashes)
        named = 0 if event.lora_name is None else 1
        assert all((key or ())[:named] == ((event.lora_name,) if named else ()) for key in keys)
        if event.parent_block_hash is None:
            salt = "".join((keys[0] or ())[named:])
            parent = root_hash(salt, f"{event.lora_name}#{event.lora_id}" if named else "")
        else:
            parent = self.ever[event.parent_block_hash]
            assert len(keys[0] or ()) == named
        assert all(len(key or ()) == named for key in keys[1:])
        for digest, block in zip(page_hashes(event.token_ids, size, parent), event.block_hashes, strict=True):
            assert block == int.from_bytes(digest[-8:], "big")
            assert block not in self.blocks
            self.blocks[block], self.ever[block] = event, digest


class Subscriber:
    """A SUB socket, a DEALER for replays, and the view that their batches make."""

    def __init__(self, endpoint: str, replay: str, topic: str = "") -> None:
        self.view, self.topic, self.next = View(), topic.encode(), 0
        self.endpoints = endpoint, replay
        self._context = zmq.Context()
        self._sub, self._replay = self._context.socket(zmq.SUB), self._context.socket(zmq.DEALER)
        self._sub.subscribe(self.topic)
        self._sub.connect(endpoint)
        self._replay.connect(replay)

    def replay(self, first: int) -> list[tuple[int, bytes]]:
        """Return the batches from a number on that the engine still has."""
        self._replay.send_multipart((b"", first.to_bytes(8, "big")))
        batches: list[tuple[int, bytes]] = []
        while True:
            assert self._replay.poll(WAIT_MS), "no answer to a request for a replay"
            empty, sequence, payload = self._replay.recv_multipart()
            assert empty == b""
            if not payload:
                assert int.from_bytes(sequence, "big") == END
                return batches
            batches.append((int.from_bytes(sequence, "big"), payload))

    def catch_up(self, end: int = END) -> None:
        """Replay what is missing since the last batch that was taken, up to the number `end`."""
        for number, payload in self.replay(self.next):
            if number < end:
                assert number == self.next
                self.view.take(payload)
                self.next += 1

    def receive(self, wait_ms: int = WAIT_MS) -> Batch | None:
        """Take the next batch that is published, and before it those that were missed; None when none comes."""
        while self._sub.poll(wait_ms):
            topic, sequence, payload = self._sub.recv_multipart()
            number = int.from_bytes(sequence, "big")
            assert topic == self.topic and len(sequence) == 8
            if number > self.next:
                self.catch_up(number)
            if number == self.next:
                self.next += 1
                return self.view.take(payload)
        return None

    def close(self) -> None:
        self._context.destroy(linger=0)
