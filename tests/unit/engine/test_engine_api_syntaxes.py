"""Protects the syntaxes of calls and reasoning: each model family's own form is read, and it never matters how the text
arrives, is cut, or whether it is a call at all.
"""

from __future__ import annotations

import json
import time
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from pagefleet_engine.api.parsing import deepseek_v3, mistral
from pagefleet_engine.api.parsing.deltas import Functions, Parser, message
from pagefleet_engine.api.parsing.reasoning import Reasoning, begun, detected
from pagefleet_engine.api.parsing.registry import Dialect, Style

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "hourly": {"type": "boolean"},
                   "at": {"type": "object"}, "id": {"type": ["string", "integer"]}, "any": {}},
}  # fmt: skip
B, E = deepseek_v3.CALL_BEGIN, deepseek_v3.CALL_END
BB, EE, SEP = deepseek_v3.CALLS_BEGIN, deepseek_v3.CALLS_END, deepseek_v3.SEPARATOR
CODER = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nNew\nYork\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)
ANALYSIS = "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant"
HARMONY = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city":"Oslo"}'


def parser(dialect: Dialect, within: bool | None = None, tools: bool = True, limit: int = 32) -> Parser:
    ids = count()
    functions = Functions({"weather": SCHEMA, "stop": {}}, limit=limit, new_id=lambda: f"call_{next(ids)}")
    made = dialect.parser(functions if tools else None, within, forced=False)
    assert made is not None
    return made


def parse(pieces: list[str], dialect: Dialect, within: bool | None = None) -> dict[str, Any]:
    stream = parser(dialect, within)
    made = message([delta for piece in pieces for delta in stream.feed(piece)] + stream.finish())
    assert stream.calls == len(made.get("tool_calls", []))
    for call in made.get("tool_calls", []):
        if dialect.style is Style.MISTRAL:
            call["id"] = ""
    return made


def calls(made: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in made.get("tool_calls", [])
    ]


OSLO = ("weather", {"city": "Oslo"})


@pytest.mark.parametrize(
    ("style", "text", "content", "expected"),
    [
        # Mistral 7B v0.3 and Nemo, then Small 3.1 and later.
        (Style.MISTRAL, '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}]', None, [OSLO]),
        (Style.MISTRAL, '[TOOL_CALLS][{"name": "stop", "arguments": {}}, {"name": "weather", "arguments": {"city": "Oslo"}}]',
         None, [("stop", {}), OSLO]),
        (Style.MISTRAL, 'Sure.[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]stop{}', "Sure.", [OSLO, ("stop", {})]),
        (Style.MISTRAL, '[TOOL_CALLS]weather[CALL_ID]aB3dE6gH9[ARGS]{"city": "Oslo"}', None, [OSLO]),
        (Style.MISTRAL, '[TOOL_CALLS] [{"name": "stop", "arguments": {}}, {"name": "wea', ', {"name": "wea', [("stop", {})]),
        (Style.MISTRAL, "[TOOL_CALLS]weather", "[TOOL_CALLS]weather", []),
        (Style.MISTRAL, "[TOOL_CALLS] no, rather not {", "[TOOL_CALLS] no, rather not {", []),
        (Style.QWEN3_CODER, CODER, None, [("weather", {"city": "New\nYork", "days": 3})]),
        (Style.QWEN3_CODER, "Let me look.\n\n" + CODER + "\n" + CODER, "Let me look.",
         [("weather", {"city": "New\nYork", "days": 3})] * 2),
        (Style.QWEN3_CODER, "<function=stop>\n</function>", None, [("stop", {})]),
        (Style.QWEN3_CODER, CODER[: -len("\n</tool_call>")], None, [("weather", {"city": "New\nYork", "days": 3})]),
        (Style.QWEN3_CODER, CODER[:-30], CODER[:-30], []),
        (Style.QWEN3_CODER, "<tool_call> is a tag", "<tool_call> is a tag", []),
        (Style.QWEN3_CODER, '<function=weather><parameter=hourly>True</parameter><parameter=at>{"lat": 1}</parameter>'
         "<parameter=id>7</parameter><parameter=any>7</parameter><parameter=days>soon</parameter></function>", None,
         [("weather", {"hourly": True, "at": {"lat": 1}, "id": "7", "any": "7", "days": "soon"})]),
        (Style.DEEPSEEK_V3, f'{BB}{B}function{SEP}weather\n```json\n{{"city": "Oslo"}}\n```{E}\n{B}function{SEP}stop\n```json\n'
         f"{{}}\n```{E}{EE}", None, [OSLO, ("stop", {})]),
        (Style.DEEPSEEK_V3, f'ok{BB}{B}weather{SEP}{{"city": "Oslo"}}{E}{EE}', "ok", [OSLO]),
        (Style.DEEPSEEK_V3, f'{BB}{B}weather{SEP}{{"city": "Oslo"}}{E}{B}st', f"{B}st", [OSLO]),
        (Style.DEEPSEEK_V3, f'{BB}{B}weather{SEP}{{"city": "Os', f'{BB}{B}weather{SEP}{{"city": "Os', []),
        (Style.PYTHONIC, '[weather(city="Oslo"), stop()]', None, [OSLO, ("stop", {})]),
        (Style.PYTHONIC, "[weather(city='O)]', days=-3, at={'x': [1, None, true]}, hourly=False)]", None,
         [("weather", {"city": "O)]", "days": -3, "at": {"x": [1, None, True]}, "hourly": False})]),
        (Style.PYTHONIC, "[weather(city='Os", "[weather(city='Os", []),
        (Style.PYTHONIC, "[1, 2] are numbers", "[1, 2] are numbers", []),
        (Style.PYTHONIC, "[weather('Oslo')]", "[weather('Oslo')]", []),
        (Style.PYTHONIC, "[weather(city=open('/etc'))]", "[weather(city=open('/etc'))]", []),
        (Style.PYTHONIC, "so [stop()]", "so [stop()]", []),
        (Style.OPENAI, ANALYSIS + HARMONY, None, [OSLO]),
        (Style.OPENAI, "<|start|>assistant to=functions.stop<|channel|>commentary json<|message|>{}<|call|>", None, [("stop", {})]),
        (Style.OPENAI, "<|channel|>final<|message|>It rains.<|return|>", "It rains.", []),
        (Style.OPENAI, HARMONY[:-4], '{"city":"Os', []),
        (Style.OPENAI, "It rains.", "It rains.", []),
    ],
)  # fmt: skip
def test_each_family_s_calls_are_read(style: Style, text: str, content: str | None, expected: list[Any]) -> None:
    for pieces in ([text], list(text)):
        made = parse(pieces, Dialect(style))
        assert (made["content"], calls(made)) == (content, expected)


