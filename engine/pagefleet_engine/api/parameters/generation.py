"""The body of a completion request: every parameter is either understood or refused by name. Pure.

The sampling fields are those of core/sampling_fields.py. Validation is written here although msgspec's `Meta` could state the
bounds: messages name the parameter, its value and its range, and a value's type is looked at before it is converted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_contract.engine_options import MAX_ANSWERS
from pagefleet_engine.api.base.errors import invalid
from pagefleet_engine.api.constrained import formats
from pagefleet_engine.api.constrained.formats import Asked
from pagefleet_engine.api.parameters import conversation as chats
from pagefleet_engine.api.parameters.conversation import Conversation
from pagefleet_engine.api.parameters.fields import (
    Field,
    Table,
    document,
    elsewhere,
    flag,
    integer,
    number,
    one_of,
    read,
    sampling,
    shown,
    strings,
    text,
    without_effect,
)
from pagefleet_engine.api.parameters.prompts import MAX_PROMPTS, Prompt, prompts
from pagefleet_engine.core.limits import MAX_REQUEST_ANSWERS
from pagefleet_engine.core.sampling_fields import MAX_LOGPROBS, SamplingFields, entries

MAX_STOPS, MAX_STOP_CHARACTERS = 16, 1024
MAX_TIMEOUT_SECONDS = 86400.0
STREAM_OPTIONS = ("include_usage", "continuous_usage_stats", "include_obfuscation")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
# Parameters of OpenAI's and vLLM's that have no behaviour here, with the values that mean "not used".
NOT_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "suffix": (None, ""), "functions": (None, []), "function_call": (None, "none"),
    "modalities": (None, ["text"]), "audio": (None,), "web_search_options": (None,),
    "use_beam_search": (None, False), "length_penalty": (None, 1, 1.0), "early_stopping": (None, False),
    "bad_words": (None, []), "allowed_token_ids": (None,), "truncate_prompt_tokens": (None,),
    "return_tokens_as_token_ids": (None, False), "return_token_ids": (None, False), "documents": (None, []),
    "spaces_between_special_tokens": (None, True), "mm_processor_kwargs": (None,), "logits_processors": (None,),
}  # fmt: skip


def _stream_options(value: Any, name: str) -> Mapping[str, bool]:
    if not isinstance(value, dict):
        raise invalid(name, f"{name} must be an object")
    for option, enabled in value.items():
        if option not in STREAM_OPTIONS:
            allowed = ", ".join(STREAM_OPTIONS)
            raise invalid(name, f"unknown stream option {shown(option)}; allowed: {allowed}")
        if not isinstance(enabled, bool):
            raise invalid(name, f"{name}.{option} must be a boolean")
    return value


_OPTIONS = {
    "type": ["object", "null"], "additionalProperties": False,
    "properties": {option: {"type": "boolean"} for option in STREAM_OPTIONS},
}  # fmt: skip
_SCHEMA = {"type": "object", "required": ["name", "schema"], "additionalProperties": False, "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 64}, "description": {"type": ["string", "null"]},
    "schema": {"type": "object"}, "strict": {"type": ["boolean", "null"]}}}  # fmt: skip
_FORMAT = {"anyOf": [
    {"type": "object", "required": ["type"], "additionalProperties": False,
     "properties": {"type": {"enum": ["text", "json_object"]}}},
    {"type": "object", "required": ["type", "json_schema"], "additionalProperties": False,
     "properties": {"type": {"const": "json_schema"}, "json_schema": _SCHEMA}},
    {"type": "null"},
]}  # fmt: skip
_CHOICES = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1,
            "maxItems": formats.MAX_CHOICES}  # fmt: skip
_TEXT = {"type": "string", "minLength": 1}
# The fields that `formats` reads.
FORMATS: Table = {
    "response_format": elsewhere(_FORMAT),
    "guided_json": elsewhere({"type": ["object", "string", "null"]}),
    "guided_regex": elsewhere({"type": ["string", "null"], "minLength": 1}),
    "guided_choice": elsewhere({**_CHOICES, "type": ["array", "null"]}),
    "guided_grammar": elsewhere({"type": ["string", "null"], "minLength": 1}),
    "structured_outputs": elsewhere({
        "type": ["object", "null"], "maxProperties": 1, "additionalProperties": False,
        "properties": {"json": {"type": ["object", "string"]}, "regex": _TEXT, "choice": _CHOICES, "grammar": _TEXT,
                       "json_object": {"type": "boolean"}},
    }),
}  # fmt: skip
# Parameters of OpenAI's that cannot change an answer here: they are accepted.
WITHOUT_EFFECT: Table = without_effect(
    {
        "user": text(4096),
        "store": flag(),
        "metadata": document("an object"),
        "prompt_cache_key": text(4096),
        "prompt_cache_retention": text(64),
        "safety_identifier": text(4096),
        "service_tier": one_of(("auto", "default", "flex", "scale", "priority")),
        "verbosity": one_of(("low", "medium", "high")),
        "prediction": document("an object"),
    }
)
SAMPLING: Table = {name: sampling(entry) for name, entry in entries().items()}
# The fields whose defaults a checkpoint's generation_config.json may state: those that vLLM takes from it.
CHECKPOINT_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
NO_DEFAULTS: Mapping[str, Any] = {}
SHARED: Table = {
    "model": text(512, empty=False, required=True),
    "n": integer(1, MAX_ANSWERS, 1),
    **SAMPLING,
    "stop": strings(MAX_STOPS, MAX_STOP_CHARACTERS),
    "include_stop_str_in_output": flag(),
    "skip_special_tokens": flag(True),
    "stream": flag(),
    "stream_options": Field(_stream_options, _OPTIONS, {}),
    "priority": integer(-(2**31), 2**31 - 1, 0),
    "cache_salt": text(256, "", empty=False),
    "timeout": number(0, MAX_TIMEOUT_SECONDS, above=True),
    "reasoning_effort": one_of(EFFORTS),
    **FORMATS,
    **WITHOUT_EFFECT,
}
CHAT: Table = {
    **SHARED,
    **chats.TABLE,
    "max_tokens": integer(1, 2**31),
    "max_completion_tokens": integer(1, 2**31),
    "logprobs": flag(),
    "top_logprobs": integer(0, MAX_LOGPROBS),
    "add_special_tokens": flag(),
}
COMPLETION: Table = {
    **SHARED,
    **without_effect({"reasoning_effort": SHARED["reasoning_effort"]}),
    "prompt": prompts(MAX_PROMPTS),
    "max_tokens": integer(0, 2**31),
    "logprobs": integer(0, MAX_LOGPROBS),
    "echo": flag(),
    "best_of": integer(1, MAX_ANSWERS),
    "add_special_tokens": flag(True),
}


@dataclass(frozen=True, kw_only=True)
class Parameters(SamplingFields):
    """A checked request: `prompts` of a completion, or the `conversation` of a chat, and its sampling fields.

    `max_tokens` None is the default, 0 (only with echo) no answer. `logprobs` None is none.
    """

    model: str
    prompts: tuple[Prompt, ...] = ()
    conversation: Conversation | None = None
    max_tokens: int | None = None
    max_tokens_name: str = "max_tokens"
    n: int = 1
    best_of: int = 1
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    add_special_tokens: bool = True
    logprobs: int | None = None
    echo: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    priority: int = 0
    cache_salt: str = ""
    timeout: float | None = None
    answer_format: Asked | None = None


def sampling_defaults(generation_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the defaults that the file states, checked as a request's fields are. Raises ApiError that names the field."""
    stated = {name: generation_config.get(name) for name in CHECKPOINT_FIELDS}
    return {name: SAMPLING[name].read(value, name) for name, value in stated.items() if value is not None}


