"""LlamaIndex: completions, chats, streams and tools of an OpenAI-like server."""

import os

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

URL, MODEL = os.environ["ENGINE_URL"], os.environ["ENGINE_MODEL"]


def clock() -> str:
    """Tell the time."""
    return "noon"


model = OpenAILike(
    model=MODEL, api_base=f"{URL}/v1", api_key="none", is_chat_model=True, is_function_calling_model=True, max_tokens=60,
    max_retries=0, context_window=2048,
)  # fmt: skip
turn = [ChatMessage(role="user", content="hello")]
assert model.chat(turn).message.content
assert "".join(chunk.delta or "" for chunk in model.stream_chat(turn))
plain = OpenAILike(
    model=MODEL, api_base=f"{URL}/v1", api_key="none", is_chat_model=False, max_tokens=8, context_window=2048
)
assert plain.complete("hello").text
made = model.chat_with_tools([FunctionTool.from_defaults(clock)], user_msg="time?", tool_required=True)
assert model.get_tool_calls_from_response(made)[0].tool_name == "clock"