def test_harmony_s_analysis_is_reasoning_and_its_preamble_content() -> None:
    text = f"{ANALYSIS}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{HARMONY}<|call|>"
    made = parse([text], Dialect(Style.OPENAI, Reasoning.OPENAI_GPTOSS))
    assert (made["reasoning"], made["content"], calls(made)) == ("Need the weather.", "I look.", [OSLO])


@pytest.mark.parametrize("reasoning", [Reasoning.QWEN3, Reasoning.DEEPSEEK_R1])
@pytest.mark.parametrize(
    ("within", "text", "thought", "content"),
    [
        (None, "<think>\n2 + 2\n</think>\n\n4", "2 + 2", "4"),
        (None, "\n<think></think>4", None, "4"),
        (None, "just 4", None, "just 4"),
        (None, " <thin", None, " <thin"),
        (True, "2 + 2 </thin> \n</think>\n\n4 </think>", "2 + 2 </thin>", "4 </think>"),
        (True, "<think>\nhm</think>4", "hm", "4"),
        (True, "and then it was cut ", "and then it was cut", ""),
        (False, "<think>4", None, "<think>4"),
    ],
)
def test_reasoning_ends_with_its_tag(
    reasoning: Reasoning, within: bool | None, text: str, thought: str | None, content: str
) -> None:
    for pieces in ([text], list(text)):
        made = parse(pieces, Dialect(Style.HERMES, reasoning), within)
        assert (made.get("reasoning"), made["content"]) == (thought, content)
        assert made.get("reasoning_content") == thought


def test_calls_come_after_the_reasoning_only() -> None:
    call = '<tool_call>{"name": "stop", "arguments": {}}</tool_call>'
    made = parse([f"I might {call}</think>{call}"], Dialect(Style.HERMES, Reasoning.QWEN3), True)
    assert (made["reasoning"], made["content"], calls(made)) == (f"I might {call}", None, [("stop", {})])


def test_reasoning_is_not_held_longer_than_it_may_be_the_tag() -> None:
    stream = parser(Dialect(Style.HERMES, Reasoning.QWEN3), True, tools=False)
    deltas = [stream.feed(piece) for piece in ("\nso", " <", "b> </th", "ink>", "\n\n", "4")]
    assert [[(one.reasoning, one.content) for one in some] for some in deltas] == [
        [("so", "")],
        [],
        [(" <b>", "")],
        [],
        [],
        [("", "4")],
    ]


