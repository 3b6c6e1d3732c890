"""The bodies of embeddings, tokenize, detokenize and the adapters' endpoints. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_contract.engine_options import ADAPTER_NAME
from pagefleet_engine.api.base.errors import invalid
from pagefleet_engine.api.parameters import conversation as chats
from pagefleet_engine.api.parameters.conversation import Conversation
from pagefleet_engine.api.parameters.fields import (
    TOKEN_ID,
    Field,
    Table,
    document,
    flag,
    integer,
    number,
    one_of,
    read,
    text,
    token_ids,
    without_effect,
)
from pagefleet_engine.api.parameters.generation import MAX_TIMEOUT_SECONDS
from pagefleet_engine.api.parameters.prompts import MAX_INPUTS, Prompt, prompts

EMBEDDING_NOT_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "dimensions": (None,), "truncate_prompt_tokens": (None,),
}  # fmt: skip
USER = without_effect({"user": text(4096), "metadata": document("an object")})
EMBEDDING: Table = {
    "model": text(512, empty=False, required=True),
    "input": prompts(MAX_INPUTS),
    "encoding_format": one_of(("float", "base64"), "float"),
    **USER,
    "priority": integer(-(2**31), 2**31 - 1, 0),
    "cache_salt": text(256, "", empty=False),
    "timeout": number(0, MAX_TIMEOUT_SECONDS, above=True),
    "add_special_tokens": flag(True),
}
MAX_TEXTS, MAX_TEXT_CHARACTERS = 256, 1 << 20


def _texts(value: Any, name: str) -> tuple[str, ...]:
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, list) or not 1 <= len(several) <= MAX_TEXTS:
        raise invalid(name, f"{name} must be a text or a list of 1 to {MAX_TEXTS} texts")
    texts: tuple[Any, ...] = tuple(one.get("text") if isinstance(one, dict) else one for one in several)
    if not all(isinstance(one, str) and 1 <= len(one) <= MAX_TEXT_CHARACTERS for one in texts):
        raise invalid(name, f"{name} must hold texts of 1 to {MAX_TEXT_CHARACTERS} characters")
    return texts


_ONE = {"anyOf": [{"type": "string", "minLength": 1}, {"type": "object", "required": ["text"]}]}
TEXTS = Field(_texts, {"anyOf": [_ONE, {"type": "array", "items": _ONE, "minItems": 1, "maxItems": MAX_TEXTS}]}, None)
_PAIRS: Table = {name: EMBEDDING[name] for name in ("model", "user", "priority", "cache_salt", "timeout")}
RERANK: Table = {
    **_PAIRS,
    "query": text(MAX_TEXT_CHARACTERS, empty=False, required=True),
    "documents": Field(TEXTS.read, TEXTS.schema, required=True),
    "top_n": integer(0, MAX_TEXTS),
    "return_documents": flag(True),
}
SCORE: Table = {**_PAIRS, **dict.fromkeys(("text_1", "text_2", "queries", "documents"), TEXTS)}
SCORE_NOT_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "truncate_prompt_tokens": (None,), "activation": (None,), "use_activation": (None, True), "max_tokens_per_doc": (None, 0),
    "mm_processor_kwargs": (None,), "rank_fields": (None,), "max_chunks_per_doc": (None,),
}  # fmt: skip
TOKENIZE_PROMPT: Table = {
    "model": text(512, empty=False),
    "prompt": text(1 << 22, required=True),
    "add_special_tokens": flag(True),
    "return_token_strs": flag(),
}
TOKENIZE_CHAT: Table = {
    **chats.TABLE,
    "model": text(512, empty=False),
    "add_special_tokens": flag(),
    "return_token_strs": flag(),
}
DETOKENIZE: Table = {
    "model": text(512, empty=False),
    "tokens": Field(token_ids, {"type": "array", "items": TOKEN_ID}, required=True),
}


def _adapter_name(value: Any, name: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(ADAPTER_NAME, value):
        raise invalid(name, f"{name} must be 1 to 128 letters, digits, . _ / or -, beginning with a letter or digit")
    return value


_NAME = Field(_adapter_name, {"type": "string", "pattern": f"^{ADAPTER_NAME}$"}, required=True)
LOAD_ADAPTER: Table = {"lora_name": _NAME, "lora_path": text(4096, empty=False, required=True)}
UNLOAD_ADAPTER: Table = {"lora_name": _NAME}
ADAPTER_NOT_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "lora_int_id": (None,), "base_model_name": (None,), "load_inplace": (None, False),
}  # fmt: skip


@dataclass(frozen=True)
class Embedding:
    model: str
    inputs: tuple[Prompt, ...]
    base64: bool
    priority: int
    cache_salt: str
    timeout: float | None
    add_special_tokens: bool


@dataclass(frozen=True)
class Tokenize:
    """A `prompt` or a `conversation`; one of them is set."""

    model: str | None
    prompt: str | None
    conversation: Conversation | None
    add_special_tokens: bool
    return_token_strs: bool


def embedding(body: Any) -> Embedding:
    """Raises ApiError (400)."""
    fields = read(body, EMBEDDING, EMBEDDING_NOT_SUPPORTED)
    return Embedding(
        model=fields["model"],
        inputs=fields["input"],
        base64=fields["encoding_format"] == "base64",
        priority=fields["priority"],
        cache_salt=fields["cache_salt"],
        timeout=fields["timeout"],
        add_special_tokens=fields["add_special_tokens"],
    )


def tokenize(body: Any) -> Tokenize:
    """Raises ApiError (400)."""
    chat = isinstance(body, dict) and "messages" in body
    fields = read(body, TOKENIZE_CHAT if chat else TOKENIZE_PROMPT)
    return Tokenize(
        model=fields["model"],
        prompt=None if chat else fields["prompt"],
        conversation=chats.conversation(fields, body) if chat else None,
        add_special_tokens=fields["add_special_tokens"],
        return_token_strs=fields["return_token_strs"],
    )
