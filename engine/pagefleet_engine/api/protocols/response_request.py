"""The body of a response as that of a chat completion. Pure.

https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pagefleet_engine.api.base.errors import invalid
from pagefleet_engine.api.parameters import NO_DEFAULTS, Parameters, parse
from pagefleet_engine.api.parameters.conversation import MAX_MESSAGES
from pagefleet_engine.api.parameters.fields import (
    Field,
    Table,
    document,
    elsewhere,
    flag,
    integer,
    one_of,
    read,
    shown,
    text,
    without_effect,
)
from pagefleet_engine.api.parameters.generation import CHAT, EFFORTS, SAMPLING, WITHOUT_EFFECT
from pagefleet_engine.api.protocols.renaming import renamed

MAX_ITEMS = MAX_MESSAGES
TEXT_PARTS = ("input_text", "output_text", "text", "refusal")
INCLUDED = {"reasoning.encrypted_content", "message.output_text.logprobs"}
# Fields of ours that OpenAI does not have, beside those of its own.
MORE = (
    *(name for name in SAMPLING if name != "prompt_logprobs"),
    "stop",
    "priority",
    "cache_salt",
    "timeout",
    "chat_template_kwargs",
    "skip_special_tokens",
)
NOT_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "background": (None, False), "conversation": (None,), "prompt": (None,), "max_tool_calls": (None,),
    "context_management": (None, []), "moderation": (None,), "image": (None,),
}  # fmt: skip
_STRINGS = {"type": ["array", "null"], "items": {"enum": sorted(INCLUDED)}}
_ANY = {"type": ["object", "null"]}
TABLE: Table = {
    **without_effect(
        {
            "stream_options": document("an object"),
            "prompt_cache_options": document("an object"),
            "truncation": one_of(("auto", "disabled")),  # a prompt that is too long is refused either way
        }
    ),
    **{name: CHAT[name] for name in MORE},
    **{name: field for name, field in WITHOUT_EFFECT.items() if name != "prediction"},
    "model": CHAT["model"],
    "input": Field(lambda value, _: value, {"anyOf": [{"type": "string"}, {"type": "array"}]}),
    "instructions": text(1 << 22),
    "previous_response_id": text(64, empty=False),
    "store": flag(True),
    "stream": flag(),
    "max_output_tokens": integer(1, 2**31),
    "temperature": CHAT["temperature"],
    "top_p": CHAT["top_p"],
    "top_logprobs": CHAT["top_logprobs"],
    "tools": elsewhere({"type": ["array", "null"]}),
    "tool_choice": elsewhere({"type": ["string", "object", "null"]}),
    "parallel_tool_calls": CHAT["parallel_tool_calls"],
    "reasoning": elsewhere(_ANY),
    "text": elsewhere(_ANY),
    "include": elsewhere(_STRINGS),
}
RENAMED = {
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    r"response_format\.json_schema": "text.format",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    r"tools\[(\d+)\]\.function": r"tools[\1]",
}


def parameters(
    body: Any, before: Sequence[Any], defaults: Mapping[str, Any] = NO_DEFAULTS
) -> tuple[Parameters, Mapping[str, Any], list[Any]]:
    """Return what to generate, the fields that were read, and the conversation's items. Raises ApiError (400).

    `before`: the items of the response that this one goes on with. `defaults`: those of the checkpoint.
    """
    fields = read(body, TABLE, NOT_SUPPORTED)
    items = [*before, *_items(fields["input"])]
    messages = chat_messages(items, len(before))
    if fields["instructions"]:
        messages = [{"role": "system", "content": fields["instructions"]}, *messages]
    include = fields["include"] or []
    if not isinstance(include, list) or not set(map(str, include)) <= INCLUDED:
        raise invalid("include", f"include may have {', '.join(sorted(INCLUDED))}")
    chat: dict[str, Any] = {
        name: body[name] for name in (*MORE, "model", "temperature", "top_p", "stream") if name in body
    }
    chat |= {
        "messages": messages,
        "max_completion_tokens": fields["max_output_tokens"],
        "tools": _tools(fields["tools"]),
        "tool_choice": _choice(fields["tool_choice"]) if fields["tools"] else None,
        "parallel_tool_calls": fields["parallel_tool_calls"],
        "response_format": _format(fields["text"]),
        "reasoning_effort": _effort(fields["reasoning"]),
    }
    if fields["top_logprobs"] is not None or "message.output_text.logprobs" in include:
        chat |= {"logprobs": True, "top_logprobs": fields["top_logprobs"] or 0}
    with renamed(RENAMED):
        return parse(chat, chat=True, defaults=defaults), fields, items


def echoed(fields: Mapping[str, Any], made: Parameters) -> dict[str, Any]:
    """The request's fields that the response's document repeats."""
    conversation = made.conversation
    tools = conversation.tools if conversation is not None else None
    return {
        "model": made.model, "instructions": fields["instructions"], "metadata": fields["metadata"] or {},
        "parallel_tool_calls": fields["parallel_tool_calls"] is not False,
        "previous_response_id": fields["previous_response_id"], "store": fields["store"],
        "temperature": made.temperature, "top_p": made.top_p, "max_output_tokens": fields["max_output_tokens"],
        "tools": fields["tools"] or [], "tool_choice": fields["tool_choice"] or ("auto" if tools is None else tools.choice),
        "text": fields["text"] or {"format": {"type": "text"}}, "truncation": fields["truncation"] or "disabled",
        "reasoning": fields["reasoning"] or {"effort": None, "summary": None}, "background": False,
        "top_logprobs": fields["top_logprobs"] or 0, "user": fields["user"], "service_tier": "default",
    }  # fmt: skip


def chat_messages(items: Sequence[Any], earlier: int = 0) -> list[dict[str, Any]]:
    """Items as the messages of a chat: reasoning and calls become parts of the assistant's message. Raises ApiError (400).

    The first ones, so many as `earlier`, are those of the response before and not of the client's input.
    """
    messages: list[dict[str, Any]] = []
    asked: set[str] = set()  # ids of the calls so far
    turn: dict[str, Any] | None = None  # the assistant's message that may grow
    for index, item in enumerate(items, -earlier):
        where = f"input[{index}]"
        if not isinstance(item, dict):
            raise invalid(where, f"{where} must be an object, not {shown(item)}")
        kind = item.get("type", "message")
        if kind == "message" and item.get("role") != "assistant":
            messages.append({"role": item.get("role"), "content": _content(item.get("content"), where)})
            turn = None
            continue
        if kind == "function_call_output":
            if not isinstance(item.get("call_id"), str) or item["call_id"] not in asked:
                name = f"{where}.call_id"
                raise invalid(name, f"{name} must be the call_id of a function_call before it")
            content = _content(item.get("output"), f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
            turn = None
            continue
        if kind not in ("message", "function_call", "reasoning"):
            raise invalid(f"{where}.type", f"{where}.type {shown(kind)} is not supported here")
        fresh = turn is None or kind == "reasoning" or (kind == "message" and bool(turn["content"]))
        if turn is None or fresh:
            turn = {"role": "assistant", "content": None}
            messages.append(turn)
        if kind == "message":
            turn["content"] = _content(item.get("content"), where)
        elif kind == "reasoning":
            turn["reasoning_content"] = _reasoning(item, where)
        else:
            if not isinstance(item.get("call_id"), str) or not item["call_id"]:
                raise invalid(f"{where}.call_id", f"{where}.call_id must be a non-empty string")
            asked.add(item["call_id"])
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            turn.setdefault("tool_calls", []).append(
                {"id": item.get("call_id"), "type": "function", "function": function}
            )
    for message in messages:
        if message["role"] == "assistant" and message["content"] is None and "tool_calls" not in message:
            message["content"] = ""  # reasoning alone, as of an answer that its limit cut
    return messages


def _items(given: Any) -> list[Any]:
    if isinstance(given, str) and given:
        return [{"type": "message", "role": "user", "content": given}]
    if given is None or not isinstance(given, list) or not 1 <= len(given) <= MAX_ITEMS:
        raise invalid("input", f"input must be a non-empty string or a list of 1 to {MAX_ITEMS} items")
    return given


def _content(value: Any, where: str) -> str:
    if isinstance(value, list):
        for part in value:
            if not isinstance(part, dict) or part.get("type") not in TEXT_PARTS:
                kind = shown(part.get("type") if isinstance(part, dict) else part)
                raise invalid(where, f"{where} may only have parts of text, not {kind}")
            if not isinstance(part.get("refusal" if part["type"] == "refusal" else "text"), str):
                raise invalid(where, f"{where} has a part without its text")
        return "".join(part.get("text", part.get("refusal")) for part in value)
    if not isinstance(value, str):
        raise invalid(where, f"{where} must have a string or a list of text parts as its content")
    return value


def _reasoning(item: Mapping[str, Any], where: str) -> str:
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list) or not all(
        isinstance(one, dict) and isinstance(one.get("text"), str) for one in parts
    ):
        raise invalid(where, f"{where} must have a list of text parts as its content")
    return "".join(one["text"] for one in parts)


def _tools(tools: Any) -> Any:
    """Functions in the form of chat completions; other tools are refused there by name."""
    if not isinstance(tools, list):
        return tools
    made = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            kind = shown(tool.get("type") if isinstance(tool, dict) else tool)
            raise invalid(
                f"tools[{index}].type", f"tools[{index}].type {kind} is not supported here: only functions are"
            )
        made.append({"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}})
    return made


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function" and set(choice) == {"type", "name"}:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _format(text_field: Any) -> Any:
    if text_field is None:
        return None
    if not isinstance(text_field, dict) or set(text_field) - {"format", "verbosity"}:
        raise invalid("text", "text must be an object with format and verbosity")
    form = text_field.get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {key: value for key, value in form.items() if key != "type"}}
    return form


def _effort(reasoning: Any) -> Any:
    if reasoning is None:
        return None
    if not isinstance(reasoning, dict) or set(reasoning) - {"effort", "summary", "generate_summary", "context"}:
        raise invalid("reasoning", f"reasoning must be an object with effort, one of {', '.join(EFFORTS)}, and summary")
    return reasoning.get("effort")


def size_of(document: Any) -> int:
    """Return its bytes as JSON; quickly, as the largest body takes some milliseconds."""
    return len(msgspec.json.encode(document))
