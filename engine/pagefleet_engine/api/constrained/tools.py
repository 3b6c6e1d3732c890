"""OpenAI's tools: reads them, forces their calls with a grammar, and prepares messages with calls for chat templates. Pure.

`api.parsing` finds the calls in the generated text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagefleet_engine.api.base.errors import invalid
from pagefleet_engine.api.constrained.formats import Asked, schema_text
from pagefleet_engine.api.parsing.deltas import MAX_CALLS, Functions
from pagefleet_engine.api.parsing.json_calls import BEGIN, END
from pagefleet_engine.api.parsing.reasoning import BEGIN as THOUGHT
from pagefleet_engine.api.parsing.registry import Style
from pagefleet_engine.core.requests import Grammar
from pagefleet_engine.model.text.grammar import WHITESPACE

MAX_TOOLS = 128
MAX_TOOLS_BYTES = 256 << 10
UNCOMBINED = "cannot be combined with tools unless tool_choice is none or forces a call"
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tool:
    """One function. `document` is the tool as it was sent, for the chat template."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool
    param: str
    document: Mapping[str, Any]


@dataclass(frozen=True)
class Tools:
    """The functions that a request may call. `choice` is none, auto or required.

    A request that names one function requires a call, with that tool only.
    """

    tools: tuple[Tool, ...]
    choice: str
    parallel: bool
    all_tools: tuple[Tool, ...]

    def documents(self) -> list[Mapping[str, Any]]:
        """The `tools` of the chat template; empty when no tool may be called."""
        return [tool.document for tool in self.all_tools] if self.choice != "none" else []

    def grammar(self, style: Style, answer: Asked | None, thinks: bool = False) -> Asked | None:
        """Return the grammar of the text; `answer` is the request's own format. Raises ApiError (400) when both conflict.

        A forced call has no answer beside it, so its format does not count. With `auto`, the model writes either a call or
        an answer in the request's JSON format. `thinks`: reasoning may come before, so text does not begin as reasoning does.
        """
        if self.choice == "none":
            return answer
        if self.choice == "required":
            return Asked(Grammar("grammar", self._lark(style, "start: calls", self.tools)), "tools")
        if answer is not None:
            if answer.grammar.kind not in ("json_schema", "json_object"):
                field = answer.param.split(".")[0]
                raise invalid(field, f"{field} {UNCOMBINED}")
            if style not in (Style.HERMES, Style.LLAMA3_JSON):
                raise invalid(answer.param, f"{answer.param} {UNCOMBINED} with --tool-call-parser={style}")
            start = "start: calls | answer\nanswer: " + _json(json.loads(answer.grammar.text or '{"type": "object"}'))
            return Asked(Grammar("grammar", self._lark(style, start, self.tools)), answer.param)
        if style not in (Style.HERMES, Style.LLAMA3_JSON) or not any(tool.strict for tool in self.tools):
            return None
        if style is Style.HERMES:
            many = "*" if self.parallel else "?"
            text = r"/(.|\n)*/" + (rf" & ~/{THOUGHT}(.|\n)*/" if thinks else "")
            start = f'start: (head tail){many} TEXT\nhead[lazy]: TEXT "{BEGIN}"\nTEXT: {text}'
        else:
            # Text is what the parser takes for no call: it looks for one behind spaces, behind a tag and behind reasoning.
            text = r"/[ \t\r\n]*([^{< \t\r\n](.|\n)*|<([^|](.|\n)*)?)?/"
            text += rf" & ~/[ \t\r\n]*{THOUGHT}(.|\n)*/" if thinks else ""
            start = f"start: SPACES? calls | TEXT\nSPACES: /[ \\t\\r\\n]+/\nTEXT: {text}"
        return Asked(Grammar("grammar", self._lark(style, start, self.tools, loose=True)), "tools")

    def schemas(self) -> list[Asked]:
        """The schemas of parameters that the grammar will use, one by one, so that an error can name its tool."""
        used = [tool for tool in self.tools if self.choice == "required" or (self.choice == "auto" and tool.strict)]
        return [Asked(Grammar("json_schema", json.dumps(tool.parameters)), tool.param) for tool in used]

    def functions(self, bounded: bool) -> Functions:
        """The functions that one answer may call; `bounded` when a grammar keeps its calls valid."""
        schemas = {tool.name: tool.parameters for tool in self.tools} if self.choice != "none" else {}
        return Functions(schemas, limit=MAX_CALLS if self.parallel else 1, eager=bounded)

    def _lark(self, style: Style, start: str, tools: Sequence[Tool], loose: bool = False) -> str:
        """A Lark grammar from `start` with the rules `calls` and `tail`. `loose`: only strict tools' schemas count."""

        def repeated(call: str, between: str) -> str:
            more = f' ("{between}" {call}){{0,{MAX_CALLS - 1}}}' if self.parallel else ""
            return f"calls: {call}{more}\n"

        if style is Style.OPENAI:
            calls = "calls: " + " | ".join(f"body_{index}" for index in range(len(tools))) + "\n"
            return "%llguidance {}\n" + "\n".join([start, calls, *_harmony(tools)]) + "\n"
        if style is Style.HERMES:
            key, calls = "arguments", repeated("call", "\\n") + f'call: "{BEGIN}" tail\ntail: "\\n" body "\\n{END}"\n'
        else:
            key, calls = "parameters", repeated("body", "; ")
        rules = [start, calls + "body: " + " | ".join(f"body_{index}" for index in range(len(tools)))]
        for index, tool in enumerate(tools):
            schema = ANY_OBJECT if loose and not tool.strict else tool.parameters
            rules.append(f'body_{index}: "{{\\"name\\": \\"{tool.name}\\", \\"{key}\\": " args_{index} "}}"')
            rules.append(f"args_{index}: {_json(schema)}")
        return "%llguidance {}\n" + "\n".join(rules) + "\n"


