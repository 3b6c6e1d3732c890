"""LangChain: chats through both protocols, streams, tools, structured output, embeddings."""

import os

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

URL, MODEL = os.environ["ENGINE_URL"], os.environ["ENGINE_MODEL"]
SCHEMA = {"title": "Place", "description": "a place", "type": "object", "required": ["city"],
          "properties": {"city": {"type": "string", "enum": ["Oslo"]}}, "additionalProperties": False}  # fmt: skip


@tool
def clock() -> str:
    """Tell the time."""
    return "noon"


openai = ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key="none", max_tokens=60, max_retries=0)
responses = ChatOpenAI(
    model=MODEL, base_url=f"{URL}/v1", api_key="none", max_tokens=60, max_retries=0, use_responses_api=True
)
anthropic = ChatAnthropic(model=MODEL, base_url=URL, api_key="none", max_tokens=60, max_retries=0)
for chat in (openai, responses, anthropic):
    answer = chat.invoke("hello")
    assert answer.text and answer.usage_metadata["output_tokens"] > 0, chat
    assert "".join(chunk.text for chunk in chat.stream("hello")), chat
    called = chat.bind_tools([clock], tool_choice="any" if chat is anthropic else "required").invoke("time?")
    assert called.tool_calls[0]["name"] == "clock", called
    result = ToolMessage("noon", tool_call_id=called.tool_calls[0]["id"])
    assert chat.bind_tools([clock]).invoke([HumanMessage("time?"), AIMessage.model_validate(called), result])
assert openai.with_structured_output(SCHEMA, method="json_schema").invoke("where?") == {"city": "Oslo"}
vectors = OpenAIEmbeddings(model=MODEL, base_url=f"{URL}/v1", api_key="none", check_embedding_ctx_length=False)
assert len(vectors.embed_documents(["a", "b"])) == 2
