"""Protects the form of KV events on the wire, which is vLLM's, and that each says what a reader needs to compute its own hashes."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from support.engine.kv_events import View
from support.engine.scheduler_steps import LIMITS, request, run

from pagefleet_engine.core.blocks import page_hashes
from pagefleet_engine.core.kv_events import Change, EventBatch, Journal, block_hash, events_of
from pagefleet_engine.core.overlap import OverlapScheduler
from pagefleet_engine.core.scheduler import Scheduler

SIZE = LIMITS.page_size
SMALL = replace(LIMITS, pages=24, max_pinned_pages=8)


def payload(changes: list[Change]) -> bytes:
    return msgspec.msgpack.encode(EventBatch(1.5, events_of(changes), 0))


def test_a_batch_is_an_array_and_an_event_a_map_with_its_type() -> None:
    """As vLLM 0.32 encodes them. Pages that follow each other are one event."""
    journal = Journal(SIZE)
    scheduler = Scheduler(LIMITS, journal)
    asked = request("a", 9)
    scheduler.add(asked)
    run(scheduler)
    tokens = [*asked.prompt_token_ids, 5, 5, 5]
    digests = page_hashes(tokens, SIZE)
    hashes = [int.from_bytes(digest[-8:], "big") for digest in digests]
    assert msgspec.msgpack.decode(payload(journal.take())) == [
        1.5,
        [{
            "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "token_ids": tokens,
            "block_size": SIZE, "lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": [None] * 3,
        }],
        0,
    ]  # fmt: skip
    for digest in digests[:2]:
        journal.removed(digest)
    removed = {"type": "BlockRemoved", "block_hashes": hashes[:2], "medium": "GPU"}
    assert msgspec.msgpack.decode(payload(journal.take())) == [1.5, [removed], 0]
    journal.removed(digests[2])
    journal.cleared()
    assert msgspec.msgpack.decode(payload(journal.take())) == [1.5, [{"type": "AllBlocksCleared"}], 0]


def test_what_follows_a_page_that_is_known_already_names_it() -> None:
    journal = Journal(SIZE)
    scheduler = Scheduler(LIMITS, journal)
    first = request("a", 8, 1)
    scheduler.add(first)
    run(scheduler)
    journal.take()
    scheduler.add(replace(first, request_id="b", prompt_token_ids=(*first.prompt_token_ids, 1, 2, 3, 4)))
    run(scheduler)
    (stored,) = msgspec.msgpack.decode(payload(journal.take()))[1]
    assert stored["parent_block_hash"] == block_hash(page_hashes(first.prompt_token_ids, SIZE)[1])
    assert stored["token_ids"] == [1, 2, 3, 4]


def test_an_adapter_and_a_salt_are_named() -> None:
    journal = Journal(SIZE)
    scheduler = Scheduler(LIMITS, journal)
    asked = replace(request("a", 8, 1), adapter="team/tuned#3", cache_salt="s")
    scheduler.add(asked, "team/tuned#3")
    scheduler.add(replace(asked, request_id="b", adapter=None), "")
    run(scheduler)
    changes = journal.take()
    tuned, plain = msgspec.msgpack.decode(payload(changes))[1]
    assert (tuned["lora_name"], tuned["lora_id"]) == ("team/tuned", 3)
    assert tuned["extra_keys"] == [["team/tuned", "s"], ["team/tuned"]]
    assert (plain["lora_name"], plain["lora_id"], plain["extra_keys"]) == (None, None, [["s"], None])
    assert set(tuned["block_hashes"]).isdisjoint(plain["block_hashes"])
    View().take(payload(changes))  # the hashes follow from what the events say


@pytest.mark.parametrize("made", [Scheduler, OverlapScheduler])
def test_a_pinned_page_is_not_reported_as_removed(made: type[Scheduler]) -> None:
    journal, view = Journal(SIZE), View()
    scheduler = made(SMALL, journal=journal)
    asked = request("d", 33)
    scheduler.pin("pin", asked.prompt_token_ids, b"", 100.0)
    for name in ("d", "e", "f", "g"):
        scheduler.add(asked if name == "d" else request(name, 60, 2))
        run(scheduler)
        view.take(payload(journal.take()))
    pinned = {block_hash(digest) for digest in page_hashes(asked.prompt_token_ids, SIZE)}
    assert view.removed > 0 and pinned <= set(view.blocks)
    scheduler.expire(200.0)
    for name in ("h", "i", "j"):
        scheduler.add(request(name, 60, 2))
        run(scheduler)
    view.take(payload(journal.take()))
    assert pinned.isdisjoint(view.blocks)
