"""The body of an Anthropic message as that of a chat completion. Pure.

https://docs.claude.com/en/api/messages
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Any

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
    without_effect,
)
from pagefleet_engine.api.parameters.generation import CHAT, MAX_STOPS, SAMPLING
from pagefleet_engine.api.protocols.renaming import renamed

MORE = (
    *(name for name in SAMPLING if name not in ("temperature", "prompt_logprobs")),
    "priority",
    "cache_salt",
    "timeout",
    "chat_template_kwargs",
)
NOT_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "container": (None,), "mcp_servers": (None, []), "context_management": (None,), "prefill": (None,),
}  # fmt: skip
EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
_BLOCKS = {"anyOf": [{"type": "string"}, {"type": "array"}, {"type": "null"}]}
TABLE: Table = {
    **without_effect(
        {
            "cache_control": document("an object"),  # prefixes are cached anyway
            "metadata": document("an object"),
            "service_tier": one_of(("auto", "standard_only")),
            "inference_geo": elsewhere({"type": ["string", "null"]}),
            "speed": one_of(("standard", "fast")),
            "diagnostics": document("an object"),
        }
    ),
    **{name: CHAT[name] for name in MORE},
    "model": CHAT["model"],
    "messages": Field(
        lambda value, _: value, {"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES}, required=True
    ),
    "system": elsewhere(_BLOCKS),
    "tools": elsewhere({"type": ["array", "null"]}),
    **{name: document("an object") for name in ("tool_choice", "thinking", "output_config", "output_format")},
    "max_tokens": integer(1, 2**31),
    "temperature": CHAT["temperature"],
    "stop_sequences": CHAT["stop"],
    "stream": flag(),
}
RENAMED = {
    "stop": "stop_sequences",
    r"response_format\.json_schema": "output_config.format",
    "response_format": "output_config.format",
    r"tools\[(\d+)\]\.function\.parameters": r"tools[\1].input_schema",
    r"tools\[(\d+)\]\.function": r"tools[\1]",
    "reasoning_effort": "output_config.effort",
}


def parameters(body: Any, defaults: Mapping[str, Any] = NO_DEFAULTS) -> Parameters:
    """Raises ApiError (400). `defaults`: those of the checkpoint."""
    fields = read(body, TABLE, NOT_SUPPORTED)
    if fields["max_tokens"] is None:
        raise invalid("max_tokens", "max_tokens is required", "missing_required_parameter")
    if len(fields["stop_sequences"]) > MAX_STOPS:
        raise invalid("stop_sequences", f"stop_sequences may have {MAX_STOPS} texts")
    chat: dict[str, Any] = {name: body[name] for name in (*MORE, "model", "temperature", "stream") if name in body}
    chat |= {"max_tokens": fields["max_tokens"], "stop": list(fields["stop_sequences"])}
    return _parsed(chat, fields, defaults)


def counted(body: Any) -> Parameters:
    """A body of count_tokens: the prompt alone. Raises ApiError (400)."""
    fields = read(body, TABLE, NOT_SUPPORTED)
    return _parsed({"model": fields["model"], "chat_template_kwargs": fields["chat_template_kwargs"]}, fields)


def _parsed(chat: dict[str, Any], fields: Mapping[str, Any], defaults: Mapping[str, Any] = NO_DEFAULTS) -> Parameters:
    messages = _messages(fields["messages"])
    system = _text(fields["system"], "system") if fields["system"] else ""
    chat["messages"] = [{"role": "system", "content": system}, *messages] if system else messages
    if messages[-1]["role"] == "assistant":  # the answer goes on with it
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    config = fields["output_config"]
    form = config.get("format") or fields["output_format"]
    if form:
        if not isinstance(form, dict) or form.get("type") != "json_schema":
            raise invalid("output_config.format", "output_config.format must have the type json_schema and a schema")
        chat["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": form.get("schema")},
        }
    effort = config.get("effort")
    if effort is not None and (not isinstance(effort, str) or effort not in EFFORTS):
        raise invalid("output_config.effort", f"output_config.effort must be one of {', '.join(EFFORTS)}")
    off = fields["thinking"].get("type") == "disabled"
    chat["reasoning_effort"] = "none" if off else EFFORTS.get(effort) if effort else None
    _tools(chat, fields)
    with renamed(RENAMED):
        return parse(chat, chat=True, defaults=defaults)


def _tools(chat: dict[str, Any], fields: Mapping[str, Any]) -> None:
    tools, choice = fields["tools"], fields["tool_choice"]
    if tools is None or tools == []:
        return
    if not isinstance(tools, list):
        raise invalid("tools", "tools must be a list")
    made = []
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") not in (None, "custom"):
            kind = shown(tool.get("type") if isinstance(tool, dict) else tool)
            raise invalid(f"{where}.type", f"{where}.type {kind} is not supported here: only custom tools are")
        function = {"name": tool.get("name"), "parameters": tool.get("input_schema"), "strict": tool.get("strict")}
        made.append({"type": "function", "function": {**function, "description": tool.get("description")}})
    chat["tools"] = made
    if not choice:
        return
    kinds = {"auto": "auto", "any": "required", "none": "none",
             "tool": {"type": "function", "function": {"name": choice.get("name")}}}  # fmt: skip
    if not isinstance(choice.get("type"), str) or choice["type"] not in kinds:
        raise invalid("tool_choice.type", f"tool_choice.type must be one of {', '.join(kinds)}")
    chat["tool_choice"] = kinds[choice["type"]]
    chat["parallel_tool_calls"] = choice.get("disable_parallel_tool_use") is not True


def _messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_MESSAGES:
        raise invalid("messages", f"messages must be a list of 1 to {MAX_MESSAGES} messages")
    made: list[dict[str, Any]] = []
    asked: set[str] = set()  # ids of the calls so far
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant", "system"):
            raise invalid(f"{where}.role", f"{where}.role must be user or assistant")
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise invalid(f"{where}.content", f"{where}.content must be a string or a list of blocks")
        if role == "assistant":
            made += _assistant(blocks, where)
            asked |= {call["id"] for call in made[-1].get("tool_calls", ())}
            continue
        _check_results(blocks, where, asked)
        made += _user(blocks, where, role)
    return made


def _check_results(blocks: list[Any], where: str, asked: Set[str]) -> None:
    """Raises ApiError (400) for a tool's result that answers no call."""
    for at, block in enumerate(blocks):
        name = block.get("tool_use_id")
        if block.get("type") == "tool_result" and not (isinstance(name, str) and name in asked):
            where = f"{where}.content[{at}].tool_use_id"
            raise invalid(where, f"{where} must be the id of a tool_use block of an assistant message before it")


