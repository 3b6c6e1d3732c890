"""The document, the events and the errors of an Anthropic message. Pure.

https://docs.claude.com/en/docs/build-with-claude/streaming
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pagefleet_engine.api.answers.shapes import Usage
from pagefleet_engine.api.base.errors import ApiError
from pagefleet_engine.api.parsing.deltas import Delta
from pagefleet_engine.api.protocols.writing import Json

KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def error_document(error: ApiError) -> Json:
    """https://docs.claude.com/en/api/errors, with our code."""
    kind = KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message, "code": error.code}}


class MessageWriter:
    def __init__(self, id: str, model: str) -> None:
        self._document: Json = {
            "id": id, "type": "message", "role": "assistant", "model": model, "content": [], "stop_reason": None,
            "stop_sequence": None, "usage": _usage(Usage()),
        }  # fmt: skip
        self._blocks: list[Json] = self._document["content"]
        self._open: Json | None = None  # the block that is being written
        self._input = ""  # of the call that is being written, as text

    @property
    def document(self) -> Json:
        return self._document

    def begin(self, usage: Usage) -> list[Json]:
        return [{"type": "message_start", "message": {**self._document, "content": [], "usage": _usage(usage, 0)}}]

    def take(self, delta: Delta, logprobs: Sequence[Mapping[str, Any]] = ()) -> list[Json]:
        if delta.index is not None:
            return self._call(delta)
        if delta.reasoning:
            return self._text("thinking", delta.reasoning)
        return self._text("text", delta.content) if delta.content else []

    def end(self, finish: str, stop: str | None, usage: Usage) -> list[Json]:
        events = [] if self._blocks else self._opened({"type": "text", "text": ""})
        events += self._close()
        ended = {"stop_reason": "stop_sequence" if stop is not None else REASONS.get(finish, "end_turn"),
                 "stop_sequence": stop}  # fmt: skip
        self._document |= {**ended, "usage": _usage(usage)}
        return [*events, {"type": "message_delta", "delta": ended, "usage": _usage(usage)}, {"type": "message_stop"}]

    def failure(self, error: ApiError) -> Json:
        return error_document(error)

    def _text(self, kind: str, text: str) -> list[Json]:
        events: list[Json] = []
        if self._open is None or self._open["type"] != kind:
            signature = {"signature": ""} if kind == "thinking" else {}  # blocks of ours are not signed
            events += [*self._close(), *self._opened({"type": kind, kind: "", **signature})]
        block = self._blocks[-1]
        block[kind] += text
        return [*events, self._delta({"type": f"{kind}_delta", kind: text})]

    def _call(self, delta: Delta) -> list[Json]:
        events: list[Json] = []
        if delta.name is not None:
            events += self._close()
            events += self._opened({"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}})
        self._input += delta.arguments
        if delta.arguments:
            events.append(self._delta({"type": "input_json_delta", "partial_json": delta.arguments}))
        return events

    def _opened(self, block: Json) -> list[Json]:
        self._blocks.append(block)
        self._open = block
        return [{"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(block)}]

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _close(self) -> list[Json]:
        """End the open block."""
        block = self._open
        if block is None:
            return []
        if block["type"] == "tool_use":
            block["input"], self._input = _object(self._input), ""
        self._open = None
        return [{"type": "content_block_stop", "index": len(self._blocks) - 1}]


def _object(text: str) -> Any:
    """A call that the token limit cut has no whole input: it is empty, and `stop_reason` says why."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _usage(usage: Usage, output: int | None = None) -> Json:
    return {
        "input_tokens": usage.prompt - usage.cached, "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0, "output_tokens": usage.completion if output is None else output,
    }  # fmt: skip
