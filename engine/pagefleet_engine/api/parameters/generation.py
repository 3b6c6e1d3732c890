"""The body of a completion request: every parameter is either understood or refused by name. Pure."""

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
    elsewhere,
    flag,
    ids,
    integer,
    number,
    read,
    shown,
    strings,
    text,
)
from pagefleet_engine.api.parameters.prompts import MAX_PROMPTS, Prompt, prompts

MAX_REQUEST_ANSWERS = 64  # of one request: prompts times answers each
MOST_LOGPROBS = 20
MOST_STOPS, MOST_STOP_CHARACTERS, MOST_STOP_TOKENS = 16, 1024, 128
MOST_BIASES = 300
LONGEST_TIMEOUT = 86400.0
# OpenAI's and vLLM's ranges. vLLM allows any repetition_penalty above 0; one near 0 divides logits beyond float32.
MAX_TEMPERATURE, MAX_PENALTY, MAX_BIAS = 2, 2, 100
MIN_REPETITION, MAX_REPETITION = 0.01, 2
MAX_TOP_K = 2**31 - 1  # what the operations' 32 bits hold; -1 and 0 mean "all"
STREAM_OPTIONS = ("include_usage", "continuous_usage_stats")
# Parameters of OpenAI's and vLLM's that have no behaviour here, with the values that mean "not used".
NOT_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "suffix": (None, ""), "functions": (None, []), "function_call": (None, "none"),
    "modalities": (None, ["text"]), "audio": (None,), "prediction": (None,), "service_tier": (None, "auto", "default"),
    "store": (None, False), "metadata": (None, {}), "reasoning_effort": (None,), "web_search_options": (None,),
    "prompt_cache_key": (None,), "prompt_cache_retention": (None,), "safety_identifier": (None,), "verbosity": (None,),
    "use_beam_search": (None, False), "length_penalty": (None, 1, 1.0), "early_stopping": (None, False),
    "bad_words": (None, []), "allowed_token_ids": (None,), "truncate_prompt_tokens": (None,),
    "return_tokens_as_token_ids": (None, False), "return_token_ids": (None, False), "documents": (None, []),
    "spaces_between_special_tokens": (None, True), "mm_processor_kwargs": (None,), "logits_processors": (None,),
}  # fmt: skip


def _biases(value: Any, name: str) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, dict) or len(value) > MOST_BIASES:
        raise invalid(name, f"{name} must be an object of up to {MOST_BIASES} token ids with their bias")
    read_bias = number(-MAX_BIAS, MAX_BIAS).read
    for key in value:
        if not (key.isascii() and key.isdigit() and len(key) <= 9):
            raise invalid(name, f"{name} has the key {shown(key)}; keys must be token ids")
    return tuple((int(key), read_bias(bias, name)) for key, bias in value.items())


def _stream_options(value: Any, name: str) -> Mapping[str, bool]:
    if not isinstance(value, dict):
        raise invalid(name, f"{name} must be an object")
    for option, wanted in value.items():
        if option not in STREAM_OPTIONS:
            allowed = ", ".join(STREAM_OPTIONS)
            raise invalid(name, f"unknown stream option {shown(option)}; allowed: {allowed}")
        if not isinstance(wanted, bool):
            raise invalid(name, f"{name}.{option} must be a boolean")
    return value


_BIAS = {
    "type": ["object", "null"], "maxProperties": MOST_BIASES, "propertyNames": {"pattern": "^[0-9]{1,9}$"},
    "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
}  # fmt: skip
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
# What `formats` reads.
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
SHARED: Table = {
    "model": text(512, empty=False, required=True),
    "n": integer(1, MAX_ANSWERS, 1),
    "temperature": number(0, MAX_TEMPERATURE, 1.0),
    "top_p": number(0, 1, 1.0, above=True),
    "top_k": integer(-1, MAX_TOP_K, 0),
    "min_p": number(0, 1, 0.0),
    "seed": integer(-(2**63), 2**63 - 1),
    "stop": strings(MOST_STOPS, MOST_STOP_CHARACTERS),
    "stop_token_ids": ids(MOST_STOP_TOKENS),
    "include_stop_str_in_output": flag(),
    "skip_special_tokens": flag(True),
    "ignore_eos": flag(),
    "min_tokens": integer(0, 2**31, 0),
    "presence_penalty": number(-MAX_PENALTY, MAX_PENALTY, 0.0),
    "frequency_penalty": number(-MAX_PENALTY, MAX_PENALTY, 0.0),
    "repetition_penalty": number(MIN_REPETITION, MAX_REPETITION, 1.0),
    "logit_bias": Field(_biases, _BIAS, ()),
    "prompt_logprobs": integer(0, MOST_LOGPROBS),
    "stream": flag(),
    "stream_options": Field(_stream_options, _OPTIONS, {}),
    "priority": integer(-(2**31), 2**31 - 1, 0),
    "user": text(4096),
    "cache_salt": text(256, "", empty=False),
    "timeout": number(0, LONGEST_TIMEOUT, above=True),
    **FORMATS,
}
CHAT: Table = {
    **SHARED,
    **chats.TABLE,
    "max_tokens": integer(1, 2**31),
    "max_completion_tokens": integer(1, 2**31),
    "logprobs": flag(),
    "top_logprobs": integer(0, MOST_LOGPROBS),
    "add_special_tokens": flag(),
}
COMPLETION: Table = {
    **SHARED,
    "prompt": prompts(MAX_PROMPTS),
    "max_tokens": integer(0, 2**31),
    "logprobs": integer(0, MOST_LOGPROBS),
    "echo": flag(),
    "best_of": integer(1, MAX_ANSWERS),
    "add_special_tokens": flag(True),
}


@dataclass(frozen=True)
class Parameters:
    """A checked request: `prompts` of a completion, or the `conversation` of a chat.

    `max_tokens` None is the default, 0 (only with echo) no answer. `logprobs` None is none.
    """

    model: str
    prompts: tuple[Prompt, ...] = ()
    conversation: Conversation | None = None
    max_tokens: int | None = None
    max_tokens_name: str = "max_tokens"
    n: int = 1
    best_of: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    add_special_tokens: bool = True
    ignore_eos: bool = False
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    priority: int = 0
    cache_salt: str = ""
    timeout: float | None = None
    answer_format: Asked | None = None


def parse(body: Any, *, chat: bool) -> Parameters:
    """Raises ApiError (400) that names the parameter and what is allowed."""
    fields = read(body, CHAT if chat else COMPLETION, NOT_SUPPORTED)
    if fields["stream_options"] and not fields["stream"]:
        raise invalid("stream_options", "stream_options is only allowed when stream is true")
    if fields["prompt_logprobs"] is not None and fields["stream"]:
        raise invalid("prompt_logprobs", "prompt_logprobs cannot be combined with stream")
    name, most = _max_tokens(fields)
    if most is not None and fields["min_tokens"] > most:
        raise invalid("min_tokens", f"min_tokens is {fields['min_tokens']}, more than {name} {most}")
    same = ("model", "n", "temperature", "top_p", "min_p", "seed", "stop", "stop_token_ids", "skip_special_tokens",
            "add_special_tokens", "ignore_eos", "min_tokens", "presence_penalty", "frequency_penalty",
            "repetition_penalty", "logit_bias", "prompt_logprobs", "stream", "priority", "cache_salt", "timeout")  # fmt: skip
    return Parameters(
        **{field: fields[field] for field in same},
        **(_chat(fields, body) if chat else _completion(fields)),
        max_tokens=most,
        max_tokens_name=name,
        top_k=max(0, fields["top_k"]),
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