def read(body: Mapping[str, Any]) -> Tools | None:
    """`tools`, `tool_choice` and `parallel_tool_calls`; None without tools. Raises ApiError (400) by name."""
    parallel = body.get("parallel_tool_calls")
    if not isinstance(parallel, bool | None):
        raise invalid("parallel_tool_calls", "parallel_tool_calls must be a boolean")
    given, choice = body.get("tools"), body.get("tool_choice")
    if given is None or given == []:
        if choice not in (None, "none"):
            raise invalid("tool_choice", "tool_choice is only allowed with tools")
        return None
    if not isinstance(given, list) or len(given) > MAX_TOOLS:
        raise invalid("tools", f"tools must be a list of up to {MAX_TOOLS} tools")
    tools = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(given))
    names = [tool.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise invalid("tools", f"tools has two functions named {twice!r}")
    if sum(len(json.dumps(tool.document)) for tool in tools) > MAX_TOOLS_BYTES:
        raise invalid("tools", f"tools are more than {MAX_TOOLS_BYTES} bytes")
    chosen, choice = _choice(choice, tools)
    return Tools(chosen, choice, parallel is not False and not isinstance(body.get("tool_choice"), dict), tools)


def _choice(choice: Any, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], str]:
    if choice in (None, "auto"):
        return tools, "auto"
    if choice in ("none", "required"):
        return tools, str(choice)
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    if not isinstance(function, dict) or set(function) != {"name"} or set(choice) != {"type", "function"}:
        allowed = 'none, auto, required or {"type": "function", "function": {"name": ...}}'
        raise invalid("tool_choice", f"tool_choice must be {allowed}")
    named = tuple(tool for tool in tools if tool.name == function["name"])
    if not named:
        raise invalid("tool_choice", "tool_choice names a function that tools does not have")
    return named, "required"


def _tool(tool: Any, where: str) -> Tool:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type") != "function" or set(tool) != {"type", "function"}:
        raise invalid(where, f'{where} must be {{"type": "function", "function": {{...}}}}')
    where += ".function"
    extra = sorted(set(function) - {"name", "description", "parameters", "strict"})
    if extra:
        raise invalid(f"{where}.{extra[0][:64]}", f"{where}.{extra[0][:64]} is not known", "unknown_parameter")
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise invalid(f"{where}.name", f"{where}.name must be 1 to 64 letters, digits, _ or -")
    for field, kind, shown in (("description", str, "a string"), ("strict", bool, "a boolean")):
        if function.get(field) is not None and not isinstance(function[field], kind):
            raise invalid(f"{where}.{field}", f"{where}.{field} must be {shown}")
    if parameters is None:
        parameters = NO_ARGUMENTS
    elif not isinstance(parameters, dict):
        raise invalid(f"{where}.parameters", f"{where}.parameters must be a JSON schema (an object)")
    parameters = json.loads(schema_text({"type": "object", **parameters}, f"{where}.parameters"))
    if parameters["type"] != "object":
        raise invalid(f"{where}.parameters", f"{where}.parameters must have the type object")
    return Tool(name, parameters, function.get("strict") is True, f"{where}.parameters", tool)


def assistant_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """An assistant message's `tool_calls` as chat templates want them: arguments are an object, not its text."""
    if not isinstance(calls, list) or not 1 <= len(calls) <= MAX_TOOLS:
        raise invalid(where, f"{where} must be a list of 1 to {MAX_TOOLS} calls")
    made = []
    for index, call in enumerate(calls):
        at = f"{where}[{index}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type", "function") != "function":
            raise invalid(at, f'{at} must be {{"id": ..., "type": "function", "function": {{"name", "arguments"}}}}')
        if not isinstance(call.get("id"), str) or not call["id"]:
            raise invalid(f"{at}.id", f"{at}.id must be a non-empty string")
        name, text = function.get("name"), function.get("arguments")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise invalid(f"{at}.function.name", f"{at}.function.name must be 1 to 64 letters, digits, _ or -")
        try:
            arguments = json.loads(text or "{}") if isinstance(text, str | None) else text
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            where = f"{at}.function.arguments"
            raise invalid(where, f"{where} must be a JSON object, written as a string")
        made.append({"id": call["id"], "type": "function", "function": {"name": name, "arguments": arguments}})
    return made


def answered(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with each tool's answer named after its function. `messages` are checked but for their order:
    a message of role tool must answer, by `tool_call_id`, a call of an assistant message before it. Raises ApiError.
    """
    names: dict[str, str] = {}
    made = []
    for index, turn in enumerate(messages):
        turn = dict(turn)
        for call in turn.get("tool_calls") or ():
            names[call["id"]] = call["function"]["name"]
        if turn.get("role") == "tool":
            where, asked = f"messages[{index}].tool_call_id", turn.get("tool_call_id")
            if not isinstance(asked, str) or asked not in names:
                raise invalid(where, f"{where} must be the id of a call that an assistant message before it made")
            turn.setdefault("name", names[asked])
        made.append(turn)
    return made


def _harmony(tools: Sequence[Tool]) -> list[str]:
    """Rules of the calls in harmony's channels: one call ends the answer."""
    rules = []
    for index, tool in enumerate(tools):
        header = f'<|channel|> "commentary to=functions.{tool.name} " <|constrain|> "json" <|message|>'
        rules += [f"body_{index}: {header} args_{index}", f"args_{index}: {_json(tool.parameters)}"]
    return rules


def _json(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}})
