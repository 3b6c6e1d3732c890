"""The endpoints of OpenAI's, Anthropic's and vLLM's APIs that a load test can check: a small request to each, and what its answer holds.

Facts only: this module sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# The fields of a chat completion's delta that hold what the model has generated; a delta with any of them is a token.
SAID = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call", "audio")


@dataclass(frozen=True)
class Endpoint:
    """A path below the server's root. `body` is that of a POST without its `model`; None: a GET.

    A good answer is a JSON object in which `answer` is a list that is not empty, or a number above 0. `streams`: the same request with
    `stream` must be answered by server-sent events that end well.
    """

    path: str
    answer: str
    body: Mapping[str, Any] | None = field(default=None)
    streams: bool = False


_QUESTION = [{"role": "user", "content": "Say yes."}]
ENDPOINTS = {
    one.path: one
    for one in (
        Endpoint("/v1/models", "data"),
        Endpoint("/v1/completions", "choices", {"prompt": "Say yes.", "max_tokens": 2}, streams=True),
        Endpoint("/v1/chat/completions", "choices", {"messages": _QUESTION, "max_tokens": 2}, streams=True),
        Endpoint("/v1/responses", "output", {"input": "Say yes.", "max_output_tokens": 16}, streams=True),
        Endpoint("/v1/messages", "content", {"messages": _QUESTION, "max_tokens": 2}, streams=True),
        Endpoint("/v1/embeddings", "data", {"input": "Say yes."}),
        Endpoint("/tokenize", "tokens", {"prompt": "Say yes."}),
    )
}
