"""Protects KV events of the engine on a device, whose scheduler runs a step ahead: they tell what its cache holds after every step, with
pages that come back from the host, and that sleep empties it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.engine.device_engine import device_engine, saved
from support.engine.kv_events import View
from support.engine.reference import ask

from pagefleet_engine.core.kv_events import EventBatch, events_of
from pagefleet_engine.core.requests import KVEventsConfig
from pagefleet_engine.runner.device.engine import DeviceEngine

DOCUMENT = list(range(3, 70))  # four full pages of 16 tokens
OTHERS = [[100 + 10 * first + index for index in range(60)] for first in range(8)]


@pytest.mark.parametrize("offload", [0, 1 << 20])
def test_a_reader_knows_what_the_device_has_cached(offload: int, tmp_path: Path) -> None:
    events = KVEventsConfig(enable_kv_cache_events=True)
    served = device_engine(
        saved(tmp_path)[0], num_pages=20, max_model_len=128, kv_offload_memory=offload, kv_events_config=events
    )
    view = View()
    read(served, view)
    assert (view.cleared, view.blocks) == (1, {})
    for number, prompt in enumerate([DOCUMENT, *OTHERS, DOCUMENT]):
        served.add(ask(str(number), prompt, 3))
        while served.has_work():
            served.step(0.0)
            read(served, view)
            told = sum(event.token_ids[:16] == DOCUMENT[:16] for event in view.blocks.values())
            stats = served.stats()
            if not (stats.running or stats.waiting):
                assert len(view.blocks) == stats.pages_cached
    assert view.removed > 0 and told > 0
    served.sleep(1)
    read(served, view)
    assert view.blocks == {}
    served.wake()
    served.add(ask("awake", DOCUMENT, 3))
    while served.has_work():
        served.step(0.0)
        read(served, view)
    assert len(view.blocks) == served.stats().pages_cached == 4


def read(served: DeviceEngine, view: View) -> None:
    view.take(msgspec.msgpack.encode(EventBatch(0.0, events_of(served.take_changes()), 0)))
