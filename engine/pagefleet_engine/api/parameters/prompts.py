"""`prompt` and `input`: text or token ids, one or several. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_engine.api.base.errors import invalid
from pagefleet_engine.api.parameters.fields import TOKEN_ID, Field, token_ids

MAX_PROMPTS = 16
MAX_INPUTS = 256
Prompt = str | tuple[int, ...]


def prompts(most: int) -> Field:
    """A string, a list of token ids, or a list of up to `most` of either: a tuple of prompts."""

    def read(value: Any, name: str) -> tuple[Prompt, ...]:
        several = value if isinstance(value, list) and value and isinstance(value[0], str | list) else [value]
        if len(several) > most:
            raise invalid(name, f"{name} holds {len(several)} prompts, allowed are {most}")
        return tuple(_prompt(one, f"{name}[{at}]" if len(several) > 1 else name) for at, one in enumerate(several))

    return Field(read, _schema(most), required=True)


def _prompt(value: Any, name: str) -> Prompt:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value:
        return token_ids(value, name)
    raise invalid(name.partition("[")[0], f"{name} must be a non-empty string or a non-empty list of token ids")


def _schema(most: int) -> Mapping[str, Any]:
    one = {"type": "string", "minLength": 1}
    tokens = {"type": "array", "items": TOKEN_ID, "minItems": 1}
    several = {"type": "array", "minItems": 1, "maxItems": most}
    return {"anyOf": [one, tokens, {**several, "items": one}, {**several, "items": tokens}]}
