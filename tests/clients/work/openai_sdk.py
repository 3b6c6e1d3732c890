"""OpenAI's client: completions, chats, streams, tools, formats, responses, embeddings, models."""

import json
import os

import openai

URL, MODEL = os.environ["ENGINE_URL"], os.environ["ENGINE_MODEL"]
HI = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}

with openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as client:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.completions.create(model=MODEL, prompt="hello", max_tokens=4).usage.completion_tokens == 4
    whole = client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=8, temperature=0, store=False, metadata={"a": "b"}, service_tier="auto",
        prompt_cache_key="k", safety_identifier="s", reasoning_effort="low",
    )  # fmt: skip
    chunks = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=8, temperature=0, stream=True)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    tool = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}
    called = client.chat.completions.create(
        model=MODEL, messages=HI, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=200
    )
    (call,) = called.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    back = [*HI, called.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    assert client.chat.completions.create(model=MODEL, messages=back, tools=[tool], max_tokens=2).choices
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    made = client.chat.completions.create(model=MODEL, messages=HI, response_format=form, max_tokens=100)
    assert json.loads(made.choices[0].message.content) == {"city": "Oslo"}
    response = client.responses.create(model=MODEL, input="hello", max_output_tokens=8)
    after = client.responses.create(model=MODEL, input="so?", previous_response_id=response.id, max_output_tokens=8)
    assert client.responses.retrieve(after.id).output_text == after.output_text
    with client.responses.stream(model=MODEL, input="hello", max_output_tokens=8) as stream:
        for event in stream:
            last = event
    assert last.type in ("response.completed", "response.incomplete")
    assert len(client.embeddings.create(model=MODEL, input=["a", "b"]).data) == 2
    try:
        client.chat.completions.create(model="another", messages=HI)
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
    else:
        raise AssertionError("another model was served")
