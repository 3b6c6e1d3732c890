"""The prompt of an OpenAI request as bytes: about four for each token, in the order in which chat templates place them. Pure.

Total: whatever is no prompt is left out. Token ids become four bytes each. Images and recordings become the hash of their
data, and are counted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

TOKEN_BYTES = 4  # bytes of English text per token, about
MAX_PROMPTS = 4096  # of one request, as far as its cost goes
MAX_PIECES = 3000  # messages, texts and content parts that are walked
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


class PromptError(ValueError):
    """The prompt has more pieces than MAX_PIECES, or is nested too deeply to be walked."""


@dataclass(frozen=True)
class Prompt:
    text: bytes
    media: int = 0  # images and recordings
    count: int = 1  # prompts in one request, each with answers of its own


@dataclass(frozen=True)
class _Media:
    """A content part that is no text."""

    data: bytes


Piece = bytes | _Media


def read_prompt(document: Mapping[str, object]) -> Prompt:
    """Return the prompt of a completion, chat completion, response, embedding or similar request.

    A field that is bytes was too large to decode, and the bytes are its text. Raises PromptError.
    """
    try:
        pieces = list(islice(_pieces(document), MAX_PIECES + 1))
    except RecursionError as error:
        raise PromptError("the prompt is nested too deeply") from error
    if len(pieces) > MAX_PIECES:
        raise PromptError(f"the prompt has more than {MAX_PIECES} pieces")
    media = sum(isinstance(piece, _Media) for piece in pieces)
    text = b"\n".join(
        hashlib.blake2b(piece.data, digest_size=16).digest() if isinstance(piece, _Media) else piece for piece in pieces
    )
    return Prompt(text, media, prompts(document))


def prompts(document: Mapping[str, object]) -> int:
    """Return how many prompts the request has, each with answers of its own."""
    return max(_count(document.get(name)) for name in ("prompt", "input"))


def _pieces(document: Mapping[str, object]) -> Iterator[Piece]:
    tools, messages = document.get("tools"), document.get("messages")
    if isinstance(tools, bytes):
        yield tools
    elif "tools" in document:
        yield _encoded(json.dumps(tools))
    for name in ("system", "instructions", "prompt", "input", "query", "documents", "text_1", "text_2"):
        yield from _prompts(document.get(name))
    if isinstance(messages, bytes):
        yield messages
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, Mapping):
            yield from _message(message)


def _prompts(value: object, depth: int = 0) -> Iterator[Piece]:
    """Yield a text, token ids, a list of either, or the items of a response's input."""
    if isinstance(value, str):
        yield _encoded(value)
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, list) and value:
        if all(type(item) is int for item in value):
            yield b"".join((item & 0xFFFFFFFF).to_bytes(TOKEN_BYTES, "little") for item in value)
            return
        for item in value:
            if isinstance(item, Mapping) and ("role" in item or "content" in item):
                yield from _message(item)
            elif isinstance(item, Mapping):
                yield _part(item)
            elif depth < 2:
                yield from _prompts(item, depth + 1)


def _message(message: Mapping[str, object]) -> Iterator[Piece]:
    content = message.get("content")
    role = str(message.get("role"))[:64]
    if isinstance(content, str):
        yield _encoded(f"{role}: {content}")
    else:
        yield _encoded(f"{role}:")
        for part in content if isinstance(content, list) else ():
            yield _part(part)
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        yield _encoded(json.dumps(calls))


def _part(part: object) -> Piece:
    if isinstance(part, str):
        return _encoded(part)
    if isinstance(part, Mapping) and (part.get("type") in TEXT_PARTS or "text" in part):
        text = part.get("text", part.get("refusal"))
        return _encoded(text) if isinstance(text, str) else b""
    data = _encoded(json.dumps(part))
    # A function's result and the like are short. Only what says that it is media counts as media.
    kind = part.get("type") if isinstance(part, Mapping) else None
    media = isinstance(kind, str) and any(word in kind for word in ("image", "audio", "video", "file"))
    return _Media(data) if media else data


def _count(value: object) -> int:
    """Return how many prompts a `prompt` or `input` has: a list of texts or of lists of token ids has several."""
    if isinstance(value, bytes):
        return MAX_PROMPTS if value[1:].lstrip()[:1] in (b'"', b"[") else 1
    if not isinstance(value, list):
        return 1
    return min(max(1, sum(isinstance(item, (str, list)) for item in value)), MAX_PROMPTS)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
