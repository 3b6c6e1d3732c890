"""KV events of a real engine, read over real ZeroMQ sockets as vLLM's readers do: what they say is cached is what is cached, after
prompts, evictions, pins, adapters, salts and sleep, for a reader that was there and for one that came late and asked for a replay.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine.api_process import NAME, Serving, free_port, make_adapter, make_model, serving, until
from support.engine.kv_events import Subscriber

PAGE, PAGES = 16, 64
TOPIC = f"kv@10.0.0.1@{NAME}"  # as llm-d's readers take it apart: the pod, the model
DOCUMENT = "".join(chr(97 + index % 26) for index in range(160))  # one token each: 10 full pages
Reader = tuple[Serving, Subscriber]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Reader]:
    events, replay = f"tcp://*:{free_port()}", f"tcp://*:{free_port()}"
    config = {"enable_kv_cache_events": True, "endpoint": events, "replay_endpoint": replay, "topic": TOPIC}
    make_adapter(tmp_path / "tuned")
    flags = (
        f"--num-pages={PAGES}", f"--page-size={PAGE}", "--max-model-len=600", f"--kv-events-config={json.dumps(config)}",
        f"--lora-adapter=tuned={tmp_path / 'tuned'}",
    )  # fmt: skip
    with serving(make_model(tmp_path / "model"), tmp_path / "termination", *flags) as served:
        # A socket that connects before somebody listens may meet itself: the ports are among those that clients get.
        subscriber = Subscriber(*(endpoint.replace("*", "127.0.0.1") for endpoint in (events, replay)), TOPIC)
        yield served, subscriber
        subscriber.close()


def ask(served: Serving, prompt: str, **more: Any) -> list[int]:
    """Return the prompt's tokens."""
    served.answer("/v1/completions", {"model": NAME, "prompt": prompt, "max_tokens": 1, **more})
    tokens: list[int] = served.answer("/tokenize", {"model": NAME, "prompt": prompt})["tokens"]
    return tokens


def settle(served: Serving, subscriber: Subscriber) -> None:
    """Receive until every batch has come; then what the events say is cached has as many pages as the engine's metrics say."""
    until(lambda: served.metric("pagefleet_num_requests_running") == 0, "requests run on")

    def told() -> bool:
        if subscriber.receive(100) is None:
            subscriber.catch_up()  # what was published before the subscription arrived
        return subscriber.next == served.metric("pagefleet_kv_event_batches_total")

    until(told, "batches are missing")
    free = served.metric("pagefleet_kv_pages_free")
    assert len(subscriber.view.blocks) == served.metric("pagefleet_kv_pages") - free


def push_out(served: Serving) -> None:
    for number in range(6):
        ask(served, f"{number:04} " * 100)


def test_a_reader_knows_what_is_cached_whenever_it_came(running: Reader) -> None:
    served, early = running
    tokens = ask(served, DOCUMENT)
    settle(served, early)
    told = {tuple(event.token_ids) for event in early.view.blocks.values()}
    assert sorted(told, key=len)[-1][:PAGE] == tuple(tokens[:PAGE]) and sum(map(len, told)) == 160
    assert early.view.cleared == 1  # the start
    push_out(served)
    settle(served, early)
    assert early.view.removed > 0 and served.metric("pagefleet_kv_event_batches_dropped_total") == 0
    late = Subscriber(*early.endpoints, TOPIC)
    late.catch_up()
    assert late.view.blocks.keys() == early.view.blocks.keys()
    ask(served, "something else " * 20)
    settle(served, late)
    settle(served, early)
    assert late.view.blocks.keys() == early.view.blocks.keys()
    late.close()


def test_a_batch_comes_when_it_is_published(running: Reader) -> None:
    served, subscriber = running
    subscriber.catch_up()

    def live() -> bool:
        tokens = ask(served, f"{subscriber.next:02} " * 6)  # one page
        batch = subscriber.receive(200)
        return batch is not None and any(event.token_ids == tokens[:PAGE] for event in subscriber.view.blocks.values())

    until(live, "nothing is published")


def test_a_pinned_prompt_stays_and_its_end_is_told(running: Reader) -> None:
    served, subscriber = running
    made = served.answer("/v1/cache/pin", {"model": NAME, "prompt": DOCUMENT, "ttl_seconds": 60})
    settle(served, subscriber)
    pinned = set(subscriber.view.blocks)
    assert len(pinned) == made["pages"] == 10
    push_out(served)
    settle(served, subscriber)
    assert subscriber.view.removed > 0 and pinned <= set(subscriber.view.blocks)
    assert served.ask("DELETE", f"/v1/cache/pins/{made['id']}").status == 200
    push_out(served)
    push_out(served)
    settle(served, subscriber)
    assert pinned.isdisjoint(subscriber.view.blocks)


def test_adapters_and_salts_have_blocks_of_their_own(running: Reader) -> None:
    served, subscriber = running
    for more in ({}, {"model": "tuned"}, {"cache_salt": "s"}, {"model": "tuned", "cache_salt": "s"}):
        ask(served, DOCUMENT, **more)
    settle(served, subscriber)
    of = {(event.lora_name, event.lora_id) for event in subscriber.view.blocks.values()}
    assert of == {(None, None), ("tuned", 1)}
    assert len(subscriber.view.blocks) == 40
    firsts = {json.dumps((event.extra_keys or [None])[0]) for event in subscriber.view.blocks.values()}
    assert firsts == {"null", '["tuned"]', '["s"]', '["tuned", "s"]'}


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_clears_all(running: Reader, level: int) -> None:
    served, subscriber = running
    ask(served, DOCUMENT)
    settle(served, subscriber)
    assert subscriber.view.blocks
    assert served.ask("POST", f"/sleep?level={level}").status == 200

    def cleared() -> bool:
        subscriber.catch_up()
        return not subscriber.view.blocks

    until(cleared, "the blocks of a sleeping engine stay")
    assert served.ask("POST", "/wake_up").status == 200
    ask(served, DOCUMENT)
    settle(served, subscriber)
    assert subscriber.view.blocks
