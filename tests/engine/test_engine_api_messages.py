"""/v1/messages in Anthropic's shape: whole and streamed say the same, tools, thinking and errors have its form. Against a real
engine whose chat template opens the reasoning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine.api_process import NAME, TEMPLATE, Serving, make_model, serving

KEY = "key-one"
HEADERS = {"X-Api-Key": KEY, "Anthropic-Version": "2023-06-01"}
TOOL = {"name": "weather", "description": "of a city", "input_schema": {
    "type": "object", "properties": {"city": {"enum": ["Paris", "Oslo"]}}, "required": ["city"], "additionalProperties": False}}  # fmt: skip
THINKS = "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("messages")
    uri = make_model(folder / "model")
    (folder / "template").write_text(TEMPLATE + THINKS)
    flags = ("--max-model-len=2048", f"--chat-template={folder / 'template'}")
    with serving(uri, folder / "termination", *flags, extra={"PAGEFLEET_API_KEYS": KEY}) as running:
        yield running


def ask(served: Serving, path: str = "/v1/messages", **more: Any) -> Any:
    asked = {"model": NAME, "max_tokens": 12, "messages": [{"role": "user", "content": "hello"}], **more}
    reply = served.ask("POST", path, json.dumps(asked).encode(), HEADERS)
    assert reply.status == 200, reply.body
    if not more.get("stream"):
        return json.loads(reply.body)
    events = []
    for block in reply.body.decode().strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def added_up(events: list[Any]) -> Any:
    """The message that a client makes of the events."""
    message: Any = None
    for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append({**event["content_block"], "json": ""})
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                for kind in ("text", "thinking"):
                    if delta["type"] == f"{kind}_delta":
                        block[kind] += delta[kind]
                block["json"] += delta.get("partial_json", "")
            case "content_block_stop":
                block = message["content"][event["index"]]
                text = block.pop("json")
                if block["type"] == "tool_use":
                    block["input"] = json.loads(text or "{}")
            case "message_delta":
                message |= {**event["delta"], "usage": event["usage"]}
            case _:
                assert event["type"] == "message_stop"
    return message


def test_a_stream_adds_up_to_the_message(served: Serving) -> None:
    asked: Any = {"temperature": 0, "system": [{"type": "text", "text": "brief", "cache_control": {"type": "ephemeral"}}],
                  "metadata": {"user_id": "u"}}  # fmt: skip
    whole = ask(served, **asked)
    streamed = added_up(ask(served, stream=True, **asked))
    assert streamed["content"] == whole["content"] and streamed["content"][0]["type"] == "text"
    assert streamed["stop_reason"] == whole["stop_reason"] in ("max_tokens", "end_turn")
    total = [
        sum(one["usage"][name] for name in ("input_tokens", "cache_read_input_tokens")) for one in (whole, streamed)
    ]
    assert total[0] == total[1] == ask(served, "/v1/messages/count_tokens", system="brief")["input_tokens"]
    assert whole["usage"]["output_tokens"] == streamed["usage"]["output_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_is_a_block_and_its_result_may_be_sent_back(served: Serving, stream: bool) -> None:
    asked: Any = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "weather"}, "max_tokens": 400, "seed": 5,
                  "thinking": {"type": "disabled"}, "stream": stream}  # fmt: skip
    made = ask(served, **asked)
    made = added_up(made) if stream else made
    (call,) = made["content"]
    assert (made["stop_reason"], call["type"], call["name"]) == ("tool_use", "tool_use", "weather")
    assert call["input"]["city"] in ("Paris", "Oslo")
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "rain"}]}
    messages = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, call]},
        {"role": "user", "content": [result, {"type": "text", "text": "so?"}]},
    ]
    assert ask(served, messages=messages, tools=[TOOL])["content"]


def test_a_stop_sequence_is_named_and_a_last_turn_of_the_assistant_is_continued(served: Serving) -> None:
    text = ask(served, temperature=0, max_tokens=30, thinking={"type": "disabled"})["content"][0]["text"]
    stop = text[10:12]
    made = ask(served, temperature=0, max_tokens=30, stop_sequences=["never so", stop], thinking={"type": "disabled"})
    assert (made["stop_reason"], made["stop_sequence"]) == ("stop_sequence", stop)
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "I am"}]
    assert ask(served, messages=turns, max_tokens=2)["usage"]["output_tokens"] == 2


def test_a_format_binds_the_text(served: Serving) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    config = {"format": {"type": "json_schema", "schema": schema}}
    made = ask(served, output_config=config, thinking={"type": "disabled"}, max_tokens=200)
    assert json.loads(made["content"][-1]["text"])["n"] in (1, 2)


@pytest.mark.parametrize(
    ("change", "headers", "status", "kind", "name"),
    [
        ({"max_tokens": None}, HEADERS, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": 99999}, HEADERS, 400, "invalid_request_error", "max_tokens"),
        ({"model": "other"}, HEADERS, 404, "not_found_error", "other"),
        ({"mcp_servers": [{}]}, HEADERS, 400, "invalid_request_error", "mcp_servers"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, HEADERS, 400, "invalid_request_error",
         "image"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, HEADERS, 400, "invalid_request_error", "web_search"),
        ({"stop_sequences": [""]}, HEADERS, 400, "invalid_request_error", "stop_sequences"),
        ({}, {}, 401, "authentication_error", "API key"),
        ({}, {"X-Api-Key": "another"}, 401, "authentication_error", "not valid"),
    ],
)  # fmt: skip
def test_errors_have_anthropic_s_form(
    served: Serving, change: dict[str, Any], headers: dict[str, str], status: int, kind: str, name: str
) -> None:
    asked = {"model": NAME, "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], **change}
    reply = served.ask("POST", "/v1/messages", json.dumps(asked).encode(), headers)
    document = json.loads(reply.body)
    assert (reply.status, document["type"], document["error"]["type"]) == (status, "error", kind)
    assert name in document["error"]["message"]
