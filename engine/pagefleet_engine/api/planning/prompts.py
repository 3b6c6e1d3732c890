"""Prompts as token ids: texts and conversations through the tokenizer, long ones in a thread."""

from __future__ import annotations

from collections.abc import Sequence

from pagefleet_engine.api.base.errors import invalid
from pagefleet_engine.api.base.in_thread import LARGE, run_in_thread
from pagefleet_engine.api.parameters.conversation import Conversation
from pagefleet_engine.api.parameters.prompts import Prompt
from pagefleet_engine.model.text.tokenizer import Tokenizer

TAIL = 256  # characters of a prompt's end


async def tokens(tokenizer: Tokenizer, prompt: Prompt, param: str, add_special_tokens: bool) -> tuple[int, ...]:
    """Raises ApiError (400) on ids beyond the vocabulary."""
    if isinstance(prompt, tuple):
        check_ids(prompt, tokenizer.vocab_size, param)
        return prompt
    return tuple(await run_in_thread(len(prompt), lambda: tokenizer.encode(prompt, add_special_tokens)))


async def text(tokenizer: Tokenizer, ids: Sequence[int], param: str) -> str:
    """Return the text of token ids, with special tokens as they are written. Raises ApiError (400) for unknown ids."""
    check_ids(ids, tokenizer.vocab_size, param)
    return await run_in_thread(len(ids), lambda: _decode(tokenizer, ids))


async def chat_tokens(
    tokenizer: Tokenizer, conversation: Conversation, add_special_tokens: bool = False
) -> tuple[tuple[int, ...], str]:
    """Return the tokens, and the end of their text. Raises ApiError (400) when the template refuses the conversation."""
    size = sum(len(message["content"]) for message in conversation.messages)
    size += 0 if conversation.template is None and conversation.tools is None else LARGE
    try:
        return await run_in_thread(size, lambda: _rendered(tokenizer, conversation, add_special_tokens))
    except (ValueError, TypeError) as error:
        raise invalid("messages", str(error)[:500]) from error


def _rendered(
    tokenizer: Tokenizer, conversation: Conversation, add_special_tokens: bool
) -> tuple[tuple[int, ...], str]:
    text = render(tokenizer, conversation)
    return tuple(tokenizer.encode(text, add_special_tokens)), text[-TAIL:]


def render(tokenizer: Tokenizer, conversation: Conversation) -> str:
    """The prompt's text. Raises ValueError."""
    tools = conversation.tools.documents() if conversation.tools is not None else []
    return tokenizer.chat.render(
        conversation.messages,
        tools or None,
        conversation.template,
        conversation.template_kwargs,
        conversation.add_generation_prompt,
        conversation.continue_final_message,
    )


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises ApiError (400)."""
    if ids and max(ids) >= vocab_size:
        raise invalid(param, f"{param} has the token id {max(ids)}, beyond the vocabulary of {vocab_size}")


def _decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """`decode_batch` lets other threads run meanwhile, `decode` does not."""
    text: str = tokenizer.backend.decode_batch([list(ids)], skip_special_tokens=False)[0]
    return text
