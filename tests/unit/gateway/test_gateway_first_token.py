"""Protects which event of a streamed answer is its first token: content or a tool call, not a role, however it is cut."""

from __future__ import annotations

import json

import pytest

from pagefleet_gateway.fronts.first_token import MAX_LINE_BYTES, ErrorEvent, FirstToken

ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
CONTENT = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
TOOL = {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}}]}


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("body", "token"),
    [
        (event(ROLE), False),
        (b": a comment\n\nevent: x\n\n", False),
        (b"data: [DONE]\n\n", False),
        (event({"choices": [], "usage": {}}), False),
        (event({"choices": [{"text": ""}]}), False),
        (event({"error": {"message": "no page left"}}), False),
        (event({"type": "response.created", "response": {}}), False),
        (event({"error": None, "choices": []}), False),
        (event({"error": None} | CONTENT), True),
        (event(CONTENT), True),
        (event(TOOL), True),
        (event({"choices": [{"text": "a"}]}), True),
        (event({"choices": [{"delta": {"reasoning_content": "hm"}}]}), True),
        (event({"type": "response.output_text.delta", "delta": "a"}), True),
        (event({"type": "response.output_text.delta", "delta": ""}), False),
        (event({"type": "response.output_item.added", "item": {"type": "message", "content": []}}), False),
        (event({"type": "response.output_item.added", "item": {"type": "function_call", "name": "f"}}), True),
        (event({"type": "error", "code": "server_error", "message": "no"}), False),
        (event({"type": "message_start", "message": {"content": []}}), False),
        (event({"type": "ping"}), False),
        (event({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}), False),
        (event({"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f"}}), True),
        (event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": ""}}), False),
        (event({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}}), True),
        (event({"type": "content_block_stop", "index": 0}), False),
        (event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}), False),
        (event({"token": "somebody else's"}), True),
        (b"data: no json\n\n", True),
        (b"data: " + b"x" * (MAX_LINE_BYTES + 1), True),
        (event(ROLE).replace(b"\n", b"\r\n") + event(CONTENT).replace(b"\n", b"\r\n"), True),
    ],
)
def test_the_first_token(body: bytes, token: bool) -> None:
    assert FirstToken().feed(body) is token


def test_pieces_are_put_together() -> None:
    body, pieces = event(ROLE) + event(CONTENT) + event(CONTENT), FirstToken()
    fed = [pieces.feed(body[index : index + 1]) for index in range(len(body))]
    assert fed.index(True) == len(event(ROLE)) + len(event(CONTENT)) - 2  # at its line's end


@pytest.mark.parametrize("cut", [0, 7, 15, 16, 17, 18])
@pytest.mark.parametrize(("value", "error"), [(None, False), ({"message": "no"}, True), ("no", True)])
def test_an_error_that_is_null_is_none(cut: int, value: object, error: bool) -> None:
    body, pieces = event({"error": value} | CONTENT), ErrorEvent()
    assert any(pieces.feed(piece) for piece in (body[:cut], body[cut:])) is error