def test_mistral_s_ids_are_those_that_its_templates_accept() -> None:
    stream = parser(Dialect(Style.MISTRAL))
    (delta,) = stream.feed("[TOOL_CALLS]stop{}")
    assert delta.id is not None and len(delta.id) == 9 and delta.id.isalnum()
    assert mistral.call_id() != mistral.call_id()


@pytest.mark.parametrize("style", Style)
def test_calls_beyond_the_limit_are_dropped(style: Style) -> None:
    one = {
        Style.HERMES: '<tool_call>{"name": "stop", "arguments": {}}</tool_call>' * 2,
        Style.LLAMA3_JSON: '{"name": "stop", "parameters": {}}; {"name": "stop", "parameters": {}}',
        Style.MISTRAL: "[TOOL_CALLS]stop{}" * 2,
        Style.QWEN3_CODER: "<function=stop></function>" * 2,
        Style.DEEPSEEK_V3: f"{BB}{B}stop{SEP}{{}}{E}{B}stop{SEP}{{}}{E}{EE}",
        Style.OPENAI: "<|channel|>commentary to=functions.stop<|message|>{}<|call|>" * 2,
        Style.PYTHONIC: "[stop(), stop()]",
    }
    stream = parser(Dialect(style), limit=1)
    made = message([*stream.feed(one[style]), *stream.finish()])
    assert calls(made) == [("stop", {})] and not made["content"]


PIECES = some.sampled_from(
    ["[TOOL_CALLS]", "[ARGS]", "[", "]", "{", "}", ", ", '{"name": "stop", "arguments": {}}', "stop", "weather", "stop()",
     "weather(city='x')", "(", ")", "'", '"', "\\", "<tool_call>", "</tool_call>", "<function=stop>", "</function>",
     "<parameter=city>", "</parameter>", "\n", " ", "text", BB, EE, B, E, SEP, "function", "```json\n", "\n```", "<think>",
     "</think>", "<|channel|>", "analysis", "final", "commentary to=functions.stop", "<|message|>", "<|end|>", "<|start|>",
     "assistant", "<|call|>", "<", "</", "<|", "{}", "é"]
)  # fmt: skip


@settings(max_examples=400)
@given(
    some.lists(PIECES, max_size=14).map("".join),
    some.data(),
    some.sampled_from(Style),
    some.sampled_from([Reasoning.NONE, Reasoning.QWEN3]),
    some.sampled_from([None, True, False]),
)
def test_how_the_text_is_split_changes_nothing(
    text: str, data: Any, style: Style, reasoning: Reasoning, within: bool | None
) -> None:
    dialect = Dialect(style, reasoning)
    cuts = sorted(data.draw(some.sets(some.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parse([text], dialect, within)
    assert parse(pieces, dialect, within) == whole
    assert parse(list(text), dialect, within) == whole
    if "tool_calls" not in whole and reasoning is Reasoning.NONE and style is not Style.OPENAI:
        assert whole["content"] == text


@pytest.mark.parametrize(
    ("prompt", "within"),
    [("<|im_start|>assistant\n", None), ("assistant\n<think>\n", True), ("<think>\n\n</think>\n\n", False)],
)
def test_the_prompt_says_whether_an_answer_begins_with_reasoning(prompt: str, within: bool | None) -> None:
    assert begun(Reasoning.QWEN3, prompt) is within
    assert begun(Reasoning.DEEPSEEK_R1, prompt) is (within is not False)


def test_the_template_shows_how_a_model_reasons() -> None:
    assert detected(None) is detected("{{ messages }}") is Reasoning.NONE
    assert detected("{% if '</think>' in content %}") is Reasoning.QWEN3
    assert detected("<|start|>assistant<|channel|>analysis<|message|>") is Reasoning.OPENAI_GPTOSS


@pytest.mark.parametrize(
    ("style", "text"),
    [
        (Style.PYTHONIC, "[stop(x=[" + "1," * 32_000 + "])]"),
        (Style.PYTHONIC, "[" + "stop()," * 9_000 + "]"),
        (Style.QWEN3_CODER, "<function=stop>" * 5_000),
        (Style.QWEN3_CODER, "<tool_call>" * 5_000),
        (Style.MISTRAL, "[TOOL_CALLS]" * 5_000),
    ],
)
def test_no_text_stalls_its_reader(style: Style, text: str) -> None:
    """Whole at once, which is more than any step brings. The bound is for a busy machine: the last fault took seconds."""
    stream = parser(Dialect(style))
    before = time.thread_time()
    made = message([*stream.feed(text), *stream.finish()])
    assert time.thread_time() - before < 0.05
    assert made["content"] == text
