"""Protects the publisher of KV events: a step never waits for it, what is dropped is counted and shows, a replay has what is kept."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support.engine.api_process import free_port
from support.engine.kv_events import Subscriber, View

from pagefleet_engine.core.blocks import page_hashes
from pagefleet_engine.core.kv_events import Change, Removed, Stored
from pagefleet_engine.core.requests import KVEventsConfig
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.common.event_publisher import EventPublisher


def stored(number: int) -> Change:
    tokens = (number, number + 1)
    return Stored(page_hashes(tokens, 2)[0], None, tokens, None, "")


def config(folder: Path, **more: int) -> KVEventsConfig:
    return KVEventsConfig(
        True,
        None,
        endpoint=f"ipc://{folder}/events",
        replay_endpoint=f"ipc://{folder}/replay",
        topic="kv@pod@m",
        **more,
    )


def reader(folder: Path) -> Subscriber:
    return Subscriber(f"ipc://{folder}/events", f"ipc://{folder}/replay", "kv@pod@m")


def test_readers_get_every_batch_in_order_and_late_ones_replay_it(tmp_path: Path) -> None:
    publisher, early = EventPublisher(config(tmp_path)), reader(tmp_path)
    publisher.publish([])  # no batch
    sent = 0
    while early.receive(20) is None:  # until the subscription has arrived
        early.catch_up()
        publisher.publish([stored(sent)])
        sent += 1
    for number in range(sent, sent + 50):
        publisher.publish([stored(number)])
        batch = early.receive()
        assert batch is not None and batch.data_parallel_rank == 0
    late = reader(tmp_path)
    late.catch_up()
    assert late.next == early.next == publisher.batches
    assert late.view.blocks.keys() == early.view.blocks.keys()
    assert [number for number, _ in late.replay(late.next - 3)] == [late.next - 3, late.next - 2, late.next - 1]
    publisher.close()
    early.close()
    late.close()


def test_a_replay_has_the_last_batches_that_are_kept(tmp_path: Path) -> None:
    publisher, late = EventPublisher(config(tmp_path, buffer_steps=4)), reader(tmp_path)
    for number in range(10):
        publisher.publish([stored(number)])
    publisher.publish([Removed(b"x" * 16)])
    while len(found := late.replay(0)) < 4 or found[-1][0] < 10:
        pass  # the thread is still sending
    assert [number for number, _ in found] == [7, 8, 9, 10]
    publisher.close()
    late.close()


def test_a_full_queue_drops_and_never_waits_and_the_next_batch_says_that_all_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, sends = threading.Event(), EventPublisher._send_queued

    def held(publisher: EventPublisher) -> None:
        free.wait()
        sends(publisher)

    monkeypatch.setattr(EventPublisher, "_send_queued", held)
    publisher, late = EventPublisher(config(tmp_path, max_queue_size=2)), reader(tmp_path)
    for number in range(6):
        publisher.publish([stored(number)])  # returns, though nothing is sent
    assert (publisher.batches, publisher.dropped) == (6, 4)
    free.set()
    while len(late.replay(0)) < 2:
        pass
    publisher.publish([stored(9)])
    while len(found := late.replay(0)) < 3:
        pass
    assert [number for number, _ in found] == [0, 1, 6]  # the gap shows the loss
    view = View()
    for _, payload in found:
        view.take(payload)
    assert view.cleared == 1 and [event.token_ids for event in view.blocks.values()] == [[9, 10]]
    publisher.close()
    late.close()


def test_what_is_queued_is_sent_before_the_end(tmp_path: Path) -> None:
    publisher, early = EventPublisher(config(tmp_path)), reader(tmp_path)
    while early.receive(20) is None:
        early.catch_up()
        publisher.publish([stored(publisher.batches)])
    for number in range(100):
        publisher.publish([stored(1000 + number)])
    publisher.close()
    while early.next < publisher.batches:
        assert early.receive() is not None
    early.close()


def test_an_endpoint_that_is_taken_is_named() -> None:
    endpoint = f"tcp://*:{free_port()}"
    first = EventPublisher(KVEventsConfig(True, endpoint=endpoint))
    with pytest.raises(ModelError, match=r"--kv-events-config: endpoint .*in use"):
        EventPublisher(KVEventsConfig(True, endpoint=endpoint))
    first.close()
