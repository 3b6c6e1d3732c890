"""The body of /v1/cache/pin: a prompt or a conversation, as of the completion that will have it, and for how long. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_engine.api.parameters import conversation as chats
from pagefleet_engine.api.parameters.fields import Table, integer, read
from pagefleet_engine.api.parameters.generation import CHAT, COMPLETION, NO_DEFAULTS, Parameters, parse
from pagefleet_engine.api.parameters.prompts import prompts

DEFAULT_PIN_SECONDS = 3600
_SHARED = ("model", "priority", "cache_salt", "timeout", "add_special_tokens")
_SECONDS: Table = {"ttl_seconds": integer(1, 2**31 - 1)}
PIN_PROMPT: Table = {**{name: COMPLETION[name] for name in _SHARED}, "prompt": prompts(1), **_SECONDS}
PIN_CHAT: Table = {**{name: CHAT[name] for name in (*_SHARED, "reasoning_effort")}, **chats.TABLE, **_SECONDS}


@dataclass(frozen=True)
class PinParameters:
    """`request`: the completion of one token that computes the prompt. `param`: the field that has it. `seconds` None: the default."""

    request: Parameters
    param: str
    seconds: int | None


def pin(body: Any, defaults: Mapping[str, Any] = NO_DEFAULTS) -> PinParameters:
    """Raises ApiError (400). A conversation ends with its last message, so that one that goes on has the same prefix."""
    chat = isinstance(body, dict) and "messages" in body
    fields = read(body, PIN_CHAT if chat else PIN_PROMPT)
    document = {name: value for name, value in body.items() if name not in _SECONDS} | {"max_tokens": 1}
    if chat and fields["add_generation_prompt"] is None:
        document["add_generation_prompt"] = False
    request = parse(document, chat=chat, defaults=defaults)
    return PinParameters(request, "messages" if chat else "prompt", fields["ttl_seconds"])
