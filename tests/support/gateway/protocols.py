"""Events of OpenAI's Responses and Anthropic's Messages, as engines write them; b"" for paths of other protocols."""

from __future__ import annotations

import json
from typing import Any

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
PATHS = (RESPONSES, MESSAGES)


def event(document: dict[str, Any]) -> bytes:
    return f"event: {document['type']}\ndata: {json.dumps(document)}\n\n".encode()


def opening(path: str) -> bytes:
    """The events before the first token."""
    match path:
        case "/v1/responses":
            item = {"id": "m", "type": "message", "role": "assistant", "content": []}
            part = {"type": "output_text", "text": "", "annotations": []}
            kinds: tuple[dict[str, Any], ...] = (
                {"type": "response.created", "response": {"output": [], "error": None}},
                {"type": "response.in_progress", "response": {"output": []}},
                {"type": "response.output_item.added", "output_index": 0, "item": item},
                {"type": "response.content_part.added", "output_index": 0, "part": part},
            )
        case "/v1/messages":
            kinds = (
                {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 7, "output_tokens": 0}}},
                {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
                {"type": "ping"},
            )
        case _:
            kinds = ()
    return b"".join(map(event, kinds))


def token(path: str, text: str) -> bytes:
    match path:
        case "/v1/responses":
            return event({"type": "response.output_text.delta", "output_index": 0, "delta": text})
        case "/v1/messages":
            return event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})
        case _:
            return b""


def failure(path: str) -> bytes:
    match path:
        case "/v1/responses":
            return event({"code": "server_error", "message": "no page left", "param": None, "type": "error"})
        case "/v1/messages":
            return event({"type": "error", "error": {"type": "api_error", "message": "no page left"}})
        case _:
            return b""
