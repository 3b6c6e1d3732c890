"""Finds the first token in a streamed answer: the first event with content or a tool call. Pure.

The pieces come as the network cut them. An event that only opens an answer (a role, an empty delta, a comment) is no token.
An error is none either. An event that is not OpenAI's counts as one: nobody knows better. Source: OpenAI API, streaming of completions, chat
completions and responses; Anthropic API, streaming of messages; WHATWG HTML, server-sent events.
"""

from __future__ import annotations

import re

import msgspec

from pagefleet_contract.endpoints import SAID

MAX_LINE_BYTES = 256 * 1024  # a longer line is no opening event
KINDS = ("response.", "message_", "content_block_", "ping", "error")  # events of Responses and Messages
# A line that begins like this is an error: within a text of an answer quotes and line ends are escaped. `"error": null`, which some
# engines write into each event, is none.
ERROR = re.compile(rb"""[\r\n](?:data: ?\{"error": ?[^n\s]|event: ?(?:error|response\.failed)[\r\n])""")
ERROR_BYTES = 32  # of the longest of them


class FirstToken:
    """Give it the body's pieces in order until `feed` returns True."""

    def __init__(self) -> None:
        self._rest = b""  # a line whose end has not come

    def feed(self, piece: bytes) -> bool:
        """Return whether the body so far has a token."""
        lines = (self._rest + piece).replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()
        return len(self._rest) > MAX_LINE_BYTES or any(_is_token(line) for line in lines)


class ErrorEvent:
    """Give it the body's pieces in order until `feed` returns True."""

    def __init__(self) -> None:
        self._end = b"\n"  # of the pieces so far: an event may be cut anywhere

    def feed(self, piece: bytes) -> bool:
        """Return whether the body so far has an event that is an error: the engine gave the answer up within a 200."""
        text = self._end + piece
        self._end = text[-ERROR_BYTES:]
        return ERROR.search(text) is not None


def _typed(kind: str, event: dict[str, object]) -> bool:
    """Whether an event of Responses or Messages is a token: it says something, or begins a call."""
    if kind.endswith(".delta") or kind == "content_block_delta":
        delta = event.get("delta", True)
        return any(value for name, value in delta.items() if name != "type") if isinstance(delta, dict) else bool(delta)
    begun = event.get("item", event.get("content_block"))
    if kind.endswith(".added") or kind == "content_block_start":
        return isinstance(begun, dict) and str(begun.get("type")).endswith(("_call", "tool_use"))
    return False


def _is_token(line: bytes) -> bool:
    if not line.startswith(b"data:"):
        return False
    data = line[5:].strip()
    if not data or data == b"[DONE]":
        return False
    if len(data) > MAX_LINE_BYTES:
        return True
    try:
        event = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    if not isinstance(event, dict):
        return True
    if event.get("error"):
        return False
    choices = event.get("choices")
    if isinstance(choices, list):
        return any(isinstance(choice, dict) and _has_content(choice) for choice in choices)
    kind = event.get("type")
    if isinstance(kind, str) and kind.startswith(KINDS):
        return _typed(kind, event)
    return True


def _has_content(choice: dict[str, object]) -> bool:
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(delta.get(name) for name in SAID)
