"""/v1/cache/pin against a real engine: a pinned document is not computed again whatever else was, pins are each client's own,
what has no room is refused with the reason, and a pin's end gives its pages back.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.engine.api_process import NAME, Reply, Serving, make_adapter, make_model, serving, until

from pagefleet_contract.headers import CLIENT_HEADER, PROMPT_TOKENS_HEADER

PIN, PINS = "/v1/cache/pin", "/v1/cache/pins"
PAGE, PAGES, PINNABLE = 16, 200, 50
DOCUMENT = "".join(chr(97 + index % 26) for index in range(400))  # one token each: 25 full pages


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("pins")
    make_adapter(folder / "tuned")
    flags = (
        f"--num-pages={PAGES}", f"--page-size={PAGE}", "--max-model-len=2400", "--max-num-seqs=1",
        "--max-pin-seconds=600", "--max-pin-tokens=900",
        "--allow-runtime-adapters", f"--adapter-root={folder}",
    )  # fmt: skip
    with serving(make_model(folder / "model"), folder / "termination", *flags) as running:
        yield running


@pytest.fixture(autouse=True)
def _without_pins(served: Serving) -> Iterator[None]:
    yield
    for who in ("", "a", "b"):
        for pin in pins(served, who):
            assert delete(served, pin["id"], who).status == 200
    until(lambda: served.metric("pagefleet_kv_pages_pinned") == 0, "pages stay pinned")


def pin(served: Serving, prompt: str = DOCUMENT, who: str = "", **more: Any) -> Reply:
    document = {"model": NAME, **({} if "messages" in more else {"prompt": prompt}), **more}
    headers = {"Content-Type": "application/json", CLIENT_HEADER: who}
    return served.ask("POST", PIN, json.dumps(document).encode(), headers)


def pinned(served: Serving, prompt: str = DOCUMENT, who: str = "", **more: Any) -> dict[str, Any]:
    reply = pin(served, prompt, who, **more)
    assert reply.status == 200, reply.body
    made: dict[str, Any] = json.loads(reply.body)
    return made


def pins(served: Serving, who: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(served.ask("GET", PINS, headers={CLIENT_HEADER: who}).body)["data"]
    return found


def delete(served: Serving, name: str, who: str = "") -> Reply:
    return served.ask("DELETE", f"{PINS}/{name}", headers={CLIENT_HEADER: who})


def cached(served: Serving, prompt: str = DOCUMENT, **more: Any) -> int:
    """Return how many tokens of a question about the document came from the cache."""
    asked = {"model": NAME, "prompt": f"{prompt} what is it?", "max_tokens": 2, **more}
    tokens: int = served.answer("/v1/completions", asked)["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def push_out(served: Serving) -> None:
    """Send other prompts, with three times as many tokens as the pages hold."""
    prompts = [f"{number:04} " * 190 for number in range(10)]

    def ask(prompt: str) -> None:
        served.answer("/v1/completions", {"model": NAME, "prompt": prompt, "max_tokens": 2})

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ask, prompts))


def test_a_pinned_document_is_in_the_cache_after_traffic_that_evicts_all_others(served: Serving) -> None:
    assert (cached(served), cached(served)) == (0, 400)
    push_out(served)
    assert cached(served) == 0  # as any prompt
    push_out(served)
    reply = pin(served, ttl_seconds=60)
    made = json.loads(reply.body)
    assert (made["object"], made["model"]) == ("cache.pin", NAME)
    assert (made["tokens"], made["pages"], made["pinned_tokens"]) == (400, 25, 400)
    assert 50 < made["expires_at"] - time.time() <= 60
    assert reply.headers[PROMPT_TOKENS_HEADER] == "400"
    push_out(served)
    assert cached(served) == 400
    push_out(served)
    assert cached(served) == 400
    assert served.metric("pagefleet_kv_pages_pinned") == 25
    assert served.metric("pagefleet_kv_pages_pinnable") == PINNABLE
    assert served.metric("pagefleet_prefix_cache_pins") == 1
    assert delete(served, made["id"]).status == 200
    push_out(served)
    assert cached(served) == 0


def test_the_end_of_its_time_frees_a_pin_of_an_idle_engine(served: Serving) -> None:
    pinned(served, ttl_seconds=1)
    until(lambda: served.metric("pagefleet_kv_pages_pinned") == 0, "the pin does not end")
    assert pins(served) == []
    free = served.metric("pagefleet_kv_pages_free") + served.metric("pagefleet_kv_pages_cached")
    assert free == served.metric("pagefleet_kv_pages") == PAGES


def test_a_conversation_is_pinned_up_to_its_last_message(served: Serving) -> None:
    messages = [{"role": "system", "content": DOCUMENT}]
    made = pinned(served, messages=messages, ttl_seconds=60)
    push_out(served)
    asked = {"model": NAME, "messages": [*messages, {"role": "user", "content": "what is it?"}], "max_tokens": 2}
    usage = served.answer("/v1/chat/completions", asked)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == made["pinned_tokens"] == made["tokens"] // PAGE * PAGE


def test_the_same_prefix_again_lasts_longer_and_costs_nothing(served: Serving) -> None:
    first = pinned(served, ttl_seconds=60)
    longer = pinned(served, ttl_seconds=500)
    shorter = pinned(served, DOCUMENT + "xyz", ttl_seconds=5)  # no further full page
    assert first["id"] == longer["id"] == shorter["id"]
    assert shorter["expires_at"] >= longer["expires_at"] - 1 > first["expires_at"] + 400
    assert [one["id"] for one in pins(served)] == [first["id"]]
    assert served.metric("pagefleet_kv_pages_pinned") == 25


def test_pins_are_each_clients_own(served: Serving) -> None:
    mine, theirs = pinned(served, who="a"), pinned(served, who="b")
    assert mine["id"] != theirs["id"]
    assert ([one["id"] for one in pins(served, "a")], pins(served)) == ([mine["id"]], [])
    refused = delete(served, mine["id"], "b")
    assert (refused.status, refused.error["code"], refused.error["param"]) == (404, "pin_not_found", "pin")
    assert served.metric("pagefleet_kv_pages_pinned") == 25
    assert delete(served, mine["id"], "a").status == 200
    push_out(served)
    assert cached(served) == 400  # the other client's pin keeps it


def test_a_pin_that_has_no_room_is_refused_with_what_is_allowed_and_what_is_pinned(served: Serving) -> None:
    pinned(served)
    other = DOCUMENT[::-1]
    refused = pin(served, other + "more than is left")
    assert (refused.status, refused.error["code"], refused.error["param"]) == (409, "pins_full", "prompt")
    assert (
        "would pin 26 more pages; 25 of at most 50 pages are pinned (--max-pinned-pages-share)"
        in refused.error["message"]
    )
    assert served.metric("pagefleet_prefix_cache_pins") == 1
    pinned(served, other)
    push_out(served)
    assert (cached(served), cached(served, other)) == (400, 400)
    longest = {"model": NAME, "prompt": "z" * 2376, "max_tokens": 24, "ignore_eos": True}
    assert served.answer("/v1/completions", longest)["usage"]["completion_tokens"] == 24


@pytest.mark.parametrize(
    ("change", "param", "code", "words"),
    [
        ({"prompt": "short"}, "prompt", None, "fills no page"),
        ({"prompt": "x" * 850}, "prompt", "pin_too_large", "fills 53 pages of 16 tokens, pinned can be 50"),
        ({"prompt": "x" * 950}, "prompt", "pin_too_large", "950 tokens, pinned can be 900 (--max-pin-tokens)"),
        ({"prompt": "x" * 2500}, "prompt", "context_length_exceeded", "allowed are 2399"),
        ({"ttl_seconds": 601}, "ttl_seconds", None, "allowed are 600 (--max-pin-seconds)"),
        ({"ttl_seconds": 0}, "ttl_seconds", None, "from 1"),
        ({"prompt": ["a", "b"]}, "prompt", None, "allowed are 1"),
        ({"prompt": None}, "prompt", "missing_required_parameter", "required"),
        ({"max_tokens": 3}, "max_tokens", "unknown_parameter", "unknown"),
        ({"messages": []}, "prompt", "unknown_parameter", "unknown"),
    ],
)
def test_what_cannot_be_pinned_is_refused_by_name(
    served: Serving, change: dict[str, Any], param: str, code: str | None, words: str
) -> None:
    reply = served.post(PIN, {"model": NAME, "prompt": DOCUMENT, **change})
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, param, code), reply.body
    assert words in reply.error["message"]
    assert served.metric("pagefleet_prefix_cache_pins") == 0


def test_a_pin_is_of_the_adapter_and_ends_with_it(served: Serving) -> None:
    served.answer("/v1/load_lora_adapter", {"lora_name": "tuned", "lora_path": "tuned"})
    made = pinned(served, model="tuned", ttl_seconds=60)
    push_out(served)
    assert (cached(served), cached(served, model="tuned")) == (0, 400)
    assert [one["id"] for one in pins(served)] == [made["id"]]
    served.answer("/v1/unload_lora_adapter", {"lora_name": "tuned"})
    assert pins(served) == []


def test_sleep_ends_all_pins(served: Serving) -> None:
    pinned(served)
    assert served.ask("POST", "/sleep").status == 200
    assert pins(served) == []
    until(lambda: served.metric("pagefleet_prefix_cache_pins") == 0, "the engine still has the pin")
    assert served.ask("POST", "/wake_up").status == 200
    assert cached(served) == 0


def test_a_client_that_leaves_before_its_prompt_is_computed_pins_nothing(served: Serving) -> None:
    body = json.dumps({"model": NAME, "prompt": DOCUMENT}).encode()
    head = f"POST {PIN} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with served.open_stream(max_tokens=2000) as stream:
        stream.recv(4096)  # it has the only seat of the batch
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.sendall(head.encode() + body)
            until(lambda: served.metric("pagefleet_kv_pages_pinned") == 25, "the prompt does not wait with its pin")
        until(lambda: served.metric("pagefleet_kv_pages_pinned") == 0, "the pin stays")
        assert served.metric("pagefleet_num_requests_running") == 1
    assert pins(served) == []


def test_an_engine_without_room_for_pins_says_so(tmp_path: Path) -> None:
    flags = ("--max-model-len=1024", "--page-size=16", "--num-pages=70")
    with serving(make_model(tmp_path / "model"), tmp_path / "termination", *flags) as served:
        assert served.metric("pagefleet_kv_pages_pinnable") == 6
        text = (tmp_path / "termination.out").read_text()
    assert "6 and not 17 of 70 pages can be pinned, so that a request of 1024 tokens has room beside them" in text
    with serving(
        make_model(tmp_path / "model"), tmp_path / "off", "--max-pinned-pages-share=0", "--max-model-len=64"
    ) as served:
        refused = pin(served)
        assert (refused.status, refused.error["param"]) == (400, "prompt")
        refused = pin(served, DOCUMENT[:40])
        assert (refused.status, refused.error["code"]) == (403, "pins_not_allowed")
