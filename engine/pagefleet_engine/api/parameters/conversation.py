"""`messages`, and the other variables of a chat template. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pagefleet_engine.api.base.errors import invalid
from pagefleet_engine.api.constrained import tools
from pagefleet_engine.api.constrained.tools import Tools
from pagefleet_engine.api.parameters.fields import Field, Table, elsewhere, flag, shown, text

REASONING = ("reasoning", "reasoning_content")  # names of one field: vLLM's today, and the one it and others had
KNOWN = {"assistant": {"tool_calls", *REASONING}, "tool": {"tool_call_id"}}
ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_MESSAGES = 4096
MAX_TEMPLATE = 1 << 16
MAX_KWARGS, MAX_KWARGS_BYTES, MAX_KWARGS_DEPTH = 32, 16 << 10, 8
# Variables of a template that only the server sets, so that the rendered messages are those that were checked.
RESERVED = frozenset({
    "messages", "tools", "conversation", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize",
    "return_dict", "return_tensors", "bos_token", "eos_token", "unk_token", "pad_token", "raise_exception",
    "strftime_now", "namespace", "dict", "range",
})  # fmt: skip
PART = {
    "type": "object", "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}  # fmt: skip
CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": PART, "minItems": 1}]}
CALL = {
    "type": "object", "required": ["id", "type", "function"],
    "properties": {
        "id": {"type": "string", "minLength": 1}, "type": {"const": "function"},
        "function": {"type": "object", "required": ["name", "arguments"], "properties": {
            "name": {"type": "string", "pattern": f"^{tools.NAME.pattern}$"},
            "arguments": {"type": "string", "contentMediaType": "application/json"}}},
    },
}  # fmt: skip

TOOL = {
    "type": "object", "required": ["type", "function"], "additionalProperties": False,
    "properties": {"type": {"const": "function"}, "function": {
        "type": "object", "required": ["name"], "additionalProperties": False,
        "properties": {"name": {"type": "string", "pattern": f"^{tools.NAME.pattern}$"},
                       "description": {"type": ["string", "null"]}, "parameters": {"type": ["object", "null"]},
                       "strict": {"type": ["boolean", "null"]}}}},
}  # fmt: skip


def _schema(roles: list[str], **more: Any) -> dict[str, Any]:
    properties = {"role": {"enum": roles}, "content": CONTENT, "name": {"type": "string"}, **more}
    required = ["role", *(name for name in ("content", "tool_call_id", "tool_calls") if name in properties)]
    return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}


_REASONING = {name: {"type": ["string", "null"]} for name in REASONING}
MESSAGE = {
    "anyOf": [
        _schema(["system", "developer", "user"]),
        _schema(["assistant"], **_REASONING),
        _schema(["assistant"], tool_calls={"type": "array", "items": CALL, "minItems": 1}, **_REASONING),
        _schema(["tool"], tool_call_id={"type": "string", "minLength": 1}),
    ]
}


@dataclass(frozen=True)
class Conversation:
    """The variables of a chat template. `messages` have the form that templates read: text contents, calls with objects."""

    messages: tuple[Mapping[str, Any], ...]
    tools: Tools | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


def conversation(fields: Mapping[str, Any], body: Mapping[str, Any]) -> Conversation:
    """Make a conversation of the read fields of TABLE, and of `body` for its tools. Raises ApiError (400)."""
    messages, continued = fields["messages"], fields["continue_final_message"]
    effort = _effort(fields.get("reasoning_effort"))
    generation = fields["add_generation_prompt"]
    if continued and generation:
        allowed = "send add_generation_prompt: false with it"
        raise invalid("continue_final_message", f"continue_final_message excludes add_generation_prompt; {allowed}")
    if continued and (messages[-1]["role"] != "assistant" or not messages[-1]["content"].strip()):
        raise invalid("continue_final_message", "continue_final_message needs a last message of role assistant")
    return Conversation(
        messages=messages,
        tools=tools.read(body),
        add_generation_prompt=not continued if generation is None else generation,
        continue_final_message=continued,
        template=fields["chat_template"],
        template_kwargs={**effort, **fields["chat_template_kwargs"]},
    )


def _effort(effort: str | None) -> dict[str, Any]:
    """`reasoning_effort` as the variables that templates have for it."""
    if effort is None:
        return {}
    off = {"enable_thinking": False, "thinking": False} if effort == "none" else {}
    return {"reasoning_effort": effort, **off}


def _messages(value: Any, name: str) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise invalid(name, f"{name} must be a list of 1 to {MAX_MESSAGES} messages")
    return tuple(tools.answered([_message(message, f"{name}[{index}]") for index, message in enumerate(value)]))


def _message(message: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(message, dict):
        raise invalid(where, f"{where} must be an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{where}.role", f"{where}.role must be one of {', '.join(ROLES)}")
    known = {"role", "content", "name"} | KNOWN.get(role, set())
    # Clients send OpenAI's own answers back, which have these fields; they must be empty.
    extra = [name for name in message if name not in known and message[name] not in (None, [], "")]
    if extra:
        raise invalid(f"{where}.{extra[0][:64]}", f"{where}.{extra[0][:64]} is not supported here; remove it")
    made: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = message.get("tool_calls") if role == "assistant" else None
    if calls is not None and calls != []:
        made["tool_calls"] = tools.assistant_calls(calls, f"{where}.tool_calls")
    thought = _reasoning(message, where) if role == "assistant" else ""
    if thought:
        made["reasoning_content"] = thought
    made["content"] = _content(message.get("content"), f"{where}.content", optional="tool_calls" in made)
    if message.get("name") is not None:
        if not isinstance(message["name"], str):
            raise invalid(f"{where}.name", f"{where}.name must be a string")
        if role == "tool":
            made["name"] = message["name"]
    if role == "tool":
        made["tool_call_id"] = message.get("tool_call_id")
    return made


def _reasoning(message: Mapping[str, Any], where: str) -> str:
    """Return an earlier answer's reasoning, which templates read as `reasoning_content`."""
    for name in REASONING:
        value = message.get(name)
        if not isinstance(value, str | None):
            raise invalid(f"{where}.{name}", f"{where}.{name} must be a string")
        if value:
            return value
    return ""


