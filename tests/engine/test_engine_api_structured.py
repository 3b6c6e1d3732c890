"""Answers bound by a format, and calls of tools, through the official client: whatever a random model would write, what
it answers is valid. Against a real engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support.engine.api_process import NAME, Serving, make_model, serving

HI = [{"role": "user", "content": "what is the weather?"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}


@pytest.fixture(scope="module", params=["hermes", "llama3_json"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("structured")
    flags = ("--max-model-len=2048", f"--tool-call-parser={request.param}")
    with serving(make_model(folder / "model"), folder / "termination", *flags) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_a_schema_is_valid(client: openai.OpenAI, stream: bool) -> None:
    answer = client.chat.completions.create(
        model=NAME,
        messages=HI,
        max_tokens=200,
        seed=4,
        stream=stream,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}},
    )
    choices = [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices
    text = "".join((choice.delta.content if stream else choice.message.content) or "" for choice in choices)
    person = json.loads(text)
    assert set(person) == {"name", "age"} and 0 <= person["age"] <= 99
    assert choices[-1].finish_reason == "stop"


def test_several_answers_are_each_bound(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=NAME, prompt="x", n=4, max_tokens=20, seed=2, extra_body={"guided_regex": "[ab]{3}-[0-9]+;"}
    )
    assert all(re.match(r"[ab]{3}-[0-9]+;?", choice.text) for choice in answer.choices)
    one = client.completions.create(model=NAME, prompt="x", extra_body={"guided_choice": ["yes", "no"]})
    assert one.choices[0].text in ("yes", "no") and one.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_call_is_valid_whole_and_streamed(client: openai.OpenAI, choice: Any) -> None:
    asked = {
        "model": NAME, "messages": HI, "tools": [WEATHER], "tool_choice": choice, "max_tokens": 300, "seed": 6,
        "parallel_tool_calls": False,
    }  # fmt: skip
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.tool_calls
    call = whole.message.tool_calls[0]
    assert call.type == "function" and call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Oslo")
    names, arguments, ends = [], "", []
    for chunk in client.chat.completions.create(**asked, stream=True):
        for part in chunk.choices:
            ends += [part.finish_reason] if part.finish_reason else []
            for piece in part.delta.tool_calls or []:
                assert piece.function is not None and piece.index == 0
                names += [piece.function.name] if piece.function.name else []
                arguments += piece.function.arguments or ""
    assert (names, ends) == (["weather"], ["tool_calls"])
    assert json.loads(arguments) == json.loads(call.function.arguments)


def test_a_call_and_its_answer_may_be_sent_back(client: openai.OpenAI) -> None:
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    answer = client.chat.completions.create(model=NAME, messages=messages, tools=[WEATHER, CLOCK], max_tokens=4)
    assert answer.choices[0].finish_reason in ("length", "stop")
    with pytest.raises(openai.BadRequestError, match="tool_call_id"):
        client.chat.completions.create(
            model=NAME, messages=[*HI, {"role": "tool", "tool_call_id": "c2", "content": "x"}], max_tokens=4
        )


@pytest.mark.parametrize("name", ["none", "auto"])
def test_tools_that_need_not_be_called_leave_text(client: openai.OpenAI, name: Any) -> None:
    answer = client.chat.completions.create(
        model=NAME, messages=HI, tools=[WEATHER], tool_choice=name, max_tokens=6, temperature=0
    ).choices[0]
    assert answer.message.content and not answer.message.tool_calls


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"guided_grammar": "start: nothing"}, "guided_grammar"),
        ({"guided_json": {"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}}, "guided_json"),
        ({"guided_regex": "(a{1000}){1000}" * 20}, "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
    ],
)
def test_a_format_that_cannot_be_is_refused_by_name(served: Serving, change: dict[str, Any], param: str) -> None:
    reply = served.post("/v1/chat/completions", {"model": NAME, "messages": HI, "max_tokens": 2, **change})
    assert (reply.status, reply.error["param"]) == (400, param), reply.body
