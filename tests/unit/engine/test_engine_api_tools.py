"""Protects tool calls: what a request may ask, and that calls are found whole, whatever pieces the text comes in."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from pagefleet_engine.api.base.errors import ApiError
from pagefleet_engine.api.constrained.formats import Asked
from pagefleet_engine.api.constrained.tools import answered, assistant_calls, read
from pagefleet_engine.api.parsing.deltas import Functions, Parser, message
from pagefleet_engine.api.parsing.registry import STYLES, Dialect, Style
from pagefleet_engine.core.requests import Grammar

HERMES, LLAMA = Style.HERMES, Style.LLAMA3_JSON
A = {"type": "function", "function": {"name": "a", "parameters": {"properties": {"x": {"type": "integer"}}}}}
B = {"type": "function", "function": {"name": "b", "strict": True}}


def hermes(inner: str) -> str:
    return f"<tool_call>\n{inner}\n</tool_call>"


ONE, TWO = '{"name": "a", "arguments": {"x": "</tool_call>{"}}', '{"name": "b", "arguments": {}}'


def calls_of(names: list[str], style: Style = HERMES, **options: Any) -> Parser:
    return STYLES[style].stream(Functions({name: {} for name in names}, **options))


def parse(pieces: list[str], style: Style = HERMES, **options: Any) -> dict[str, Any]:
    ids = count()
    stream = calls_of(["a", "b"], style, new_id=lambda: f"call_{next(ids)}", **options)
    made = message([delta for piece in pieces for delta in stream.feed(piece)] + stream.finish())
    assert stream.calls == len(made.get("tool_calls", []))
    return made


def calls(made: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in made.get("tool_calls", [])
    ]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    ("style", "text", "content", "expected"),
    [
        (HERMES, "", "", []),
        (HERMES, " hello <b> \n", " hello <b> \n", []),
        (HERMES, hermes(ONE), None, [("a", {"x": "</tool_call>{"})]),
        (HERMES, f"sure\n{hermes(ONE)}\n{hermes(TWO)}\n", "sure", [("a", {"x": "</tool_call>{"}), ("b", {})]),
        (HERMES, f"{hermes(TWO)} done", " done", [("b", {})]),
        (HERMES, f"<tool_call>{TWO}", None, [("b", {})]),
        (HERMES, f"<tool_call>{TWO}</tool_c", None, [("b", {})]),
        (HERMES, hermes('{"arguments": {"x": 1}, "name": "a"}'), None, [("a", {"x": 1})]),
        (HERMES, hermes('{"name": "a", "arguments": "{\\"x\\": 1}"}'), None, [("a", {"x": 1})]),
        (HERMES, hermes('{"name": "b"}'), None, [("b", {})]),
        (LLAMA, '{"name": "a", "parameters": {"x": 1}}', None, [("a", {"x": 1})]),
        (LLAMA, ' <|python_tag|>{"name": "b", "parameters": {}}; {"name": "b"}', None, [("b", {}), ("b", {})]),
        (LLAMA, 'see {"name": "b", "parameters": {}}', 'see {"name": "b", "parameters": {}}', []),
        (LLAMA, '{"name": "Bob", "parameters": {}} ', '{"name": "Bob", "parameters": {}} ', []),
        (LLAMA, "<|python", "<|python", []),
    ],
)
def test_calls_are_found(style: Style, text: str, content: str | None, expected: list[Any], eager: bool) -> None:
    made = parse([text], style, eager=eager)
    assert (made["content"], calls(made)) == (content, expected)


@pytest.mark.parametrize(
    "inner",
    ["", "x", "[1]", '{"name": "c", "arguments": {}}', '{"name": "a", "arguments": [1]}', '{"name": "a", "arguments": NaN}',
     '{"name": "a", "arguments": {"x": 1}', '{"name": ["a"]}', '{"name": "a\n"}', '{"name": "a", }', '{"x":' * 2000,
     '{"name": "a", "arguments": {"x": 1' + "0" * 5000 + "}}", '{"name": "a'],
)  # fmt: skip
def test_what_is_no_call_comes_back_as_content(inner: str) -> None:
    text = f"so: {hermes(inner)} and"
    assert parse([text]) == {"role": "assistant", "content": text}
    made = parse([text + hermes(TWO)])
    if not inner.endswith('"a'):  # an open string takes the rest in
        assert (made["content"], calls(made)) == (text, [("b", {})])


def test_arguments_come_in_pieces_when_a_grammar_keeps_them_valid() -> None:
    stream = calls_of(["a"], eager=True, new_id=lambda: "call_0")
    deltas = [
        stream.feed(piece) for piece in ('<tool_call>{"name": "a", "arguments": {', '"x": ', "1}", "}</tool_call>")
    ]
    assert [[delta.document() for delta in piece] for piece in deltas] == [
        [
            {
                "tool_calls": [
                    {"index": 0, "id": "call_0", "type": "function", "function": {"name": "a", "arguments": ""}}
                ]
            },
            {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        ],
        [{"tool_calls": [{"index": 0, "function": {"arguments": '"x": '}}]}],
        [{"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}],
        [],
    ]


def test_calls_beyond_the_limit_are_dropped_and_ids_differ() -> None:
    assert calls(parse([hermes(TWO) * 3], limit=1)) == [("b", {})]
    assert calls(parse([hermes(TWO) * 3], limit=1, eager=True)) == [("b", {})]
    stream = calls_of(["b"])
    ids = {delta.id for delta in stream.feed(hermes(TWO) * 3)}
    assert len(ids) == 3
    assert all(id and id.startswith("call_") for id in ids)


PIECES = some.sampled_from(
    ["<tool_call>", "</tool_call>", "<tool", "\n", " ", '{"name": "a", "arguments": ', '{"name": "b"}', ONE, TWO, "{", "}",
     '{"name": "a", "arguments": {"x": "\\\\\\"}<tool_call>"}}', '"', "\\", '{"x": "', "text", "<|python_tag|>", ";", "é", "<"]
)  # fmt: skip


@settings(max_examples=250)
@given(some.lists(PIECES, max_size=12).map("".join), some.data(), some.sampled_from([HERMES, LLAMA]), some.booleans())
def test_how_the_text_is_split_changes_nothing(text: str, data: Any, style: Style, eager: bool) -> None:
    cuts = sorted(data.draw(some.sets(some.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parse([text], style, eager=eager)
    assert parse(pieces, style, eager=eager) == whole
    assert parse(list(text), style, eager=eager) == whole
    if "tool_calls" not in whole:
        assert whole["content"] == text


def test_content_is_not_held_longer_than_it_may_be_a_marker() -> None:
    stream = calls_of(["a"])
    given = [message(stream.feed(piece))["content"] for piece in ("hello", " <", "b> <tool_", "calls", " x")]
    assert given == ["hello", "", " <b>", " <tool_calls", " x"]


def test_tools_are_read() -> None:
    tools = read({"tools": [A, B]})
    assert tools is not None
    assert (tools.choice, tools.parallel, tools.documents()) == ("auto", True, [A, B])
    assert [asked.param for asked in tools.schemas()] == ["tools[1].function.parameters"]
    forced = read({"tools": [A, B], "tool_choice": {"type": "function", "function": {"name": "a"}}})
    assert forced is not None
    assert ([tool.name for tool in forced.tools], forced.choice, forced.parallel) == (["a"], "required", False)
    assert forced.documents() == [A, B]
    off = read({"tools": [A], "tool_choice": "none"})
    assert off is not None
    assert (off.documents(), off.schemas()) == ([], [])
    assert read({}) is None
    assert read({"tools": [], "tool_choice": "none", "parallel_tool_calls": True}) is None


def test_the_grammar_follows_the_choice() -> None:
    answer = Asked(Grammar("json_object", ""), "response_format")
    regex = Asked(Grammar("regex", "a"), "guided_regex")

    def grammar(body: dict[str, Any], asked: Asked | None) -> Asked | None:
        tools = read({"tools": [A], **body})
        assert tools is not None
        return tools.grammar(HERMES, asked)

    assert grammar({}, None) is None
    assert grammar({"tool_choice": "none"}, regex) is regex
    forced = grammar({"tool_choice": "required"}, regex)
    assert forced is not None
    assert (forced.grammar.kind, forced.param) == ("grammar", "tools")
    either = grammar({}, answer)
    assert either is not None
    assert either.param == "response_format"
    assert "answer" in either.grammar.text
    with pytest.raises(ApiError) as refused:
        grammar({}, regex)
    assert refused.value.param == "guided_regex"
    assert grammar({"tools": [A, B]}, None) is not None  # b is strict


def function(**changes: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "a", **changes}}]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": "x"}, "tools"),
        ({"tools": [A] * 2}, "tools"),
        ({"tools": [A] * 129}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        (function(name="a b"), "tools[0].function.name"),
        (function(name='a"'), "tools[0].function.name"),
        (function(description=3), "tools[0].function.description"),
        (function(strict="yes"), "tools[0].function.strict"),
        (function(parameters=[]), "tools[0].function.parameters"),
        (function(parameters={"type": "string"}), "tools[0].function.parameters"),
        (function(parameters={"$ref": "file:///x"}), "tools[0].function.parameters"),
        (function(returns={}), "tools[0].function.returns"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [A], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [A], "tool_choice": {"type": "function", "function": {"name": "z"}}}, "tool_choice"),
        ({"tools": [A], "tool_choice": {"type": "function", "name": "a"}}, "tool_choice"),
        ({"tools": [A], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
def test_bad_tools_are_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(body)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_messages_with_calls_fit_chat_templates() -> None:
    sent = [{"id": "1", "type": "function", "function": {"name": "a", "arguments": '{"x": 1}'}}]
    made = assistant_calls(sent, "messages[1].tool_calls")
    assert made[0]["function"] == {"name": "a", "arguments": {"x": 1}}
    turns: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "tool_calls": made},
        {"role": "tool", "content": "7", "tool_call_id": "1"},
    ]
    assert answered(turns)[1] == {**turns[1], "name": "a"}
    for bad in ([turns[1]], [turns[0], {**turns[1], "tool_call_id": "2"}], [*turns[::-1]]):
        with pytest.raises(ApiError, match="tool_call_id"):
            answered(bad)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"id": ""}, "here[0].id"),
        ({"type": "custom"}, "here[0]"),
        ({"function": {"name": 1, "arguments": "{}"}}, "here[0].function.name"),
        ({"function": {"name": "a", "arguments": "{"}}, "here[0].function.arguments"),
        ({"function": {"name": "a", "arguments": "[]"}}, "here[0].function.arguments"),
    ],
)
def test_a_malformed_call_in_a_message_is_refused_by_name(changes: dict[str, Any], param: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "a", "arguments": "{}"}} | changes
    with pytest.raises(ApiError) as refused:
        assistant_calls([call], "here")
    assert refused.value.param == param


def not_json(constant: str) -> None:
    raise ValueError(constant)


@pytest.mark.parametrize(
    ("style", "text"),
    [
        (HERMES, '<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>'),
        (LLAMA, '{"name": "f", "parameters": {"x": -1e999}}'),
        (Style.MISTRAL, '[TOOL_CALLS]f{"x": 1e999}'),
    ],
)
def test_arguments_are_json(style: Style, text: str) -> None:
    parser = Dialect(style).parser(Functions({"f": {}}), False, forced=False)
    for call in message([*parser.feed(text), *parser.finish()]).get("tool_calls", ()):
        json.loads(call["function"]["arguments"], parse_constant=not_json)
