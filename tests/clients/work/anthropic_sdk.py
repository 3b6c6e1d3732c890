"""Anthropic's client: messages, streams, tools, counting, errors."""

import os

import anthropic

URL, MODEL = os.environ["ENGINE_URL"], os.environ["ENGINE_MODEL"]
HI = [{"role": "user", "content": "hello"}]
TOOL = {"name": "weather", "input_schema": {
    "type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"], "additionalProperties": False}}  # fmt: skip

with anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0) as client:
    whole = client.messages.create(model=MODEL, max_tokens=8, messages=HI, system="be brief", extra_body={"seed": 1})
    with client.messages.stream(
        model=MODEL, max_tokens=8, messages=HI, system="be brief", extra_body={"seed": 1}
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens == 8 and final.stop_reason == "max_tokens"
    count = client.messages.count_tokens(model=MODEL, messages=HI, system="be brief").input_tokens
    assert count == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    with client.messages.stream(
        model=MODEL, max_tokens=200, messages=HI, tools=[TOOL], tool_choice={"type": "tool", "name": "weather"}
    ) as stream:
        made = stream.get_final_message()
    (call,) = made.content
    assert (call.type, call.input, made.stop_reason) == ("tool_use", {"city": "Oslo"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    back = [*HI, {"role": "assistant", "content": made.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(model=MODEL, max_tokens=2, messages=back, tools=[TOOL]).content
    try:
        client.messages.create(model="another", max_tokens=1, messages=HI)
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error"
    else:
        raise AssertionError("another model was served")
