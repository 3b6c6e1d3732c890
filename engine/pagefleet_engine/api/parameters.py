"""Reads the body of a completion request: every parameter is either understood or refused by name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_engine.api.errors import invalid

MOST_STOPS = 4
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
            raise invalid(name, f"unknown parameter {name!r}", "unknown_parameter")
        if value not in NOT_SUPPORTED[name]:
            raise invalid(name, f"{name} is not supported yet; remove it", "unsupported_parameter")
    limit = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    options = _typed(body, "stream_options", dict, {})
    extra_options = set(options) - {"include_usage"}
    if extra_options:
        raise invalid("stream_options", f"unknown stream option {sorted(extra_options)[0]!r}; allowed: include_usage")
    return Parameters(
        model=_typed(body, "model", str, None) or _missing("model"),
        prompt=None if chat else _prompt(body.get("prompt")),
        messages=_messages(body.get("messages")) if chat else None,
        max_tokens=_integer(body, limit, None, 1, 2**31),
        temperature=_number(body, "temperature", 1.0, 0.0, 2.0),
        top_p=_number(body, "top_p", 1.0, 0.0, 1.0, above=True),
        top_k=max(0, _integer(body, "top_k", 0, -1, 2**31) or 0),
        min_p=_number(body, "min_p", 0.0, 0.0, 1.0),
        seed=_integer(body, "seed", None, -(2**63), 2**63 - 1),
        stop=_stops(body.get("stop")),
        stop_token_ids=_token_ids(body.get("stop_token_ids"), "stop_token_ids"),
        ignore_eos=bool(_typed(body, "ignore_eos", bool, False)),
        stream=bool(_typed(body, "stream", bool, False)),
        include_usage=options.get("include_usage") is True,
    )


def _missing(name: str) -> Any:
    raise invalid(name, f"{name} is required", "missing_required_parameter")


def _typed(body: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise invalid(name, f"{name} must be a {kind.__name__}, not {_kind(value)}")
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
        raise invalid(name, f"{name} must be a number {'above' if above else 'from'} {low:g} to {high:g}, not {_shown(value)}")
    return float(value)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or len(stops) > MOST_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise invalid("stop", f"stop must be a string or a list of up to {MOST_STOPS} non-empty strings")
    return tuple(stops)


def _token_ids(value: Any, name: str) -> tuple[int, ...]:
    ids = value or []
    if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise invalid(name, f"{name} must be a list of token ids (integers from 0)")
    return tuple(ids)


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
    if message.get("role") not in ("system", "developer", "user", "assistant"):
        raise invalid(f"{where}.role", f"{where}.role must be one of system, developer, user, assistant")
    content = message.get("content")
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise invalid(f"{where}.content", f"{where}.content may only have parts of type text")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise invalid(f"{where}.content", f"{where}.content must be a string or a list of text parts")
    role = "system" if message["role"] == "developer" else message["role"]
    return {"role": role, "content": content}


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