def _content(value: Any, where: str, optional: bool) -> str:
    if value is None and optional:
        return ""
    if isinstance(value, list):
        for part in value:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise invalid(where, f"{where} may only have parts of type text")
        return "".join(part["text"] for part in value)
    if not isinstance(value, str):
        raise invalid(where, f"{where} must be a string or a list of text parts")
    return value


def _kwargs(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or len(value) > MAX_KWARGS:
        raise invalid(name, f"{name} must be an object of up to {MAX_KWARGS} values")
    for key in value:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,63}", key):
            raise invalid(name, f"{name} has the name {shown(key)}; allowed are letters, digits and _")
        if key in RESERVED:
            raise invalid(name, f"{name} may not set {key}")
    level: list[Any] = [value]
    for _ in range(MAX_KWARGS_DEPTH):
        level = [
            inner
            for node in level
            for inner in (node.values() if isinstance(node, dict) else node)
            if isinstance(inner, dict | list)
        ]
    if level:
        raise invalid(name, f"{name} is nested more than {MAX_KWARGS_DEPTH} levels deep")
    if len(json.dumps(value)) > MAX_KWARGS_BYTES:
        raise invalid(name, f"{name} is larger than {MAX_KWARGS_BYTES} bytes")
    return value


_KWARGS_SCHEMA = {
    "type": ["object", "null"], "maxProperties": MAX_KWARGS,
    "propertyNames": {"pattern": "^[A-Za-z][A-Za-z0-9_]{0,63}$", "not": {"enum": sorted(RESERVED)}},
}  # fmt: skip
_LIST = {"type": "array", "items": MESSAGE, "minItems": 1, "maxItems": MAX_MESSAGES}
MESSAGES = Field(_messages, _LIST, required=True)
TABLE: Table = {
    "messages": MESSAGES,
    "add_generation_prompt": Field(flag().read, flag().schema, None),
    "continue_final_message": flag(),
    "chat_template": text(MAX_TEMPLATE, empty=False),
    "chat_template_kwargs": Field(_kwargs, _KWARGS_SCHEMA, {}),
    "tools": elsewhere({"type": ["array", "null"], "items": TOOL, "maxItems": tools.MAX_TOOLS}),
    "tool_choice": elsewhere({"type": ["string", "object", "null"]}),
    "parallel_tool_calls": elsewhere({"type": ["boolean", "null"]}),
}
