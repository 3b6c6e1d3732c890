"""OpenAI's and vLLM's objects for log probabilities. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

from pagefleet_engine.api.answers.answer import Scored
from pagefleet_engine.core.requests import TokenLogprobs

MIN_LOGPROB = -9999.0  # JSON has no infinity; vLLM writes this number for it


class Spelling(Protocol):
    def token_text(self, token: int) -> str: ...

    def token_bytes(self, token: int) -> bytes: ...


class Vocabulary:
    """The text of tokens, cached: the tokenizer takes microseconds for each, which every answer would cost again."""

    def __init__(self, tokenizer: Spelling) -> None:
        self.text = lru_cache(maxsize=1 << 17)(tokenizer.token_text)
        self.bytes = lru_cache(maxsize=1 << 17)(tokenizer.token_bytes)


def chat(scored: Sequence[Scored], vocabulary: Vocabulary, top: int) -> dict[str, Any]:
    """https://platform.openai.com/docs/api-reference/chat/object, choices.logprobs."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = vocabulary.bytes(token)
        return {"token": vocabulary.text(token), "logprob": max(MIN_LOGPROB, logprob), "bytes": list(data)}

    content = [
        {
            **entry(one.logprobs.token, one.logprobs.logprob),
            "top_logprobs": [entry(token, logprob) for token, logprob in one.logprobs.top[:top]],
        }
        for one in scored
    ]
    return {"content": content, "refusal": None}


def completion(
    scored: Sequence[Scored], vocabulary: Vocabulary, top: int, *, first: bool = False
) -> dict[str, list[Any]]:
    """https://platform.openai.com/docs/api-reference/completions/object, choices.logprobs.

    `top_logprobs` holds the chosen token besides the `top` most likely. `first`: the first of `scored` is the prompt's
    first token, which has no probability.
    """
    tokens, logprobs, tops, offsets = [], [], [], []
    for at, one in enumerate(scored):
        text, blank = vocabulary.text(one.logprobs.token), first and at == 0
        likely = {vocabulary.text(token): max(MIN_LOGPROB, value) for token, value in one.logprobs.top[:top]}
        likely.setdefault(text, max(MIN_LOGPROB, one.logprobs.logprob))
        tokens.append(text)
        logprobs.append(None if blank else max(MIN_LOGPROB, one.logprobs.logprob))
        tops.append(None if blank else likely)
        offsets.append(one.offset)
    return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}


def prompt(entries: Iterable[TokenLogprobs], vocabulary: Vocabulary, top: int) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: one object per token of the prompt by token id; none for the first."""

    def entry(token: int, logprob: float, rank: int) -> dict[str, Any]:
        return {"logprob": max(MIN_LOGPROB, logprob), "rank": rank, "decoded_token": vocabulary.text(token)}

    documents: list[dict[str, Any] | None] = [None]
    for one in entries:
        likely = {str(token): entry(token, value, rank) for rank, (token, value) in enumerate(one.top[:top], start=1)}
        likely.setdefault(str(one.token), entry(one.token, one.logprob, one.rank))
        documents.append(likely)
    return documents
