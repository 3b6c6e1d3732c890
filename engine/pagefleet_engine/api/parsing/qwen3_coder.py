"""Calls of Qwen3-Coder: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`. Pure.

A value is text; the parameter's schema says whether it stands for something else.
https://huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct, qwen3coder_tool_parser.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pagefleet_engine.api.parsing.deltas import Functions
from pagefleet_engine.api.parsing.marked_calls import Body, Call, MarkedCalls, NoCall

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
MARKERS = (BEGIN, END)
MAX_HEAD = 256
HEAD = re.compile(r"<function=\s*([a-zA-Z0-9_-]{1,64})\s*>")
PARAMETER = re.compile(r"<parameter=([^>\n]{1,256})>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)


def stream(functions: Functions) -> MarkedCalls:
    return MarkedCalls(functions, _Block, BEGIN, FUNCTION)


class _Block(Body):
    def end(self, text: str, last: bool) -> int | None:
        wrapped = text.startswith(BEGIN)
        begin = text[len(BEGIN) : len(BEGIN) + MAX_HEAD].lstrip() if wrapped else text
        if not begin.startswith(FUNCTION) and (last or not FUNCTION.startswith(begin)):
            raise NoCall
        marker = END if wrapped else FUNCTION_END
        while (found := text.find(marker, self.at)) >= 0:
            self.at = found + len(marker)
            if not wrapped or text[:found].rstrip().endswith(FUNCTION_END):
                return self.at
        self.at = max(self.at, len(text) - len(marker))
        complete = text.rfind(FUNCTION_END) if last else -1
        return complete + len(FUNCTION_END) if complete >= 0 else None

    def calls(self, text: str) -> list[Call]:
        made = []
        for part in text.split(FUNCTION_END)[:-1]:
            head = HEAD.search(part)
            if head is None or head[1] not in self.functions.schemas:
                raise NoCall
            schema = self.functions.schemas[head[1]]
            values = {key.strip(): _value(text, schema, key.strip()) for key, text in PARAMETER.findall(part)}
            made.append(self.call(json.dumps({"name": head[1], "arguments": values})))
        return made


def _value(text: str, schema: Mapping[str, Any], key: str) -> Any:
    """Return the value that a parameter's text stands for: as its type says, else as text."""
    text = text.removeprefix("\n").removesuffix("\n")
    properties = schema.get("properties")
    declared = properties.get(key) if isinstance(properties, Mapping) else None
    kinds = declared.get("type") if isinstance(declared, Mapping) else None
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if text.strip().lower() == "null" and "string" not in kinds:
        return None
    if kinds == ["string"] or (kinds == [None] and not _composed(declared)):
        return text
    try:
        value = json.loads(text.strip().lower() if kinds == ["boolean"] else text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    return text if "string" in kinds and not isinstance(value, dict | list) else value


def _composed(declared: Any) -> bool:
    return isinstance(declared, Mapping) and any(key in declared for key in ("anyOf", "oneOf", "allOf", "$ref", "enum"))


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
