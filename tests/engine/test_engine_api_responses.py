"""/v1/responses through the official client: whole and streamed say the same, a conversation goes on, forced calls are valid,
and what one key stored another one does not see. Against a real engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support.engine.api_process import NAME, Serving, make_model, serving

from pagefleet_contract.headers import CLIENT_HEADER

KEYS = ("key-one", "key-two")
TOOL = {"type": "function", "name": "weather", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Paris", "Oslo"]}}, "required": ["city"], "additionalProperties": False}}  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("responses")
    uri = make_model(folder / "model")
    keys = {"PAGEFLEET_API_KEYS": ",".join(KEYS)}
    with serving(uri, folder / "termination", "--max-model-len=2048", extra=keys) as running:
        yield running


@pytest.fixture
def client(served: Serving) -> Iterator[openai.OpenAI]:
    with served.client(KEYS[0]) as made:
        yield made


def test_a_response_is_that_of_the_chat_completion(client: openai.OpenAI) -> None:
    made = client.responses.create(
        model=NAME, input="hello", instructions="be brief", max_output_tokens=12, temperature=0
    )
    messages: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    chat = client.chat.completions.create(model=NAME, messages=messages, max_tokens=12, temperature=0)
    assert made.output_text == chat.choices[0].message.content
    assert (made.status, made.incomplete_details and made.incomplete_details.reason) == (
        ("incomplete", "max_output_tokens") if chat.choices[0].finish_reason == "length" else ("completed", None)
    )
    assert made.usage is not None and chat.usage is not None
    assert (made.usage.input_tokens, made.usage.output_tokens) == (
        chat.usage.prompt_tokens,
        chat.usage.completion_tokens,
    )


def test_a_stream_adds_up_to_the_response(client: openai.OpenAI) -> None:
    asked: Any = {"model": NAME, "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
                  "max_output_tokens": 20, "temperature": 0, "store": False}  # fmt: skip
    events = list(client.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added"]  # fmt: skip
    assert kinds[-1] in ("response.completed", "response.incomplete")
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last: Any = events[-1]
    whole = client.responses.create(**asked)
    assert text == last.response.output_text == whole.output_text


def test_a_conversation_goes_on_by_its_id(client: openai.OpenAI, served: Serving) -> None:
    first = client.responses.create(model=NAME, input="one", max_output_tokens=4, temperature=0)
    second = client.responses.create(
        model=NAME, input="two", previous_response_id=first.id, max_output_tokens=4, temperature=0
    )
    messages: Any = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "two"},
    ]
    chat = client.chat.completions.create(model=NAME, messages=messages, max_tokens=4, temperature=0)
    assert second.output_text == chat.choices[0].message.content
    assert client.responses.retrieve(second.id).output_text == second.output_text
    items = client.responses.input_items.list(second.id)
    assert len(items.data) == 3
    with served.client(KEYS[1]) as other, pytest.raises(openai.NotFoundError, match="no response"):
        other.responses.create(model=NAME, input="mine", previous_response_id=first.id)
    # A gateway presents one key for all clients, and names them.
    named = client.with_options(default_headers={CLIENT_HEADER: "a"}).responses
    theirs = named.create(model=NAME, input="mine", max_output_tokens=1)
    assert named.retrieve(theirs.id).id == theirs.id
    for stranger in (client, client.with_options(default_headers={CLIENT_HEADER: "b"})):
        with pytest.raises(openai.NotFoundError, match="no response"):
            stranger.responses.retrieve(theirs.id)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    unstored = client.responses.create(model=NAME, input="x", max_output_tokens=1, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored.id)


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_is_an_item_and_its_output_may_be_sent_back(client: openai.OpenAI, stream: bool) -> None:
    asked: Any = {"model": NAME, "input": "weather?", "tools": [TOOL], "tool_choice": "required", "seed": 3,
                  "parallel_tool_calls": False, "max_output_tokens": 300}  # fmt: skip
    asked["extra_body"] = {"seed": asked.pop("seed")}
    if stream:
        events = list(client.responses.create(**asked, stream=True))
        arguments = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
        done = next(event for event in events if event.type == "response.function_call_arguments.done")
        assert arguments == done.arguments
        last: Any = events[-1]
        made = last.response
    else:
        made = client.responses.create(**asked)
    (call,) = [item for item in made.output if item.type == "function_call"]
    assert (call.name, call.status, made.status) == ("weather", "completed", "completed")
    assert json.loads(call.arguments)["city"] in ("Paris", "Oslo")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    after = client.responses.create(
        model=NAME,
        input=[output],
        previous_response_id=made.id,
        tools=[TOOL],
        max_output_tokens=3,  # type: ignore[list-item]
    )
    assert after.status in ("completed", "incomplete")


def test_a_format_binds_the_text(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    form: Any = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
    made = client.responses.create(model=NAME, input="n?", text=form, max_output_tokens=100)
    assert 0 <= json.loads(made.output_text)["n"] <= 9


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0]"),
        ({"input": [{"role": "nobody", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"max_output_tokens": 99999}, "max_output_tokens"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"unheard_of": 1}, "unheard_of"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(served: Serving, change: dict[str, Any], param: str) -> None:
    body = json.dumps({"model": NAME, "input": "x", "max_output_tokens": 1, **change}).encode()
    reply = served.ask("POST", "/v1/responses", body, {"Authorization": f"Bearer {KEYS[0]}"})
    assert (reply.status, reply.error["param"]) == (400, param), reply.body
