"""The syntaxes in which models write their calls: one row each, which `--tool-call-parser` names as vLLM does. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from pagefleet_engine.api.parsing import deepseek_v3, harmony, json_calls, mistral, pythonic, qwen3_coder, reasoning
from pagefleet_engine.api.parsing.deltas import Functions, Parser, Plain
from pagefleet_engine.api.parsing.json_calls import JsonCalls
from pagefleet_engine.api.parsing.reasoning import Reasoning, ReasoningStream


class Style(StrEnum):
    """The form in which a model writes its calls; OPENAI is harmony, gpt-oss's."""

    HERMES = "hermes"
    LLAMA3_JSON = "llama3_json"
    MISTRAL = "mistral"
    QWEN3_CODER = "qwen3_coder"
    DEEPSEEK_V3 = "deepseek_v3"
    OPENAI = "openai"
    PYTHONIC = "pythonic"


@dataclass(frozen=True)
class Syntax:
    """`markers`: what is part of the syntax even where the tokenizer holds it for a special token."""

    stream: Callable[[Functions], Parser]
    markers: tuple[str, ...]


STYLES: Mapping[Style, Syntax] = {
    Style.HERMES: Syntax(partial(JsonCalls, tagged=True), (json_calls.BEGIN, json_calls.END)),
    Style.LLAMA3_JSON: Syntax(partial(JsonCalls, tagged=False), (json_calls.PYTHON,)),
    Style.MISTRAL: Syntax(mistral.stream, mistral.MARKERS),
    Style.QWEN3_CODER: Syntax(qwen3_coder.stream, qwen3_coder.MARKERS),
    Style.DEEPSEEK_V3: Syntax(deepseek_v3.stream, deepseek_v3.MARKERS),
    Style.OPENAI: Syntax(harmony.HarmonyStream, harmony.MARKERS),
    Style.PYTHONIC: Syntax(pythonic.stream, ()),
}


@dataclass(frozen=True)
class Dialect:
    """How one model writes: its calls, and its reasoning."""

    style: Style
    reasoning: Reasoning = Reasoning.NONE

    @property
    def harmony(self) -> bool:
        return self.style is Style.OPENAI

    def markers(self, *, calls: bool) -> tuple[str, ...]:
        """Return the special tokens that the parser needs to see; `calls`: the request has tools."""
        if self.harmony:
            return harmony.MARKERS
        of_calls = STYLES[self.style].markers if calls else ()
        return of_calls if self.reasoning is Reasoning.NONE else (*of_calls, *reasoning.MARKERS)

    def parser(self, functions: Functions | None, begun: bool | None, *, forced: bool) -> Parser | None:
        """Return the parser of one answer; None when all its text is content. `functions`: None without tools.

        `begun`: as reasoning.begun says of the prompt. `forced`: a grammar makes the whole answer calls (call_style).
        """
        if self.harmony:
            return harmony.HarmonyStream(functions or Functions())
        inner: Parser = Plain()
        if functions is not None:
            if self.style is Style.MISTRAL:
                functions = replace(functions, new_id=mistral.call_id)
            inner = STYLES[self.call_style if forced else self.style].stream(functions)
        if self.reasoning is not Reasoning.NONE:
            return ReasoningStream(begun, inner)
        return inner if functions is not None else None

    @property
    def call_style(self) -> Style:
        """The style of calls that a grammar forces: JSON where the model's own syntax has no grammar here."""
        return self.style if self.style in (Style.HERMES, Style.OPENAI) else Style.LLAMA3_JSON
