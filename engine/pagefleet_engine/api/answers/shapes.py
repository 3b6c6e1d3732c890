"""OpenAI's documents for the answers to one request: whole, or in chunks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from pagefleet_contract.headers import OUTPUT_TOKENS_HEADER, PROMPT_TOKENS_HEADER

_encoder = msgspec.json.Encoder()


@dataclass
class Usage:
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    """Output tokens before the answer itself."""

    def document(self) -> dict[str, Any]:
        details = {"completion_tokens_details": {"reasoning_tokens": self.reasoning}} if self.reasoning else {}
        return {
            **details,
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Shape:
    """Documents of one answer to `/v1/completions` or, with `chat`, `/v1/chat/completions`."""

    def __init__(self, id: str, model: str, *, chat: bool) -> None:
        self.chat = chat
        self._head = {"id": id, "created": int(time.time()), "model": model}

    def whole(self, choices: Sequence[Mapping[str, Any]], usage: Usage) -> dict[str, Any]:
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, "usage": usage.document()}

    def chunk(self, choices: Sequence[Mapping[str, Any]], usage: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """`usage` is left out when None."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        document = {**self._head, "object": kind, "choices": choices}
        return document if usage is None else {**document, "usage": usage.get("usage")}

    @staticmethod
    def choice(
        index: int, body: Mapping[str, Any], logprobs: Mapping[str, Any] | None, finish: str | None
    ) -> dict[str, Any]:
        """`body` is the `text`, `message` or `delta`."""
        return {"index": index, **body, "logprobs": logprobs, "finish_reason": finish}


def answer(document: Mapping[str, Any], prompt: int | None = None, completion: int | None = None) -> web.Response:
    """Return the document as JSON; the encoder is quick enough for the largest.

    The headers have the numbers of tokens that are given: `prompt` were read, and `completion` written.
    """
    counts = {PROMPT_TOKENS_HEADER: prompt, OUTPUT_TOKENS_HEADER: completion}
    headers = {name: str(count) for name, count in counts.items() if count is not None}
    return web.Response(body=_encoder.encode(document), content_type="application/json", headers=headers)


def event(document: Mapping[str, Any], named: bool = False) -> bytes:
    """One server-sent event; `named` after its document's type."""
    if named:
        return b"event: " + str(document["type"]).encode() + b"\ndata: " + _encoder.encode(document) + b"\n\n"
    return b"data: " + _encoder.encode(document) + b"\n\n"
