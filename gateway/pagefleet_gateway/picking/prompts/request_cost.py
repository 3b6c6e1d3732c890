"""The cost of a request for a pod, from its body: about how many tokens, and the hashes of its text. Pure; no tokenizer.

Total: a body that is not an OpenAI request costs its bytes' worth of tokens and shares no prefix.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_gateway.bodies.fields import BodyError, document
from pagefleet_gateway.bodies.prompt_text import TOKEN_BYTES, Prompt, PromptError, prompts, read_prompt
from pagefleet_gateway.cluster.service import Service

BLOCK_BYTES = 256  # text per block: 64 tokens, four of the engine's KV pages
BLOCK_TOKENS = BLOCK_BYTES // TOKEN_BYTES
MAX_BLOCKS = 256  # of this size: 16k tokens
# What follows is in larger blocks, so that a prompt of 128k tokens has some 370 hashes and not 2,000.
LONG_BLOCK_BYTES = 4096
LONG_BLOCK_TOKENS = LONG_BLOCK_BYTES // TOKEN_BYTES
MAX_LONG_BLOCKS = 512  # 512k tokens
LONG_MARK = b"\0\1"  # how the hash of a larger block ends
DEFAULT_OUTPUT_TOKENS = 256  # when the request names no limit
MAX_OUTPUT_TOKENS = 2048  # clients set high limits and rarely reach them: above this a limit predicts nothing
DEFAULT_OUTPUT_LIMIT = 4096  # charged when neither the request nor its service names a limit
MEDIA_TOKENS = 1024  # about an image's or a recording's: its bytes say nothing about its tokens
MAX_ANSWERS = 1024  # of one request, as far as its cost goes
OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens")  # of one answer; of Responses max_output_tokens
_NO_OUTPUT = re.compile(
    r"/(?:embeddings|rerank|score|classify|pooling|tokenize|detokenize|count_tokens|input_tokens|cache/pin)$"
)
_RESPONSES, _CHAT, _COMPLETIONS = "/responses", "/chat/completions", "/completions"
_STATES_USAGE = (_RESPONSES, "/messages")  # their streams end with the usage, unasked
_MOST_DIGITS = 32  # of a number that is written as a text


@dataclass(frozen=True)
class RequestCost:
    """A request's size and prefix. `blocks[i]` stands for the text's beginning of `block_tokens(i + 1)` tokens."""

    model: str = ""
    prompt_tokens: int = 0
    output_tokens: int = DEFAULT_OUTPUT_TOKENS
    blocks: tuple[bytes, ...] = ()
    streams: bool = False  # `stream` is true
    include_usage: bool = False  # a stream's end states the usage, asked for or not
    output_limit: int | None = None  # tokens that one answer may have; None: the request names no limit
    answers: int = 1  # `n` or `best_of`, of each prompt

    @property
    def tokens(self) -> int:
        """Return the work that the request probably causes."""
        return self.prompt_tokens + self.output_tokens

    def most_output_tokens(self, service: Service) -> int:
        """Return the most tokens that all answers may have together, as far as the request and its service limit them."""
        bounds = [DEFAULT_OUTPUT_LIMIT if self.output_limit is None else self.output_limit]
        if service.output_limit:
            bounds.append(service.output_limit)
        if service.max_length:
            bounds.append(max(1, service.max_length - self.prompt_tokens))
        return min(bounds) * self.answers


def request_cost(body: bytes, path: str = "") -> RequestCost:
    """Read an OpenAI request: completions, chat completions, responses, embeddings and others with `input` or `messages`.

    A token id counts as one token, and an image as MEDIA_TOKENS.
    """
    if not body:
        return RequestCost(output_tokens=1, answers=0)
    try:
        fields = document(body)
    except BodyError:
        fields = None
    if fields is None:
        return RequestCost(prompt_tokens=-(-len(body) // TOKEN_BYTES))
    model = fields.get("model")
    model = model if isinstance(model, str) else ""
    try:
        prompt = read_prompt(fields)
    except PromptError:
        prompt = Prompt(body, count=prompts(fields))
    endpoint = path.partition("?")[0].partition("#")[0]  # what follows is the client's, and no engine reads it
    limit = _output_limit(fields, endpoint)
    answers = 0 if _NO_OUTPUT.search(endpoint) else _answers(fields) * prompt.count
    predicted = DEFAULT_OUTPUT_TOKENS if limit is None else min(limit, MAX_OUTPUT_TOKENS)
    return RequestCost(
        model=model,
        prompt_tokens=-(-len(prompt.text) // TOKEN_BYTES) + prompt.media * MEDIA_TOKENS,
        output_tokens=predicted if answers else 1,
        blocks=block_hashes(prompt.text, model),
        streams=fields.get("stream") is True,
        include_usage=_includes_usage(fields.get("stream_options")) or endpoint.endswith(_STATES_USAGE),
        output_limit=limit,
        answers=answers,
    )


def block_hashes(text: bytes, salt: str) -> tuple[bytes, ...]:
    """Return one hash per full block: each over its block and the hash before it, the first over the salt.

    So equal hashes mean equal text from the start and an equal salt (the model's or adapter's name). Source:
    vLLM's hash-based automatic prefix caching, with text in place of tokens.
    """
    parent = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    hashes = []
    start = 0
    for size, most, mark in ((BLOCK_BYTES, MAX_BLOCKS, b""), (LONG_BLOCK_BYTES, MAX_LONG_BLOCKS, LONG_MARK)):
        end = start + min((len(text) - start) // size, most) * size
        for at in range(start, end, size):
            parent = hashlib.blake2b(parent + text[at : at + size], digest_size=16 - len(mark)).digest() + mark
            hashes.append(parent)
        if end < start + size * most:
            break
        start = end
    return tuple(hashes)


def block_tokens(count: int) -> int:
    """Return the tokens in the first `count` blocks of a prompt."""
    if count <= MAX_BLOCKS:
        return count * BLOCK_TOKENS
    return MAX_BLOCKS * BLOCK_TOKENS + (count - MAX_BLOCKS) * LONG_BLOCK_TOKENS


def _includes_usage(options: object) -> bool:
    return isinstance(options, Mapping) and options.get("include_usage") is True


def _output_limit(fields: Mapping[str, object], endpoint: str) -> int | None:
    """Return the most tokens that an engine may take for the limit of an answer; None: it may take none for one.

    Where a request names two, some engines read one and some the other. Of a chat 0 is no limit to many engines.
    """
    names = ("max_output_tokens",) if endpoint.endswith(_RESPONSES) else OUTPUT_LIMITS
    none = 0 if endpoint.endswith(_COMPLETIONS) and not endpoint.endswith(_CHAT) else 1
    limits = [value for name in names if (value := _number(fields.get(name))) is not None and value >= none]
    return max(limits, default=None)


def _answers(fields: Mapping[str, object]) -> int:
    counts = [value for name in ("n", "best_of") if (value := _number(fields.get(name))) is not None]
    return min(max(1, *counts), MAX_ANSWERS) if counts else 1


def _number(value: object) -> int | None:
    """Return a whole number as engines read it: those that check with pydantic take a text of digits and 5.0 for one, too."""
    if isinstance(value, int):
        return value
    if isinstance(value, float) or (isinstance(value, str) and len(value) <= _MOST_DIGITS):
        try:
            return int(float(value))
        except (ValueError, OverflowError):
            return None
    return None
