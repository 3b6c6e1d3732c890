"""LiteLLM: the same chat through the providers that servers like ours are reached by, streams, tools, embeddings, rerank."""

import os

import litellm

URL, MODEL = os.environ["ENGINE_URL"], os.environ["ENGINE_MODEL"]
HI = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
for provider, url in (("openai", f"{URL}/v1"), ("hosted_vllm", f"{URL}/v1"), ("anthropic", URL)):
    same = {"model": f"{provider}/{MODEL}", "api_base": url, "api_key": "none", "max_tokens": 60, "num_retries": 0}
    answer = litellm.completion(messages=HI, **same)
    assert answer.choices[0].message.content and answer.usage.completion_tokens > 0, provider
    parts = litellm.completion(messages=HI, stream=True, **same)
    assert "".join(part.choices[0].delta.content or "" for part in parts), provider
    called = litellm.completion(messages=HI, tools=[TOOL], tool_choice="required", **same)
    assert called.choices[0].message.tool_calls[0].function.name == "clock", provider
assert litellm.responses(
    model=f"openai/{MODEL}", input="hello", api_base=f"{URL}/v1", api_key="none", max_output_tokens=8
).output
vectors = litellm.embedding(
    model=f"openai/{MODEL}", input=["a"], api_base=f"{URL}/v1", api_key="none", encoding_format="float"
)
assert vectors.data[0]["embedding"]
