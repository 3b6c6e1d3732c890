"""Reads the body of a completion request: every parameter is either understood or refused by name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_engine.api.errors import invalid

KINDS: Mapping[type, str] = {str: "a string", bool: "a boolean", dict: "an object"}
MOST_STOPS = 4
MOST_STOP_CHARACTERS = 1024
MOST_STOP_TOKENS = 128
MOST_TOKEN_ID = 2**31 - 1
# Parameters of OpenAI's and vLLM's that have no behaviour here yet, with the values that mean "not used".
NOT_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "n": (1, None), "best_of": (1, None), "logprobs": (None, False), "top_logprobs": (None, 0), "echo": (None, False),
    "suffix": (None, ""), "presence_penalty": (None, 0, 0.0), "frequency_penalty": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0), "logit_bias": (None, {}), "tools": (None, []), "tool_choice": (None, "none"),
    "functions": (None, []), "function_call": (None, "none"), "response_format": (None, {"type": "text"}),
    "parallel_tool_calls": (None, True), "modalities": (None, ["text"]), "audio": (None,), "prediction": (None,),
    "service_tier": (None, "auto"), "store": (None, False), "metadata": (None, {}), "reasoning_effort": (None,),
    "web_search_options": (None,), "prompt_cache_key": (None,), "safety_identifier": (None,), "verbosity": (None,),
}  # fmt: skip
SHARED = {"model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids",
          "ignore_eos", "stream", "stream_options", "user"}  # fmt: skip
CHAT = SHARED | {"messages", "max_completion_tokens"}
COMPLETION = SHARED | {"prompt"}


@dataclass(frozen=True)
class Parameters:
    """A checked request. `prompt` is text or token ids, `messages` a conversation; one of them is set."""

    model: str
    prompt: str | tuple[int, ...] | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    max_tokens: int | None = None
    max_tokens_name: str = "max_tokens"
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    stream: bool = False
    include_usage: bool = False


def parse(body: Any, *, chat: bool) -> Parameters:
    """Raises ApiError (400) that names the parameter and what is allowed."""
    if not isinstance(body, dict):
        raise invalid("body", "the request body must be a JSON object")
    known = CHAT if chat else COMPLETION
    for name, value in body.items():
        if name in known:
            continue
        if name not in NOT_SUPPORTED:
            raise invalid(name[:64], f"unknown parameter {_shown(name)}", "unknown_parameter")
        if not any(_same(value, unused) for unused in NOT_SUPPORTED[name]):
            raise invalid(name, f"{name} is not supported yet; remove it", "unsupported_parameter")
    most = [_integer(body, name, None, 1, 2**31) for name in ("max_completion_tokens", "max_tokens")]
    stream = bool(_typed(body, "stream", bool, False))
    _typed(body, "user", str, None)
    return Parameters(
        model=_typed(body, "model", str, None) or _missing("model"),
        prompt=None if chat else _prompt(body.get("prompt")),
        messages=_messages(body.get("messages")) if chat else None,
        max_tokens=most[1] if most[0] is None else most[0],
        max_tokens_name="max_tokens" if most[0] is None else "max_completion_tokens",
        temperature=_number(body, "temperature", 1.0, 0.0, 2.0),
        top_p=_number(body, "top_p", 1.0, 0.0, 1.0, above=True),
        top_k=max(0, _integer(body, "top_k", 0, -1, 2**31) or 0),
        min_p=_number(body, "min_p", 0.0, 0.0, 1.0),
        seed=_integer(body, "seed", None, -(2**63), 2**63 - 1),
        stop=_stops(body.get("stop")),
        stop_token_ids=_stop_token_ids(body.get("stop_token_ids")),
        ignore_eos=bool(_typed(body, "ignore_eos", bool, False)),
        stream=stream,
        include_usage=_include_usage(body, stream),
    )


def _include_usage(body: Mapping[str, Any], stream: bool) -> bool:
    options = _typed(body, "stream_options", dict, {})
    if options and not stream:
        raise invalid("stream_options", "stream_options is only allowed when stream is true")
    extra = sorted(set(options) - {"include_usage"})
    if extra:
        raise invalid("stream_options", f"unknown stream option {_shown(extra[0])}; allowed: include_usage")
    if not isinstance(options.get("include_usage", False), bool):
        raise invalid("stream_options", "stream_options.include_usage must be a boolean")
    return options.get("include_usage") is True


def _same(value: Any, unused: Any) -> bool:
    """Equality that tells 0 from false: `logprobs: 0` asks for something, `logprobs: false` does not."""
    return isinstance(value, bool) == isinstance(unused, bool) and bool(value == unused)


def _missing(name: str) -> Any:
    raise invalid(name, f"{name} is required", "missing_required_parameter")


def _typed(body: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise invalid(name, f"{name} must be {KINDS[kind]}, not {_shown(value)}")
    return value


def _integer(body: Mapping[str, Any], name: str, default: int | None, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise invalid(name, f"{name} must be an integer from {low} to {high}, not {_shown(value)}")
    return value


def _number(body: Mapping[str, Any], name: str, default: float, low: float, high: float, above: bool = False) -> float:
    value = body.get(name)
    if value is None:
        return default
    inside = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not inside or (above and value == low):
        raise invalid(
            name,
            f"{name} must be a number {'above' if above else 'from'} {low:g} to {high:g}, not {_shown(value)}",
        )
    return float(value)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value if value is not None else []
    good = isinstance(stops, list) and all(isinstance(stop, str) and stop for stop in stops)
    if not good or len(stops) > MOST_STOPS or any(len(stop) > MOST_STOP_CHARACTERS for stop in stops):
        raise invalid(
            "stop",
            f"stop must be a string or a list of up to {MOST_STOPS} strings of 1 to {MOST_STOP_CHARACTERS} characters",
        )
    return tuple(stops)


def _stop_token_ids(value: Any) -> tuple[int, ...]:
    ids = _token_ids(value if value is not None else [], "stop_token_ids")
    if len(ids) > MOST_STOP_TOKENS:
        raise invalid("stop_token_ids", f"stop_token_ids has {len(ids)} ids, allowed are {MOST_STOP_TOKENS}")
    return ids


def _token_ids(value: Any, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(
        isinstance(token, int) and not isinstance(token, bool) and 0 <= token <= MOST_TOKEN_ID for token in value
    ):
        raise invalid(name, f"{name} must be a list of token ids (integers from 0)")
    return tuple(value)


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(isinstance(i, int) for i in value):
        return _token_ids(value, "prompt")
    if isinstance(value, list) and len(value) > 1:
        raise invalid("prompt", "several prompts in one request are not supported yet; send one request each")
    raise invalid("prompt", "prompt must be a non-empty string or a non-empty list of token ids")


def _messages(value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise invalid("messages", "messages must be a non-empty list")
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(value))


def _message(message: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(message, dict):
        raise invalid(where, f"{where} must be an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in ("system", "developer", "user", "assistant"):
        raise invalid(f"{where}.role", f"{where}.role must be one of system, developer, user, assistant")
    # What OpenAI's own answers carry besides may be sent back as long as it is empty.
    extra = [
        name for name in message if name not in ("role", "content", "name") and message[name] not in (None, [], "")
    ]
    if extra:
        raise invalid(f"{where}.{extra[0][:64]}", f"{where}.{_shown(extra[0])} is not supported yet; remove it")
    content = message.get("content")
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise invalid(f"{where}.content", f"{where}.content may only have parts of type text")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise invalid(f"{where}.content", f"{where}.content must be a string or a list of text parts")
    return {"role": "system" if role == "developer" else role, "content": content}


def _kind(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _shown(value: Any) -> str:
    """A value in an error message: short, and never deep."""
    if isinstance(value, dict | list):
        return "an " + _kind(value)
    text = repr(value[:40] if isinstance(value, str) else value)
    return text if len(text) <= 40 else text[:37] + "..."