def parse(body: Any, *, chat: bool, defaults: Mapping[str, Any] = NO_DEFAULTS) -> Parameters:
    """Raises ApiError (400) that names the parameter and what is allowed. `defaults`: of `sampling_defaults`."""
    fields = read(body, CHAT if chat else COMPLETION, NOT_SUPPORTED)
    fields |= {name: value for name, value in defaults.items() if body.get(name) is None}
    if fields["stream_options"] and not fields["stream"]:
        raise invalid("stream_options", "stream_options is only allowed when stream is true")
    if fields["prompt_logprobs"] is not None and fields["stream"]:
        raise invalid("prompt_logprobs", "prompt_logprobs cannot be combined with stream")
    name, most = _max_tokens(fields)
    if most is not None and fields["min_tokens"] > most:
        raise invalid("min_tokens", f"min_tokens is {fields['min_tokens']}, more than {name} {most}")
    same = (*SAMPLING, "model", "n", "stop", "skip_special_tokens", "add_special_tokens", "stream", "priority",
            "cache_salt", "timeout")  # fmt: skip
    return Parameters(
        **{**{field: fields[field] for field in same}, "top_k": max(0, fields["top_k"])},
        **(_chat(fields, body) if chat else _completion(fields)),
        max_tokens=most,
        max_tokens_name=name,
        include_stop=fields["include_stop_str_in_output"],
        include_usage=fields["stream_options"].get("include_usage", False),
        continuous_usage=fields["stream_options"].get("continuous_usage_stats", False),
        answer_format=formats.read(body),
    )


def _chat(fields: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    if fields["top_logprobs"] and not fields["logprobs"]:
        raise invalid("top_logprobs", "top_logprobs needs logprobs: true")
    return {
        "conversation": chats.conversation(fields, body),
        "best_of": fields["n"],
        "logprobs": (fields["top_logprobs"] or 0) if fields["logprobs"] else None,
    }


def _completion(fields: Mapping[str, Any]) -> dict[str, Any]:
    n, best_of, echo = fields["n"], fields["best_of"] or fields["n"], fields["echo"]
    if best_of < n:
        raise invalid("best_of", f"best_of is {best_of}, less than n {n}")
    if best_of > n and fields["stream"]:
        raise invalid("best_of", "best_of above n cannot be combined with stream")
    if fields["max_tokens"] == 0 and not echo:
        raise invalid("max_tokens", "max_tokens must be at least 1; 0 is only allowed with echo")
    answers = len(fields["prompt"]) * best_of
    if answers > MAX_REQUEST_ANSWERS:
        name = "best_of" if fields["best_of"] else "n"
        raise invalid(name, f"{len(fields['prompt'])} prompts with {best_of} answers each are {answers}, "
                            f"allowed are {MAX_REQUEST_ANSWERS} in one request")  # fmt: skip
    return {"prompts": fields["prompt"], "best_of": best_of, "logprobs": fields["logprobs"], "echo": echo}


def _max_tokens(fields: Mapping[str, Any]) -> tuple[str, int | None]:
    """The newer name wins, and names itself in errors."""
    if fields.get("max_completion_tokens") is not None:
        return "max_completion_tokens", fields["max_completion_tokens"]
    return "max_tokens", fields["max_tokens"]
