"""OpenAI's documents for the answers to one completion request: whole, or in chunks. Pure but for the id and time."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Piece:
    """One step of an answer: new text, and with the last one why it ended."""

    text: str
    finish: str | None = None


@dataclass
class Usage:
    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def document(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Shape:
    """OpenAI's documents for one answer."""

    def __init__(self, model: str, *, chat: bool) -> None:
        self.chat = chat
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._model, self._created = model, int(time.time())

    def whole(self, text: str, finish: str, usage: Usage) -> Mapping[str, Any]:
        if self.chat:
            choice: dict[str, Any] = {"message": {"role": "assistant", "content": text, "refusal": None}}
        else:
            choice = {"text": text}
        document = self._document([{**choice, "index": 0, "logprobs": None, "finish_reason": finish}], stream=False)
        return {**document, "usage": usage.document()}

    def opening(self) -> Mapping[str, Any]:
        return self._document([self._choice({"delta": {"role": "assistant", "content": ""}}, None)], stream=True)

    def part(self, piece: Piece) -> Mapping[str, Any]:
        body = {"delta": {"content": piece.text} if piece.text else {}} if self.chat else {"text": piece.text}
        return self._document([self._choice(body, piece.finish)], stream=True)

    def usage(self, usage: Usage) -> Mapping[str, Any]:
        return {**self._document([], stream=True), "usage": usage.document()}

    def _choice(self, body: Mapping[str, Any], finish: str | None) -> dict[str, Any]:
        return {**body, "index": 0, "logprobs": None, "finish_reason": finish}

    def _document(self, choices: list[dict[str, Any]], *, stream: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if stream else "chat.completion") if self.chat else "text_completion"
        return {
            "id": self.id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }


def event(document: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