def _user(blocks: list[Any], where: str, role: str) -> list[dict[str, Any]]:
    """Results of tools are messages of their own, before the text."""
    made: list[dict[str, Any]] = []
    texts: list[str] = []
    for at, block in enumerate(blocks):
        if block.get("type") == "tool_result" and role == "user":
            content = _text(block.get("content") or "", f"{where}.content[{at}].content")
            made.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content})
        else:
            texts.append(_text([block], f"{where}.content[{at}]"))
    return [*made, {"role": role, "content": "\n".join(texts)}] if texts or not made else made


def _assistant(blocks: list[Any], where: str) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for at, block in enumerate(blocks):
        match block.get("type"):
            case "thinking":
                message["reasoning_content"] = message.get("reasoning_content", "") + str(block.get("thinking", ""))
            case "redacted_thinking":
                pass
            case "tool_use":
                arguments = block.get("input")
                if not isinstance(arguments, dict):
                    raise invalid(f"{where}.content[{at}].input", f"{where}.content[{at}].input must be an object")
                if not isinstance(block.get("id"), str) or not block["id"]:
                    raise invalid(f"{where}.content[{at}].id", f"{where}.content[{at}].id must be a non-empty string")
                function = {"name": block.get("name"), "arguments": json.dumps(arguments)}
                calls = message.setdefault("tool_calls", [])
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            case _:
                message["content"] += _text([block], f"{where}.content[{at}]")
    return [message]


def _text(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid(where, f"{where} must be a string or a list of text blocks")
    for block in value:
        if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            kind = shown(block.get("type") if isinstance(block, dict) else block)
            raise invalid(where, f"{where} may only have blocks of text here, not {kind}")
    return "\n".join(block["text"] for block in value)
