"""The cost of a request for a pod, from its body: about how many tokens, and the hashes of its text. Pure; no tokenizer.

Total: a body that is not an OpenAI request costs its bytes' worth of tokens and shares no prefix.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

TOKEN_BYTES = 4  # bytes of English text per token, about
BLOCK_BYTES = 256  # text per block: 64 tokens, four of the engine's KV pages
BLOCK_TOKENS = BLOCK_BYTES // TOKEN_BYTES
MAX_BLOCKS = 256  # beyond 16k tokens a longer match changes no choice
DEFAULT_OUTPUT_TOKENS = 256  # when the request names no limit
MAX_OUTPUT_TOKENS = 2048  # clients set high limits and rarely reach them: above this a limit predicts nothing


@dataclass(frozen=True)
class RequestCost:
    """A request's size and prefix. `blocks[i]` stands for the first (i + 1) * BLOCK_BYTES bytes of its text."""

    model: str = ""
    prompt_tokens: int = 0
    output_tokens: int = DEFAULT_OUTPUT_TOKENS
    blocks: tuple[bytes, ...] = ()
    streams: bool = False  # `stream` is true
    include_usage: bool = False  # `stream_options.include_usage` is true

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


def request_cost(body: bytes) -> RequestCost:
    """Read an OpenAI completion or chat completion request; images and token ids count by their bytes."""
    if not body:
        return RequestCost(output_tokens=1)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        return RequestCost(prompt_tokens=-(-len(body) // TOKEN_BYTES))
    model = document.get("model")
    model = model if isinstance(model, str) else ""
    text = "\n".join(_prompt_texts(document)).encode("utf-8", "surrogatepass")
    return RequestCost(
        model=model,
        prompt_tokens=-(-len(text) // TOKEN_BYTES),
        output_tokens=_output_tokens(document),
        blocks=block_hashes(text, model),
        streams=document.get("stream") is True,
        include_usage=_includes_usage(document.get("stream_options")),
    )


def block_hashes(text: bytes, salt: str) -> tuple[bytes, ...]:
    """Return one hash per full block: each over its block and the hash before it, the first over the salt.

    So equal hashes mean equal text from the start and an equal salt (the model's or adapter's name). Source:
    vLLM's hash-based automatic prefix caching, with text in place of tokens.
    """
    parent = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    hashes = []
    for start in range(0, min(len(text) // BLOCK_BYTES, MAX_BLOCKS) * BLOCK_BYTES, BLOCK_BYTES):
        parent = hashlib.blake2b(parent + text[start : start + BLOCK_BYTES], digest_size=16).digest()
        hashes.append(parent)
    return tuple(hashes)


def _includes_usage(options: object) -> bool:
    return isinstance(options, Mapping) and options.get("include_usage") is True


def _output_tokens(document: Mapping[str, object]) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        value = document.get(name)
        if isinstance(value, int) and value >= 0:
            return min(value, MAX_OUTPUT_TOKENS)
    return DEFAULT_OUTPUT_TOKENS


def _prompt_texts(document: Mapping[str, object]) -> Iterator[str]:
    """Yield the prompt's texts in the order in which chat templates place them: tools, then messages."""
    if "tools" in document:
        yield json.dumps(document["tools"])
    prompt = document.get("prompt")
    if isinstance(prompt, str):
        yield prompt
    elif prompt is not None:
        yield json.dumps(prompt)
    messages = document.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, Mapping):
            content = message.get("content")
            yield f"{message.get('role')}: {content if isinstance(content, str) else json.dumps(content)}"
