"""Protects that no body within the limit stalls the picking loop for long, and that bodies that are only large are still read
exactly: their model, stream and limits, images counted as images, many prompts as many."""

from __future__ import annotations

import json
import time

import pytest

from pagefleet_gateway.bodies.fields import MAX_STRUCTURE, BodyError, document
from pagefleet_gateway.bodies.prompt_text import MAX_PIECES, MAX_PROMPTS
from pagefleet_gateway.picking.prompts.request_cost import MEDIA_TOKENS, request_cost

SIZE = 4 * 1024 * 1024
HEAD, TAIL = b'{"model": "smol", "stream": true, ', b', "max_tokens": 7}'


def body(field: bytes, start: bytes, repeated: bytes, end: bytes) -> bytes:
    count = (SIZE - 200) // len(repeated)
    return HEAD + b'"%s": ' % field + start + repeated * count + end + TAIL


WORST = {
    "empty tools": body(b"tools", b"[", b"{},", b"{}]"),
    "empty messages": body(b"messages", b"[", b"{},", b"{}]"),
    "token ids": body(b"prompt", b"[", b"1,", b"1]"),
    "prompts": body(b"prompt", b"[", b'"",', b'""]'),
    "content parts": body(b"messages", b'[{"role": "user", "content": [', b"{},", b"{}]}]"),
    "tool calls": body(b"messages", b'[{"role": "user", "tool_calls": [', b"{},", b"{}]}]"),
    "another field": body(b"other", b"[", b"[],", b"[]]"),
    "text": body(b"prompt", b'"', b"a, ", b'"'),
    "escapes": body(b"prompt", b'"', b"\\u00e9", b'"'),
}


@pytest.mark.parametrize("name", WORST)
def test_the_worst_bodies_are_read_in_milliseconds(name: str) -> None:
    """A decoded tree of the same bodies took 200 to 4,600 ms. The bound is for a busy machine."""
    before = time.thread_time()
    cost = request_cost(WORST[name])
    assert time.thread_time() - before < 0.1
    assert (cost.model, cost.streams, cost.output_limit) == ("smol", True, 7)
    assert cost.prompt_tokens > 100_000 or name == "another field"
    assert cost.answers == (MAX_PROMPTS if name == "prompts" else 1)


def test_a_body_is_scanned_once_for_routing_and_cost() -> None:
    large = WORST["empty tools"]
    first = document(large)
    before = time.thread_time()
    assert document(large) is first
    assert time.thread_time() - before < 0.001


def test_a_large_image_beside_much_text_is_still_an_image() -> None:
    code = "if (a[0], b[1]) { c(d, e); } " * 3000
    assert 10_000 < code.count(",") + code.count("{") + code.count("[") < MAX_STRUCTURE
    parts = [
        {"type": "text", "text": code},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}},
    ]
    cost = request_cost(json.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]}).encode())
    assert cost.prompt_tokens < len(code) // 4 + MEDIA_TOKENS + 100


def test_more_pieces_than_are_walked_count_by_their_bytes() -> None:
    messages = [{"role": "user", "content": "hello"}] * (MAX_PIECES + 1)
    text = json.dumps({"messages": messages}).encode()
    assert request_cost(text).prompt_tokens == -(-len(text) // 4)


@pytest.mark.parametrize("text", [b"{", b'{"a": }', b"[" * 100_000, b'{"a": ' * 50_000, b"nope", b'{"model": "\xff"}'])
def test_what_is_no_json_is_an_error(text: bytes) -> None:
    with pytest.raises(BodyError):
        document(text)


def test_pythons_json_is_read_as_before() -> None:
    assert document(b'{"model": "\\ud800", "x": NaN}') == {"model": "\ud800"}
    assert document(b'{"model": "a", "model": "b", "other": 1}') == {"model": "b"}
    assert document(b"[1]") is None
    assert document(b'{"n": null}') == {"n": None}


def test_a_message_s_system_prompt_is_a_part_of_its_prompt_and_its_stream_states_its_usage() -> None:
    """As blocks or as text, so that what has one system prompt shares a prefix."""
    system, turn = "You are brief. " * 40, [{"role": "user", "content": "hello"}]
    blocks = [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]
    costs = [
        request_cost(
            json.dumps({"model": "m", "max_tokens": 9, "system": one, "messages": turn}).encode(), "/v1/messages"
        )
        for one in (system, blocks)
    ]
    assert costs[0].blocks[:2] == costs[1].blocks[:2] and len(costs[0].blocks) >= 2
    assert (costs[0].include_usage, costs[0].output_limit) == (True, 9)
    assert request_cost(b'{"messages": []}', "/v1/messages/count_tokens").answers == 0
    assert request_cost(b'{"prompt": "x"}', "/team/chat/v1/cache/pin").answers == 0
    assert not request_cost(b'{"messages": []}', "/v1/chat/completions").include_usage
