"""Calls as a list of Python calls: the whole answer is `[f(x=1), g(y="z")]`, as Llama 3.2 and 4 write it. Pure.

https://github.com/meta-llama/llama-models/blob/main/models/llama3_2/text_prompt_format.md
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from typing import Any

from pagefleet_engine.api.parsing.deltas import Functions
from pagefleet_engine.api.parsing.marked_calls import Body, Call, MarkedCalls, NoCall

MARKERS = ("<|python_start|>", "<|python_end|>")
HEAD = re.compile(r"\[\s*([A-Za-z_][\w-]{0,63})\s*\(")
PARTIAL_HEAD = re.compile(r"\[\s*(?:[A-Za-z_][\w-]{0,63}\s*)?")
SIGNS = re.compile(r"[\[\](){}'\"]")
MAX_CHARACTERS, MAX_COMMAS, MAX_DEPTH = 1 << 16, 2000, 64  # so many are parsed in 25 ms
CONSTANTS = {"true": True, "false": False, "null": None}  # JSON's, which models write too


def stream(functions: Functions) -> MarkedCalls:
    return MarkedCalls(functions, _Block, "[", whole=True)


class _Block(Body):
    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self._depth, self._quote = 0, ""

    def end(self, text: str, last: bool) -> int | None:
        head = HEAD.match(text)
        if head is None and (last or not PARTIAL_HEAD.fullmatch(text)):
            raise NoCall
        if head is None:
            return None
        if head[1] not in self.functions.schemas:
            raise NoCall
        while self.at < len(text):
            if self.at > MAX_CHARACTERS or self._depth > MAX_DEPTH:
                raise NoCall
            if self._quote:
                if not self._within(text):
                    return None
                continue
            match = SIGNS.search(text, self.at)
            if match is None:
                self.at = len(text)
                break
            self.at = match.end()
            if match[0] in "'\"":
                self._quote = match[0]
                continue
            self._depth += 1 if match[0] in "[({" else -1
            if self._depth == 0:
                return self.at
        return None

    def calls(self, text: str) -> list[Call]:
        if text.count(",") > MAX_COMMAS:
            raise NoCall
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a model's "\\d" is no mistake of ours
                tree = ast.parse(text, mode="eval").body
            if not isinstance(tree, ast.List):
                raise NoCall
            return [self._call(one) for one in tree.elts]
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise NoCall from error

    def _within(self, text: str) -> bool:
        """Go to the end of the string that is open; false when more text is needed."""
        while self.at < len(text):
            sign = text[self.at]
            if sign == "\\":
                if self.at + 1 >= len(text):
                    return False
                self.at += 2
                continue
            self.at += 1
            if sign == self._quote:
                self._quote = ""
                return True
        return True

    def _call(self, node: ast.expr) -> Call:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
            raise NoCall
        if node.func.id not in self.functions.schemas or any(one.arg is None for one in node.keywords):
            raise NoCall
        arguments = {one.arg: _value(one.value) for one in node.keywords}
        return Call(node.func.id, json.dumps(arguments, allow_nan=False))


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return value
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_value(one) for one in elements]
        case ast.Dict(keys=keys, values=values):
            made = {}
            for key, inner in zip(keys, values, strict=True):
                if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                    raise NoCall
                made[key.value] = _value(inner)
            return made
        case _:
            raise NoCall
