"""Protects the translations of Responses and Messages: items and blocks become the messages of a chat, events add up to the
document, and the store is bounded for all and for each client.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from pagefleet_engine.api.answers.shapes import Usage
from pagefleet_engine.api.base.errors import ApiError
from pagefleet_engine.api.parsing.deltas import Delta
from pagefleet_engine.api.protocols import message_request, response_request
from pagefleet_engine.api.protocols.message_events import MessageWriter
from pagefleet_engine.api.protocols.response_events import ResponseWriter
from pagefleet_engine.api.protocols.response_request import chat_messages
from pagefleet_engine.api.protocols.store import Store, Stored

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
THOUGHT = {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
TEXT = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text(max_size=6) | some.sampled_from(["text", "message", "user"]),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(
        some.sampled_from(["type", "role", "content", "text", "name", "id", "input"]) | some.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


def test_reasoning_text_and_calls_of_one_turn_are_one_message() -> None:
    items = [{"role": "user", "content": "x"}, THOUGHT, TEXT, CALL, {**CALL, "call_id": "c2"},
             {"type": "function_call_output", "call_id": "c1", "output": "rain"}, TEXT, THOUGHT, CALL]  # fmt: skip
    assert chat_messages(items) == [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": [CHAT_CALL, {**CHAT_CALL, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "assistant", "content": "so"},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CHAT_CALL]},
    ]  # fmt: skip


def test_blocks_of_a_message_become_a_chat() -> None:
    made = message_request.parameters({
        "model": "m", "max_tokens": 5, "system": "s", "stop_sequences": ["x"], "top_k": 3,
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "let me see"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "rain"}, {"type": "text", "text": "so?"}]},
        ],
    })  # fmt: skip
    conversation = made.conversation
    assert conversation is not None and conversation.tools is not None
    assert (conversation.tools.choice, conversation.tools.parallel) == ("required", False)
    assert (made.max_tokens, made.stop, made.top_k) == (5, ("x",), 3)
    assert [message["role"] for message in conversation.messages] == ["system", "user", "assistant", "tool", "user"]
    assistant = conversation.messages[2]
    assert (assistant["content"], assistant["reasoning_content"]) == ("let me see", "hm")
    assert assistant["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}


@settings(max_examples=300)
@given(some.dictionaries(some.sampled_from(sorted(response_request.TABLE)), JSON, max_size=5))
def test_any_response_is_read_or_refused_with_400(body: dict[str, Any]) -> None:
    for change in (body, {"model": "m", "input": "x"} | body):
        try:
            response_request.parameters(change, ())
        except ApiError as error:
            assert error.status == 400 and error.param is not None


@settings(max_examples=300)
@given(some.dictionaries(some.sampled_from(sorted(message_request.TABLE)), JSON, max_size=5))
def test_any_message_is_read_or_refused_with_400(body: dict[str, Any]) -> None:
    for change in (body, {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}]} | body):
        try:
            message_request.parameters(change)
        except ApiError as error:
            assert error.status == 400 and error.param is not None


DELTAS = [
    Delta(reasoning="h"), Delta(reasoning="m"), Delta(content="s"), Delta(content="o"),
    Delta(index=0, id="c1", name="f", arguments=""), Delta(index=0, arguments="{}"),
    Delta(index=1, id="c2", name="g", arguments='{"a": 1}'), Delta(content="!"),
]  # fmt: skip


def test_the_events_of_a_response_add_up_to_it() -> None:
    writer = ResponseWriter("resp", {"model": "m"})
    events = json.loads(json.dumps(writer.begin(Usage(3))))
    for delta in DELTAS:
        events += json.loads(json.dumps(writer.take(delta)))
    events += json.loads(json.dumps(writer.end("tool_calls", None, Usage(3, 8))))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    output: list[Any] = []
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            output.append(event["item"])
        elif kind == "response.content_part.added":
            output[event["output_index"]]["content"].append(event["part"])
        elif kind.endswith("_text.delta"):
            output[event["output_index"]]["content"][0]["text"] += event["delta"]
        elif kind == "response.function_call_arguments.delta":
            output[event["output_index"]]["arguments"] += event["delta"]
        elif kind == "response.output_item.done":
            assert output[event["output_index"]] | {"status": "completed"} == event["item"]
            output[event["output_index"]]["status"] = "completed"
    assert output == writer.document["output"] == events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call", "message"]
    assert events[0]["response"]["output"] == [] and writer.document["status"] == "completed"


def test_the_blocks_of_a_message_are_whole() -> None:
    writer = MessageWriter("msg", "m")
    events = writer.begin(Usage(3))
    for delta in DELTAS:
        events += writer.take(delta)
    events += writer.end("tool_calls", None, Usage(10, 8, cached=4))
    assert [block["type"] for block in writer.document["content"]] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
        "text",
    ]
    assert [block["input"] for block in writer.document["content"][2:4]] == [{}, {"a": 1}]
    starts = [event["index"] for event in events if event["type"] == "content_block_start"]
    assert starts == [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2, 3, 4]
    assert (writer.document["stop_reason"], writer.document["usage"]["input_tokens"]) == ("tool_use", 6)


@pytest.mark.parametrize("finish", ["length", "stop"])
def test_an_answer_without_text_has_an_empty_part(finish: str) -> None:
    response, message = ResponseWriter("resp", {}), MessageWriter("msg", "m")
    response.end(finish, None, Usage())
    message.end(finish, None, Usage())
    assert response.document["output"][0]["content"][0]["text"] == ""
    assert message.document["content"] == [{"type": "text", "text": ""}]


def stored(size: int) -> Stored:
    return Stored({}, (), size)


def test_the_store_forgets_the_oldest_of_whoever_stores_most() -> None:
    store = Store(most=6, size=100, own=4, own_size=60)
    for number in range(5):
        store.add(b"a", str(number), stored(1))
    assert [store.get(b"a", str(number)) is not None for number in range(5)] == [False, True, True, True, True]
    assert store.get(b"b", "1") is None and not store.remove(b"b", "1")
    store.add(b"b", "large", stored(61))
    assert store.get(b"b", "large") is None
    store.add(b"b", "x", stored(50))
    store.add(b"b", "y", stored(50))
    assert store.get(b"b", "x") is None and store.get(b"b", "y") is not None
    store.add(b"c", "z", stored(55))  # more than all may store: the largest loses
    assert store.get(b"b", "y") is None or store.get(b"c", "z") is None
    assert store.remove(b"a", "1") and store.get(b"a", "1") is None


@settings(max_examples=200)
@given(
    some.lists(
        some.tuples(some.sampled_from([b"a", b"b", b"c"]), some.integers(0, 9), some.integers(0, 40)), max_size=60
    )
)
def test_the_store_never_holds_more_than_its_bounds(adds: list[tuple[bytes, int, int]]) -> None:
    store = Store(most=8, size=100, own=5, own_size=60)
    for owner, name, size in adds:
        store.add(owner, str(name), stored(size))
        held = [len(own) for own in store._of.values()]
        sizes = [sum(one.size for one in own.values()) for own in store._of.values()]
        assert sum(held) <= 8 and all(count <= 5 for count in held)
        assert sum(sizes) <= 100 and all(size <= 60 for size in sizes)
        assert sizes == [store._sizes[owner] for owner in store._of]


def test_count_tokens_counts_with_the_templates_variables() -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    counted, made = message_request.counted(body), message_request.parameters({**body, "max_tokens": 1})
    assert counted.conversation.template_kwargs == made.conversation.template_kwargs == {"enable_thinking": False}


TOOL_USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "f g", "input_schema": {}}]}, "tools[0].name"),
        ({"output_config": {"format": {"type": "json_schema", "schema": 7}}}, "output_config.format.schema"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"messages": [{"role": "assistant", "content": [{**TOOL_USE, "id": ""}]}]}, "messages[0].content[0].id"),
        (
            {"messages": [
                {"role": "user", "content": "x"}, {"role": "assistant", "content": [TOOL_USE]},
                {"role": "user", "content": [{"type": "text", "text": "y"}, {"type": "tool_result", "tool_use_id": "d"}]},
            ]},
            "messages[2].content[1].tool_use_id",
        ),
    ],
)  # fmt: skip
def test_an_error_of_a_message_names_a_field_that_the_client_has_sent(change: dict[str, Any], param: str) -> None:
    asked = {"model": "m", "max_tokens": 1, "system": "s", "messages": [{"role": "user", "content": "x"}], **change}
    with pytest.raises(ApiError, match=re.escape(param)) as raised:
        message_request.parameters(asked)
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "function", "name": "f", "parameters": {"type": "array"}}]}, "tools[0].parameters"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": 7}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"input": [{"type": "function_call_output", "call_id": "d", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ],
)
def test_an_error_of_a_response_names_a_field_that_the_client_has_sent(change: dict[str, Any], param: str) -> None:
    """The items of the response before are none of the client's input."""
    before = [
        {"type": "message", "role": "user", "content": "x"},
        {"type": "message", "role": "assistant", "content": "y"},
    ]
    with pytest.raises(ApiError, match=re.escape(param)) as raised:
        response_request.parameters({"model": "m", "instructions": "s", "input": "x", **change}, before)
    assert raised.value.param == param
